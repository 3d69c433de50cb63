package plan

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// anyScheme returns trees of chance for n members.
func anyScheme(n, trees int, draw func(n int) int) *Scheme {
	s := &Scheme{Name: "trees"}
	for range trees {
		owner := draw(n)
		t := Tree{Weight: uint32(draw(4)), Up: randomTree(n, owner, draw)}
		if t.Down = t.Up; draw(2) == 0 {
			t.Down = randomTree(n, owner, draw)
		}
		s.Trees = append(s.Trees, t)
	}
	s.Trees[0].Weight = 1
	return s
}

func plansOfScheme(s *Scheme, n, stripes int) []*Plan {
	return each(n, func(r int) *Plan {
		return For(Job{Kind: AllReduce, N: n, Me: r, Mesh: true, Scheme: s, Stripes: stripes})
	})
}

// promised returns what members of a scheme have and want: nothing of a part that has
// no weight.
func promised(s *Scheme, n int) (has func(int, int) bool, want func(int, int) []int) {
	all, _ := everybody(make([]*Plan, n))
	_, want1 := everybody(make([]*Plan, n))
	return all, func(_, chunk int) []int {
		if s.Trees[chunk%len(s.Trees)].Weight == 0 {
			return nil
		}
		return want1(chunk)
	}
}

// Any trees make an all-reduce, in any number of stripes, and all of it ends, whatever
// is ready first.
func TestASchemeIsAnAllReduce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "n")
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "draw") }
		s := anyScheme(n, rapid.IntRange(1, 5).Draw(t, "trees"), draw)
		require.NoError(t, s.Check(n))
		has, want := promised(s, n)
		require.NoError(t, checkEach(plansOfScheme(s, n, rapid.IntRange(1, Window+3).Draw(t, "stripes")), has, want))
	})
}

// A member keeps at most Window stripes of what a peer sends it for a tree, however
// fast that one is: without the gates of what is sent, some come too early. (Of several
// trees, the order of lanes, which these members keep to, may be bound enough.)
func TestASchemeBoundsWhatIsKept(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		n := 3 + rng.IntN(4)
		s := anyScheme(n, 1, rng.IntN)
		plans := plansOfScheme(s, n, 3*Window)
		for _, p := range plans {
			for i := range p.Out {
				for k := range p.Out[i].Segments {
					p.Out[i].Segments[k].Gate = Ref{}
				}
			}
		}
		has, want := promised(s, n)
		require.ErrorContains(t, checkEach(plans, has, want), "too early")
	}
}

func TestWrongSchemes(t *testing.T) {
	good := func() *Scheme { return Direct(3, nil) }
	require.NoError(t, good().Check(3))
	for says, spoil := range map[string]func(s *Scheme){
		"0 trees":                 func(s *Scheme) { s.Trees = nil },
		"1025 trees":              func(s *Scheme) { s.Trees = slices.Repeat(s.Trees[:1], 1025) },
		"weights are zero":        func(s *Scheme) { s.Trees[0].Weight, s.Trees[1].Weight, s.Trees[2].Weight = 0, 0, 0 },
		"of 3":                    func(s *Scheme) { s.Trees[1].Up = []int{-1, 0} },
		"tree 1: there is no own": func(s *Scheme) { s.Trees[1].Up = []int{1, 2, 0} },
		"tree 1: there is no":     func(s *Scheme) { s.Trees[1].Down = []int{-1, 0, 0} },
		"is in a cycle":           func(s *Scheme) { s.Trees[0].Up = []int{-1, 2, 1} },
		"does not lead":           func(s *Scheme) { s.Trees[0].Up = []int{-1, 3, 0} },
		"member 2 does not lead":  func(s *Scheme) { s.Trees[0].Up = []int{-1, 0, -1} },
		"tree 2: member 0 is in ": func(s *Scheme) { s.Trees[2].Down = []int{1, 0, -1} },
	} {
		s := good()
		for i := range s.Trees {
			s.Trees[i].Down = slices.Clone(s.Trees[i].Up)
		}
		spoil(s)
		require.ErrorContains(t, s.Check(3), says)
	}
	require.Error(t, good().Check(4))
	require.Error(t, (&Scheme{Trees: []Tree{{1, []int{-1}, []int{-1}}}}).Check(1))
}

func TestStripes(t *testing.T) {
	require.Equal(t, 1, Stripes(0))
	require.Equal(t, 1, Stripes(2<<20))
	require.Equal(t, 8, Stripes(16<<20))
	require.Equal(t, 9, Stripes(16<<20+1))
	require.Equal(t, 128, Stripes(1<<40))
	require.Equal(t, []uint32{3, 1, 3, 1}, (&Scheme{Trees: []Tree{{Weight: 3}, {Weight: 1}}}).Weights(2))
	require.Equal(t, 1, (&Direct(3, nil).Trees[1]).Owner())
}
