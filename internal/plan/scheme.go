package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Scheme is an all-reduce as trees: the data is divided by weight, and each part is
// summed up along one tree and spread along another. A star in each part is the direct
// exchange; a tree through one member of each site sums up inside a site before
// anything leaves it. The same scheme stands on all members. It is constant.
type Scheme struct {
	Name  string // of the plan, for people
	Trees []Tree
}

// Tree is one part of the data. Members are named by their index.
type Tree struct {
	Weight uint32
	Up     []int // to whom each member sends the sum of its own and of what came; the owner, who gets the result: -1
	Down   []int // from whom each member gets the result; the owner: -1
}

const (
	// MaxTrees bounds the trees of a scheme.
	MaxTrees = 1024
	// MaxSchemeMembers bounds the members of a scheme.
	MaxSchemeMembers = 254
)

// Check reports what is wrong with s in a group of n.
func (s *Scheme) Check(n int) error {
	if n < 2 || n > MaxSchemeMembers || len(s.Trees) == 0 || len(s.Trees) > MaxTrees {
		return fmt.Errorf("%d trees of %d members", len(s.Trees), n)
	}
	var sum uint64
	for i := range s.Trees {
		t := &s.Trees[i]
		sum += uint64(t.Weight)
		if err := t.check(n); err != nil {
			return fmt.Errorf("tree %d: %w", i, err)
		}
	}
	if sum == 0 {
		return errors.New("all weights are zero")
	}
	return nil
}

func (t *Tree) check(n int) error {
	if len(t.Up) != n || len(t.Down) != n {
		return fmt.Errorf("%d and %d members of %d", len(t.Up), len(t.Down), n)
	}
	owner := slices.Index(t.Up, -1)
	if owner < 0 || t.Down[owner] != -1 {
		return errors.New("there is no owner")
	}
	for _, next := range [][]int{t.Up, t.Down} {
		for i := range next {
			at, links := i, 0
			for ; at != owner && links < n; links++ {
				if at = next[at]; at < 0 || at >= n {
					return fmt.Errorf("member %d does not lead to the owner", i)
				}
			}
			if at != owner {
				return fmt.Errorf("member %d is in a cycle", i)
			}
		}
	}
	return nil
}

// Same reports whether both are the same trees in the same parts, under one name.
func (s *Scheme) Same(o *Scheme) bool {
	return s.Name == o.Name && slices.EqualFunc(s.Trees, o.Trees, func(a, b Tree) bool {
		return a.Weight == b.Weight && slices.Equal(a.Up, b.Up) && slices.Equal(a.Down, b.Down)
	})
}

// like reports whether both are the same trees in about the same parts, whatever their names: what one takes the
// other takes.
func (s *Scheme) like(o *Scheme) bool {
	var all, others float64
	for i := range s.Trees {
		all += float64(s.Trees[i].Weight)
	}
	for i := range o.Trees {
		others += float64(o.Trees[i].Weight)
	}
	if !s.sameTrees(o) {
		return false
	}
	apart := 0.0
	for i := range s.Trees {
		apart += math.Abs(float64(s.Trees[i].Weight)/all - float64(o.Trees[i].Weight)/others)
	}
	return apart <= likeness
}

// likeness is how much of the data may be in other parts of schemes that are about the same.
const likeness = 0.02

// sameTrees reports whether both have the same trees, in whatever parts.
func (s *Scheme) sameTrees(o *Scheme) bool {
	return slices.EqualFunc(s.Trees, o.Trees, func(a, b Tree) bool { return slices.Equal(a.Up, b.Up) && slices.Equal(a.Down, b.Down) })
}

// Owner returns who owns the part.
func (t *Tree) Owner() int { return slices.Index(t.Up, -1) }

// Direct returns the exchange in which every member owns a part, receives it from all
// and sends it to all. Nil weights: equal parts.
func Direct(n int, weights []uint32) *Scheme {
	s := &Scheme{Name: "direct"}
	for o := range n {
		t := Tree{Weight: 1, Up: make([]int, n)}
		if weights != nil {
			t.Weight = weights[o]
		}
		for i := range t.Up {
			t.Up[i] = o
		}
		t.Up[o], t.Down = -1, t.Up
		s.Trees = append(s.Trees, t)
	}
	return s
}

