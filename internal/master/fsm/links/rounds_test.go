package links

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/internal/wire"
)

func numbered(n int) (u wire.UUID) {
	binary.BigEndian.PutUint32(u[:], uint32(n+1))
	return u
}

// Every edge is in one round, no peer sends or receives twice in one, and there
// are as many rounds as the busiest peer has edges on one side, never more.
func TestMatchings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 14).Draw(t, "peers")
		share := rapid.IntRange(1, 10).Draw(t, "share")
		var edges []Edge
		degree := map[string]int{}
		most := 0
		for i := range n {
			for j := range n {
				if i != j && rapid.IntRange(1, 10).Draw(t, "edge") <= share {
					edges = append(edges, Edge{numbered(i), numbered(j)})
					for _, k := range []string{fmt.Sprint("s", i), fmt.Sprint("r", j)} {
						degree[k]++
						most = max(most, degree[k])
					}
				}
			}
		}
		rounds := Matchings(edges)
		require.Len(t, rounds, most)
		var all []Edge
		for _, r := range rounds {
			sends, receives := map[wire.UUID]bool{}, map[wire.UUID]bool{}
			for _, e := range r {
				require.False(t, sends[e.From] || receives[e.To])
				sends[e.From], receives[e.To] = true, true
			}
			all = append(all, r...)
		}
		require.ElementsMatch(t, edges, all)
	})
	require.Empty(t, Matchings(nil))
}

func BenchmarkMatchings(b *testing.B) {
	for _, n := range []int{16, 128, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var edges []Edge
			for k := 1; k < n; k++ {
				for i := range n {
					edges = append(edges, Edge{numbered(i), numbered((i + k) % n)})
				}
			}
			for b.Loop() {
				Matchings(edges)
			}
		})
	}
}
