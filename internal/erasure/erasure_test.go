package erasure

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The field: products as by long multiplication without tables, and inverses.
func TestField(t *testing.T) {
	require.EqualValues(t, 0x1d, products[0x80][2])
	for a := 1; a < 256; a++ {
		require.EqualValues(t, 1, products[a][inverses[a]], "%d", a)
		for b := range 256 {
			require.Equal(t, products[a][b], products[b][a])
			require.Equal(t, products[a][b]^byte(a), products[a][b^1], "%d times %d", a, b)
		}
	}
	for place := range MostPieces {
		require.EqualValues(t, 1, factor(0, place), "spare 0 is the exclusive or")
	}
}

// Any pieces that are missing can be made of any as many spares, whatever the order.
func TestAnyAreMade(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		pieces, spares := 1+rng.IntN(40), 1+rng.IntN(10)
		if rng.IntN(20) == 0 {
			pieces, spares = MostPieces, MostSpares
		}
		const size = 37
		data, sums := make([][]byte, pieces), make([][]byte, spares)
		for j := range sums {
			sums[j] = make([]byte, size)
		}
		for i := range data {
			data[i] = make([]byte, 1+rng.IntN(size))
			for k := range data[i] {
				data[i][k] = byte(rng.Uint32())
			}
			for j := range sums {
				Add(sums[j], data[i], j, i)
			}
		}
		missing := rng.Perm(pieces)[:rng.IntN(min(pieces, spares)+1)]
		numbers := rng.Perm(spares)[:len(missing)]
		gone := map[int]bool{}
		for _, i := range missing {
			gone[i] = true
		}
		var used [][]byte
		for _, j := range numbers {
			for i := range data {
				if !gone[i] {
					Add(sums[j], data[i], j, i)
				}
			}
			used = append(used, sums[j])
		}
		Solve(used, numbers, missing)
		for k, i := range missing {
			n := len(data[i])
			require.Equal(t, data[i], used[k][:n], "%d of %d pieces are missing", len(missing), pieces)
			require.Zero(t, bytes.Trim(used[k][n:], "\x00"))
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	sum, data := make([]byte, 8<<10), make([]byte, 8<<10)
	for _, number := range []int{0, 1} {
		b.Run([]string{"first", "other"}[number], func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				Add(sum, data, number, 3)
			}
		})
	}
}
