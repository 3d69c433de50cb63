//go:build !linux || !amd64

package pccl

// published reports whether the original library was published for this system.
const published = false
