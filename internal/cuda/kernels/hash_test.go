package kernels

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/digest"
)

// The hash on the device is that of core/digest at every length around the
// borders of words, vecs, rows and blocks, and at every address.
func TestHash(t *testing.T) {
	m := open(t, Hashing)
	rng := rand.New(rand.NewPCG(1, 9))
	scratch := m.put(make([]byte, HashScratch), 0)
	check := func(n, offset int) {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		src, dst := m.put(b, offset), m.put(make([]byte, 4), 0)
		require.NoError(t, m.k.Hash(dst.Ptr, scratch.Ptr, src.Ptr, uint64(n), 0))
		got := binary.LittleEndian.Uint32(m.take(dst))
		m.free(src)
		require.Equal(t, digest.SimpleHash(b), got, "%d bytes at %d", n, offset) // S0-17, S2-13
	}
	for n := range 40 {
		check(n, n*7%16)
	}
	for offset := range 16 {
		check(4096+offset*37, offset)
	}
	for _, n := range []int{4096 - 16, 4096, 4096 + 15, 4*4096 + 5, 8 * 4096} {
		check(n, 0)
	}
	if !testing.Short() {
		// More than 960 blocks of one row each: the last blocks of the grid
		// have less, or nothing.
		for _, n := range []int{960 * 4096, 960*4096 + 16, 961*4096 + 3} {
			check(n, 0)
		}
		for offset := range 16 {
			check(5*4096*3+offset*1000+1, offset)
		}
	}
	m.free(scratch)
}

// mixed and tree are C and B of the specification (hashes, section 1), word for word.
func mixed(a, b uint32) uint32 { return bits.RotateLeft32(a^(b+0x9e3779b1), 7) * 0x85ebca6b }

func tree(a []uint32) uint32 {
	row := func(v []uint32) uint32 {
		for off := 16; off > 0; off /= 2 {
			for i := range off {
				v[i] = mixed(v[i], v[i+off])
			}
		}
		return v[0]
	}
	r := make([]uint32, 32)
	for w := range 8 {
		r[w] = row(a[32*w : 32*w+32])
	}
	return row(r)
}

// Blocks of many rows are what only tensors of more than 4 MB have; here they are
// asked for.
func TestHashBlocks(t *testing.T) {
	m := open(t, Hashing)
	rng := rand.New(rand.NewPCG(1, 10))
	for _, offset := range []int{0, 4, 7} {
		const per = 9*256 + 37
		b := make([]byte, 16*(2*per-50))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		src, dst := m.put(b, offset), m.put(make([]byte, 16), 0)
		require.NoError(t, m.k.launch(hashBlocks, 4, 0, args().ptr(dst.Ptr, src.Ptr).u64(uint64(len(b)/16)).u64(per)))
		got := m.take(dst)
		for g := range 4 {
			part := b[min(len(b), 16*per*g):min(len(b), 16*per*(g+1))]
			var a [256]uint32
			for i := 0; i < len(part); i += 4 {
				k := i / 16 % 256
				a[k] = mixed(a[k], binary.LittleEndian.Uint32(part[i:]))
			}
			require.Equal(t, tree(a[:]), binary.LittleEndian.Uint32(got[4*g:]), "block %d at %d", g, offset)
		}
		m.free(src)
	}
}

// Places and sizes have 64 bits: blocks of 2^40 vecs begin behind the end, and
// are not taken for the first ones.
func TestHashBlocksCountIn64Bits(t *testing.T) {
	m := open(t, Hashing)
	b := make([]byte, 16*3)
	for i := range b {
		b[i] = byte(3 * i)
	}
	src, dst := m.put(b, 0), m.put(make([]byte, 12), 0)
	require.NoError(t, m.k.launch(hashBlocks, 3, 0, args().ptr(dst.Ptr, src.Ptr).u64(uint64(len(b)/16)).u64(1<<40)))
	got := m.take(dst)
	var a [256]uint32
	for i := 0; i < len(b); i += 4 {
		a[i/16] = mixed(a[i/16], binary.LittleEndian.Uint32(b[i:]))
	}
	require.Equal(t, tree(a[:]), binary.LittleEndian.Uint32(got))
	for g := 1; g < 3; g++ {
		require.Equal(t, uint32(0x35218f31), binary.LittleEndian.Uint32(got[4*g:]), "the hash of an empty block")
	}
	m.free(src)
}
