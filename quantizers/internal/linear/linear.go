// Package linear is what the quantizers share that write one integer for each
// element, and leave its metadata and arithmetic to them: the way through slices
// that lie anywhere in memory. Nothing here allocates.
package linear

import (
	"unsafe"

	"github.com/gopccl/gopccl/core/dtype"
)

// BlockElements is how many elements of any type a block holds.
const BlockElements = 256

// Block is aligned memory for elements, one word each. It belongs on the stack.
type Block [BlockElements]uint64

// Load copies as much of src as there is room for and returns it. src is a whole
// number of elements of up to 8 bytes.
func (b *Block) Load(src []byte) []byte {
	mem := dtype.AsBytes(b[:])
	return mem[:copy(mem, src)]
}

// Aligned reports whether dst and src can be viewed as slices of the types td and ts.
func Aligned(td dtype.Type, dst []byte, ts dtype.Type, src []byte) bool {
	return dtype.Aligned(src, ts.Size()) && dtype.Aligned(dst, td.Size())
}

// Pair is aligned memory for as many elements of two slices.
type Pair struct{ dst, src Block }

// Load returns copies of the first elements of dst and src, as many of the one as
// of the other, whose types are td and ts. The caller brings back what it made of
// the copy of dst:
//
//	for len(dst) > 0 {
//		d, s := pair.Load(td, dst, ts, src)
//		...
//		dst, src = dst[copy(dst, d):], src[len(s):]
//	}
func (p *Pair) Load(td dtype.Type, dst []byte, ts dtype.Type, src []byte) (d, s []byte) {
	n := max(1, min(BlockElements, len(dst)/td.Size())) // part of an element panics below
	return p.dst.Load(dst[:n*td.Size()]), p.src.Load(src[:n*ts.Size()])
}

// Accumulate makes dst hold acc, unless it is acc itself.
func Accumulate(dst, acc []byte) {
	if unsafe.SliceData(dst) != unsafe.SliceData(acc) {
		copy(dst, acc)
	}
}

// Bytes returns all patterns of a byte, at the index that a pattern is as a uint8.
func Bytes[Q uint8 | int8]() (all [256]Q) {
	for i := range all {
		all[i] = Q(i) // wraps for int8
	}
	return all
}

// Floats is for assembly only, which needs no alignment.
func Floats(b []byte) *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(b))) }