const (
	// stripeBytes is how much data goes through all trees before more does, so that
	// results leave early; in more than mostStripes parts it is not cut.
	stripeBytes = 2 << 20
	mostStripes = 128
	// Window is by how many stripes a member is ahead of the results that it has got.
	// It bounds what members keep of others, and lets long ways be filled.
	Window = 8
)

// Stripes returns in how many parts that follow each other bytes of data are cut.
func Stripes(bytes int) int {
	return min(max((bytes+stripeBytes-1)/stripeBytes, 1), mostStripes)
}

// Weights returns the weights of the chunks of a plan in so many stripes, for Cut.
func (s *Scheme) Weights(stripes int) []uint32 {
	list := make([]uint32, 0, stripes*len(s.Trees))
	for range stripes {
		for i := range s.Trees {
			list = append(list, s.Trees[i].Weight)
		}
	}
	return list
}

// trees makes the lanes of a scheme. Chunks are numbered by stripe, then by tree. A lane
// has of each stripe what is summed up, then results. An addition at a member begins
// with its own contribution; then come the children, the nearest in front of it first.
//
// A contribution waits until the result of the same tree, Window stripes before, has
// come. That result is there when all that went into it has been added everywhere, so
// that no member keeps more than Window stripes of another one. Nothing waits for a
// later stripe, nor a sum for a result of its own stripe: all of it ends.
func (b *builder) trees(s *Scheme, stripes int) {
	c := len(s.Trees)
	kids := make([][2][]int, c) // those below this member in each tree, up and down
	for i := range s.Trees {
		t := &s.Trees[i]
		for k := 1; k < b.N; k++ {
			if from := mod(b.Me-k, b.N); t.Up[from] == b.Me {
				kids[i][0] = append(kids[i][0], from)
			}
			if to := mod(b.Me+k, b.N); t.Down[to] == b.Me {
				kids[i][1] = append(kids[i][1], to)
			}
		}
	}
	has, results, added := make([]Ref, c), make([]Ref, stripes*c), make([][]Ref, stripes*c)
	for stripe := range stripes {
		for i := range s.Trees {
			if chunk := stripe*c + i; s.Trees[i].Weight > 0 {
				f := fold{chunk: chunk, up: s.Trees[i].Up[b.Me], kids: kids[i][0]}
				if chunk >= Window*c {
					f.result, f.added = results[chunk-Window*c], added[chunk-Window*c]
				}
				added[chunk] = b.sum(f)
				has[i] = Ref{}
				if n := len(f.kids); n > 0 {
					has[i] = added[chunk][n-1]
				}
			}
		}
		for i := range s.Trees {
			if s.Trees[i].Weight == 0 {
				continue
			}
			chunk := stripe*c + i
			if from := s.Trees[i].Down[b.Me]; from >= 0 {
				has[i] = b.in(from, chunk, Set, Ref{})
				results[chunk] = has[i]
			}
			for _, to := range kids[i][1] {
				b.out(to, chunk, has[i])
			}
		}
	}
	// Nobody is the first to whom all send.
	slices.SortFunc(b.p.Out, func(x, y Lane) int { return mod(x.Peer-b.Me, b.N) - mod(y.Peer-b.Me, b.N) })
}

// fold is what a member does to sum up a chunk: it adds what comes from kids and sends
// it up; the owner has nobody there. result and added are, of an earlier stripe, where
// the result came and where what came from each of the kids was added.
type fold struct {
	chunk, up int
	kids      []int
	result    Ref
	added     []Ref
}

// sum makes the segments of f, and returns those that come in.
func (b *builder) sum(f fold) (added []Ref) {
	var has Ref
	for k, from := range f.kids {
		do := Add
		if f.up < 0 && k == len(f.kids)-1 {
			do = Finish
		}
		has = b.in(from, f.chunk, do, has)
		if added = append(added, has); f.added != nil {
			b.p.In[has.Lane-1].Segments[has.Segment].Gate = f.added[k]
		}
	}
	if f.up >= 0 {
		b.out(f.up, f.chunk, has)
		l := &b.p.Out[lane(&b.p.Out, f.up)]
		l.Segments[len(l.Segments)-1].Gate = f.result
	}
	return added
}
