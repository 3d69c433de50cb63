package digest

import (
	"encoding/binary"
	"math/bits"
)

// Shape of SimpleHash: 256 accumulators ("threads") per block take turns with
// vecs of 16 bytes, at most 960 blocks (hashes, section 1).
const (
	vecSize   = 16
	threads   = 256
	lanes     = 32
	rowSize   = threads * vecSize
	maxBlocks = 960
)

const (
	mixAdd = 0x9e3779b1
	mixMul = 0x85ebca6b
)

// mix is C(a, b) of the specification. It is neither commutative nor associative.
func mix(a, b uint32) uint32 {
	return bits.RotateLeft32(a^(b+mixAdd), 7) * mixMul
}

// SimpleHash returns PCCL's hash of b, which may lie at any address. It
// allocates nothing.
func SimpleHash(b []byte) uint32 { return simpleHash(b, byVector) }

func simpleHash(b []byte, vectors bool) uint32 {
	var hashes [maxBlocks]uint32
	s := shapeOf(len(b))
	for g := range s.grid {
		hashes[g] = hashBlock(s.block(b, g), vectors)
	}
	return s.finish(b, hashes[:s.grid])
}

// shape is how a buffer's whole vecs are cut into blocks.
type shape struct {
	vecs int // whole vecs in the buffer
	grid int // number of blocks
	per  int // vecs of a block; the last ones may have less, or none
}

func shapeOf(n int) shape {
	s := shape{vecs: n / vecSize}
	s.grid = min((s.vecs+threads-1)/threads, maxBlocks)
	if s.grid > 0 {
		s.per = (s.vecs + s.grid - 1) / s.grid
	}
	return s
}

// block returns the part of b that is block g.
func (s shape) block(b []byte, g int) []byte {
	from := min(g*s.per, s.vecs)
	to := min(from+s.per, s.vecs)
	return b[from*vecSize : to*vecSize]
}

// hashBlock returns H of the block b, which is a whole number of vecs.
func hashBlock(b []byte, vectors bool) uint32 {
	var acc [threads]uint32
	if vectors {
		b = b[rowSize*mixRowsByVector(&acc, b):]
	}
	for len(b) >= rowSize {
		mixRow(&acc, (*[rowSize]byte)(b))
		b = b[rowSize:]
	}
	for i := 0; len(b) >= vecSize; i++ {
		acc[i] = mixVec(acc[i], binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]))
		b = b[vecSize:]
	}
	return tree(&acc)
}

// mixVec takes the four words of a vec into an accumulator.
func mixVec(a uint32, w01, w23 uint64) uint32 {
	a = mix(a, uint32(w01))
	a = mix(a, uint32(w01>>32))
	a = mix(a, uint32(w23))
	return mix(a, uint32(w23>>32))
}

// mixRow gives every accumulator one vec. Four at a time: the chains of the
// accumulators are independent, and this keeps the multiplier busy.
func mixRow(acc *[threads]uint32, row *[rowSize]byte) {
	for i := 0; i < threads; i += 4 {
		a := (*[4]uint32)(acc[i:])
		v := (*[4 * vecSize]byte)(row[i*vecSize:])
		a[0] = mixVec(a[0], binary.LittleEndian.Uint64(v[0:]), binary.LittleEndian.Uint64(v[8:]))
		a[1] = mixVec(a[1], binary.LittleEndian.Uint64(v[16:]), binary.LittleEndian.Uint64(v[24:]))
		a[2] = mixVec(a[2], binary.LittleEndian.Uint64(v[32:]), binary.LittleEndian.Uint64(v[40:]))
		a[3] = mixVec(a[3], binary.LittleEndian.Uint64(v[48:]), binary.LittleEndian.Uint64(v[56:]))
	}
}

// tree is B(a): a tree over each 32 accumulators, then one over the eight
// results and 24 zeros. It destroys a.
func tree(a *[threads]uint32) uint32 {
	var r [lanes]uint32
	for w := range threads / lanes {
		r[w] = warp((*[lanes]uint32)(a[w*lanes:]))
	}
	return warp(&r)
}

// warp is W(v). It destroys v.
func warp(v *[lanes]uint32) uint32 {
	for i := range 16 {
		v[i] = mix(v[i], v[i+16])
	}
	for i := range 8 {
		v[i] = mix(v[i], v[i+8])
	}
	for i := range 4 {
		v[i] = mix(v[i], v[i+4])
	}
	return mix(mix(v[0], v[2]), mix(v[1], v[3]))
}

// finish combines the block hashes and takes in the bytes behind the last vec.
func (s shape) finish(b []byte, hashes []uint32) uint32 {
	var h uint32
	if s.grid > 0 {
		var p [threads]uint32
		for g, v := range hashes {
			p[g%threads] = mix(p[g%threads], v)
		}
		h = tree(&p)
	}
	b = b[s.vecs*vecSize:]
	for ; len(b) >= 4; b = b[4:] {
		h = mix(h, binary.LittleEndian.Uint32(b))
	}
	if len(b) > 0 {
		var last [4]byte
		copy(last[:], b)
		h = mix(h, binary.LittleEndian.Uint32(last[:]))
	}
	return h
}
