//go:build !amd64

package kernels

// sameNaNs: the processor makes the NaNs that the kernels make.
const sameNaNs = false
