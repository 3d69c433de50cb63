package digesttest

import (
	"encoding/binary"
	"slices"
)

// simpleHash is section 1 of the hashing spec, word for word, with no thought of
// speed.
func simpleHash(b []byte) uint32 {
	if len(b) == 0 {
		return 0
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	words := len(b) / 4
	vecs := words / 4
	grid := min((vecs+255)/256, maxBlocks)
	h := uint32(0)
	if grid > 0 {
		per := (vecs + grid - 1) / grid
		p := make([]uint32, 256)
		for g := range grid {
			acc := make([]uint32, 256)
			for v := g * per; v < min((g+1)*per, vecs); v++ {
				for k := range 4 {
					i := (v - g*per) % 256
					acc[i] = combine(acc[i], word(4*v+k))
				}
			}
			p[g%256] = combine(p[g%256], large(acc))
		}
		h = large(p)
	}
	for i := vecs * 4; i < words; i++ {
		h = combine(h, word(i))
	}
	if t := len(b) % 4; t > 0 {
		v := uint32(0)
		for i := range t {
			v |= uint32(b[words*4+i]) << (8 * i)
		}
		h = combine(h, v)
	}
	return h
}

// combine is C of the text.
func combine(a, b uint32) uint32 {
	a ^= b + 0x9e3779b1
	a = a<<7 | a>>25
	return a * 0x85ebca6b
}

// small is the tree over 32 values, W of the text.
func small(v []uint32) uint32 {
	v = slices.Clone(v)
	for _, off := range []int{16, 8, 4, 2, 1} {
		for i := range off {
			v[i] = combine(v[i], v[i+off])
		}
	}
	return v[0]
}

// large is the tree over 256 values, B of the text.
func large(a []uint32) uint32 {
	r := make([]uint32, 32)
	for i := range 8 {
		r[i] = small(a[32*i : 32*i+32])
	}
	return small(r)
}

// crc32c is section 2 of the text, byte by byte: the remainders of all bytes are
// made bit by bit.
func crc32c(b []byte) uint32 {
	sum := ^uint32(0)
	for _, v := range b {
		sum = sum>>8 ^ remainders[byte(sum)^v]
	}
	return ^sum
}

var remainders = func() (r [256]uint32) {
	for i := range r {
		r[i] = uint32(i)
		for range 8 {
			r[i] = r[i]>>1 ^ 0x82f63b78&-(r[i]&1)
		}
	}
	return r
}()
