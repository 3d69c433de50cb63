package dtype

import "unsafe"

// Element is a Go type that holds one tensor element. The two 16 bit floating
// point formats have no Go type: their patterns travel as uint16.
type Element interface {
	~uint8 | ~int8 | ~uint16 | ~int16 | ~uint32 | ~int32 | ~uint64 | ~int64 | ~float32 | ~float64
}

// AsBytes returns the memory of s as bytes, in host order (little-endian on
// every supported platform). The result shares the memory of s and keeps it alive.
func AsBytes[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}

// View returns the memory of b as elements of T, in host order; bytes after
// the last whole element are left out. The result shares the memory of b and
// keeps it alive. b must be Aligned to the size of T.
func View[T Element](b []byte) []T {
	var zero T
	n := len(b) / int(unsafe.Sizeof(zero))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// Aligned reports whether the memory of b starts at a multiple of size, which
// is a power of two. An empty slice is aligned to everything.
func Aligned(b []byte, size int) bool {
	return len(b) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(size-1) == 0
}

// TypeOf returns the element type of T; uint16 gives Uint16, whatever the patterns mean.
func TypeOf[T Element]() Type {
	var zero T
	half := T(1)
	half /= 2
	size := unsafe.Sizeof(zero)
	if half != 0 {
		if size == 4 {
			return Float32
		}
		return Float64
	}
	signed := zero-1 < zero
	switch {
	case size == 1 && signed:
		return Int8
	case size == 1:
		return Uint8
	case size == 2 && signed:
		return Int16
	case size == 2:
		return Uint16
	case size == 4 && signed:
		return Int32
	case size == 4:
		return Uint32
	case signed:
		return Int64
	}
	return Uint64
}
