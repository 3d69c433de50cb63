//go:build !amd64

package determinism

// sameNaNs: the kernels of a device make the NaNs that an amd64 processor makes, not this one's.
const sameNaNs = false
