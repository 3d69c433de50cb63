//go:build (amd64 || arm64) && !noasm

package digest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The hash by vectors is the one of plain Go, at every length up to some rows,
// at every address, and of more than a row per block.
func TestVectorsAgree(t *testing.T) {
	if !byVector {
		t.Log("this processor does not have " + vectorNeeds)
		return
	}
	rng := rand.New(rand.NewPCG(7, 7))
	b := make([]byte, 10*maxBlocks*rowSize+64)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	check := func(b []byte) {
		require.Equal(t, simpleHash(b, false), simpleHash(b, true), "%d bytes", len(b))
	}
	for n := 0; n < 4*rowSize; n += 1 + n/200 {
		check(b[n%64:][:n])
	}
	if testing.Short() {
		check(b[3:][:2*maxBlocks*rowSize+48])
		return
	}
	for _, n := range []int{maxBlocks * rowSize, maxBlocks*rowSize + 16, 2*maxBlocks*rowSize + 48, 10 * maxBlocks * rowSize} {
		check(b[3:][:n])
	}
}

// The bytes per second of one core in plain Go and by vectors, in cache and from memory.
func BenchmarkSimpleHashWays(b *testing.B) {
	for _, size := range []int{256 << 10, 256 << 20} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 7919 >> 3)
		}
		for _, v := range []bool{false, true} {
			b.Run(fmt.Sprint(size>>10, "KiB/vectors=", v), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					simpleHash(data, v && byVector)
				}
			})
		}
	}
}
