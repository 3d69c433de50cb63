package rings

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSameCycle(t *testing.T) {
	ring := []string{"a", "b", "c", "d"}
	require.True(t, SameCycle(ring, []string{"c", "d", "a", "b"}))
	require.False(t, SameCycle(ring, []string{"d", "c", "b", "a"}), "the direction counts")
	require.False(t, SameCycle(ring, []string{"a", "b", "c"}))
	require.False(t, SameCycle(ring, []string{"a", "b", "c", "e"}))
	require.False(t, SameCycle(ring, []string{"e", "b", "c", "d"}))
	require.True(t, SameCycle([]string{}, nil))
}

func TestIndices(t *testing.T) {
	require.Equal(t, []int{2, -1, 0}, Indices([]string{"a", "b", "c"}, []string{"c", "x", "a"}))
	require.Nil(t, Indices([]string{"a"}, nil))
}

// Peers that stay keep their order; a new one is put where the slower of its two
// links is fastest, and at the end where nothing is known.
func TestUpdate(t *testing.T) {
	none := func(string, string) float64 { return 0 }
	require.Equal(t, []string{"d", "b", "a", "c"}, Update([]string{"d", "x", "b"}, []string{"a", "b", "c", "d"}, none))
	require.Empty(t, Update([]string{"x"}, nil, none))
	rate := map[[2]string]float64{{"d", "n"}: 9, {"n", "b"}: 3, {"b", "n"}: 4, {"n", "c"}: 5}
	known := func(from, to string) float64 { return rate[[2]string{from, to}] }
	require.Equal(t, []string{"d", "b", "n", "c"}, Update([]string{"d", "b", "c"}, []string{"b", "c", "d", "n"}, known))
	order := []string{"a", "b", "c"}
	Update(order, []string{"a", "c"}, none)
	require.Equal(t, []string{"a", "b", "c"}, order, "it is only read")
}

// The result holds the members, each once, whatever the order was.
func TestUpdateKeepsMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfDistinct(rapid.IntRange(0, 12), rapid.ID[int])
		order, members := some.Draw(t, "order"), some.Draw(t, "members")
		ring := Update(order, members, func(from, to int) float64 { return float64((from*7+to*5)%11 - 3) })
		require.ElementsMatch(t, members, ring)
		both := func(us []int) []int {
			return slices.DeleteFunc(slices.Clone(us), func(u int) bool { return !slices.Contains(order, u) || !slices.Contains(members, u) })
		}
		require.Equal(t, both(order), both(ring))
	})
}

// Strangers beside each other are put between the others, evenly and in order.
func TestSpread(t *testing.T) {
	stranger := func(u int) bool { return u >= 10 }
	require.Equal(t, []int{1, 2, 10, 3, 11}, Spread([]int{1, 2, 3, 10, 11}, stranger))
	require.Equal(t, []int{1, 10, 2, 11, 12}, Spread([]int{1, 10, 11, 12, 2}, stranger))
	require.Nil(t, Spread([]int{1, 10, 2, 11}, stranger), "they are apart")
	require.Nil(t, Spread([]int{1, 10, 11}, stranger), "there is nobody to separate them")
	require.Nil(t, Spread([]int{10, 11}, stranger))
	require.Nil(t, Spread([]int{1, 2, 3}, stranger))
}

// possible tells by trying all rings of n members whether one has no forbidden
// neighbours.
func possible(p Pairs, n int) bool {
	var try func(ring []int) bool
	try = func(ring []int) bool {
		if len(ring) == n {
			return p.Violations(ring) == 0
		}
		for i := range n {
			if !slices.Contains(ring, i) && try(append(ring, i)) {
				return true
			}
		}
		return false
	}
	return try([]int{0})
}

// In small groups a ring is found if and only if there is one.
func TestRingIsFoundIfThereIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "members")
		p := NewPairs(n)
		start := make([]int, n)
		for i := range n {
			start[i] = i
			for j := range i {
				if rapid.IntRange(0, 2).Draw(t, "pair") == 0 {
					p.Forbid(i, j)
				}
			}
		}
		ring := p.Ring(start)
		require.Equal(t, possible(p, n), ring != nil)
		if ring != nil {
			require.ElementsMatch(t, start, ring)
			require.Zero(t, p.Violations(ring))
		}
	})
}

// In large groups a ring without forbidden neighbours is found by search; where
// a peer has less than two possible neighbours there is none.
func TestRingOfLargeGroups(t *testing.T) {
	const n = 40
	p := NewPairs(n)
	start := make([]int, n)
	for i := range n {
		start[i] = i
		p.Forbid(i, (i+1)%n)
	}
	require.False(t, NewPairs(n).Any())
	require.True(t, p.Any())
	require.True(t, p.Forbidden(1, 0))
	require.Equal(t, n, p.Violations(start))
	ring := p.Ring(start)
	require.ElementsMatch(t, start, ring)
	require.Zero(t, p.Violations(ring))
	require.Equal(t, ring, p.Ring(start), "the same arguments, the same ring")
	require.Equal(t, 0, start[0], "the start is only read")
	for i := 2; i < n; i++ {
		p.Forbid(0, i)
	}
	require.Nil(t, p.Ring(start))
}
