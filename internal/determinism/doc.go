// Package determinism computes the same things on several machines, the
// processor's backends and GPUs, and says whether the bits are equal: reduce
// kernels, quantizers, the simple hash, and exp over float32 patterns. What the
// processor computes is also compared with what was recorded, so that machines
// can be compared that never meet.
package determinism
