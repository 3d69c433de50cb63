// Package walk is how quantizers go over slices that do not lie at addresses of
// their elements: block after block through copies on the caller's stack.
package walk

import "github.com/gopccl/gopccl/core/dtype"

// Elements of a block.
const Elements = 256

// Blocks are two blocks, of the widest elements. They belong on the stack: nothing
// here keeps them, and function values would move them to the heap.
type Blocks struct{ a, b [Elements]uint64 }

// Both returns the first elements of src, of size s, and room for as many of size
// d, at aligned addresses. The room holds what dst holds.
func (w *Blocks) Both(dst, src []byte, d, s int) (to, from []byte) {
	n := min(Elements, len(dst)/d)
	to, from = dtype.AsBytes(w.a[:])[:n*d], dtype.AsBytes(w.b[:])[:n*s]
	copy(to, dst)
	copy(from, src)
	return to, from
}

// One returns the first bytes of src at an aligned address.
func (w *Blocks) One(src []byte) []byte {
	from := dtype.AsBytes(w.a[:])
	return from[:copy(from, src)]
}
