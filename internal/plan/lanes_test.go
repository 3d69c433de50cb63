package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// parts is how many parts a chunk travels in here.
const parts = 3

// peer runs a plan. What it has of a part is an expression over the contributions.
type peer struct {
	plan     *Plan
	src, dst [][parts]string // by chunk; the same memory if in place
	sent     []int           // parts, by lane
	done     []int
}

// world runs the plans of all peers; what is on its way is in the order of its lane.
type world struct {
	peers []*peer
	wires map[[2]int][]string
	room  int // parts that a wire holds; 0: any number
	early error
}

// newWorld gives peer i the contribution "i" to those chunks that it has by has.
func newWorld(plans []*Plan, inPlace bool, has func(rank, chunk int) bool) *world {
	w := &world{wires: map[[2]int][]string{}}
	for _, p := range plans {
		q := &peer{plan: p, src: make([][parts]string, p.Chunks), sent: make([]int, len(p.Out)), done: make([]int, len(p.In))}
		for c := range q.src {
			for i := range parts {
				q.src[c][i] = "?"
				if has(p.Rank, c) {
					q.src[c][i] = fmt.Sprint(p.Rank)
				}
			}
		}
		if q.dst = q.src; !inPlace {
			q.dst = make([][parts]string, p.Chunks)
		} else if p.Both {
			q.dst = slices.Clone(q.src)
		}
		w.peers = append(w.peers, q)
	}
	return w
}

// follows reports whether part of what s follows is done.
func (q *peer) follows(s Segment, part int) bool {
	return s.After.None() || q.done[s.After.Lane-1] > s.After.Segment*parts+part
}

// passed reports whether all of a segment that comes in is done.
func (q *peer) passed(gate Ref) bool {
	return gate.None() || q.done[gate.Lane-1] >= (gate.Segment+1)*parts
}

// has returns this peer's own side of a part of s.
func (q *peer) has(s Segment, part int) string {
	if s.After.None() {
		return q.src[s.Chunk][part]
	}
	return q.dst[s.Chunk][part]
}

// send sends the next part of a lane, if it may.
func (w *world) send(q *peer, lane int) bool {
	l := q.plan.Out[lane]
	at, part := q.sent[lane]/parts, q.sent[lane]%parts
	if at == len(l.Segments) || !q.follows(l.Segments[at], part) || !q.passed(l.Segments[at].Gate) {
		return false
	}
	wire := [2]int{q.plan.Rank, l.Peer}
	if w.room > 0 && len(w.wires[wire]) == w.room {
		return false
	}
	for _, in := range w.peers[l.Peer].plan.In {
		if in.Peer == q.plan.Rank && !w.peers[l.Peer].passed(in.Segments[at].Gate) {
			w.early = fmt.Errorf("chunk %d comes to %d from %d too early", in.Segments[at].Chunk, l.Peer, in.Peer)
		}
	}
	w.wires[wire] = append(w.wires[wire], q.has(l.Segments[at], part))
	q.sent[lane]++
	return true
}

// receive takes the next part of a lane, if there is one that it may take.
func (w *world) receive(q *peer, lane int) bool {
	l := q.plan.In[lane]
	wire := [2]int{l.Peer, q.plan.Rank}
	at, part := q.done[lane]/parts, q.done[lane]%parts
	if at == len(l.Segments) || len(w.wires[wire]) == 0 || !q.follows(l.Segments[at], part) {
		return false
	}
	s, got := l.Segments[at], w.wires[wire][0]
	w.wires[wire] = w.wires[wire][1:]
	if s.Do == Behind {
		got = "(" + got + "+" + q.has(s, part) + ")"
	} else if s.Do.Reduces() {
		got = "(" + q.has(s, part) + "+" + got + ")"
	}
	q.dst[s.Chunk][part] = got
	q.done[lane]++
	return true
}

// run does what may be done, in an order of chance, until nothing may.
func (w *world) run(rng *rand.Rand) {
	for {
		var can []func() bool
		for _, q := range w.peers {
			for i := range q.plan.Out {
				can = append(can, func() (sent bool) {
					for w.send(q, i) {
						sent = true
					}
					return sent
				})
			}
			for i := range q.plan.In {
				can = append(can, func() bool { return w.receive(q, i) })
			}
		}
		rng.Shuffle(len(can), func(i, j int) { can[i], can[j] = can[j], can[i] })
		moved := false
		for _, f := range can {
			moved = f() || moved
		}
		if !moved {
			return
		}
	}
}

// lawful is what holds for every plan: lanes in pairs that list the same chunks,
// and segments that follow one of the same chunk.
func lawful(plans []*Plan) error {
	chunks := func(l Lane) (c []int) {
		for _, s := range l.Segments {
			c = append(c, s.Chunk)
		}
		return c
	}
	pairs := map[[2]int]string{}
	for r, p := range plans {
		if p.N != len(plans) || p.Rank != r {
			return fmt.Errorf("plan %d is of %d in %d", r, p.Rank, p.N)
		}
		for _, l := range p.Out {
			if pairs[[2]int{r, l.Peer}] != "" {
				return fmt.Errorf("two lanes from %d to %d", r, l.Peer)
			}
			pairs[[2]int{r, l.Peer}] = fmt.Sprint(chunks(l))
		}
		for _, l := range append(append([]Lane{}, p.Out...), p.In...) {
			for _, s := range l.Segments {
				if s.Chunk < 0 || s.Chunk >= p.Chunks {
					return fmt.Errorf("%d has chunk %d of %d", r, s.Chunk, p.Chunks)
				}
				if !s.After.None() && p.In[s.After.Lane-1].Segments[s.After.Segment].Chunk != s.Chunk {
					return fmt.Errorf("%d: chunk %d follows another one", r, s.Chunk)
				}
			}
		}
	}
	for r, p := range plans {
		for _, l := range p.In {
			if got := pairs[[2]int{l.Peer, r}]; got != fmt.Sprint(chunks(l)) {
				return fmt.Errorf("from %d to %d: %v go out, %v come in", l.Peer, r, got, chunks(l))
			}
			delete(pairs, [2]int{l.Peer, r})
		}
	}
	if len(pairs) > 0 {
		return fmt.Errorf("nobody receives %v", pairs)
	}
	return nil
}

// check runs plans in place and out of place, several times, and returns what is
// wrong: want tells whose contributions a chunk consists of in the end.
func check(plans []*Plan, has func(rank, chunk int) bool, want func(chunk int) []int) error {
	return checkEach(plans, has, func(_, chunk int) []int { return want(chunk) })
}

// checkEach is check of plans in which members want different things: nil is nothing.
func checkEach(plans []*Plan, has func(rank, chunk int) bool, want func(rank, chunk int) []int) error {
	if err := lawful(plans); err != nil {
		return err
	}
	if err := finished(plans, want); err != nil {
		return err
	}
	final := map[[2]int]string{} // of a part of a chunk
	for round := range 6 {
		w := newWorld(plans, round%2 == 0, has)
		w.room = round / 2
		before := fmt.Sprint(w.peers[0].src)
		w.run(rand.New(rand.NewPCG(uint64(round), 1)))
		if w.early != nil {
			return w.early
		}
		if round%2 != 0 && before != fmt.Sprint(w.peers[0].src) {
			return fmt.Errorf("the source was written")
		}
		for _, q := range w.peers {
			for i, l := range q.plan.Out {
				if q.sent[i] != parts*len(l.Segments) {
					return fmt.Errorf("%d sends no more to %d after %d parts", q.plan.Rank, l.Peer, q.sent[i])
				}
			}
			for i, l := range q.plan.In {
				if q.done[i] != parts*len(l.Segments) {
					return fmt.Errorf("%d receives no more from %d after %d parts", q.plan.Rank, l.Peer, q.done[i])
				}
			}
			if len(plans) == 1 {
				continue // nothing came, and the source is the result
			}
			for c := range q.plan.Chunks {
				want := want(q.plan.Rank, c)
				if want == nil || has(q.plan.Rank, c) && len(want) == 1 {
					continue // nothing, or its own, which does not travel to itself
				}
				for i, got := range q.dst[c] {
					if first, ok := final[[2]int{c, i}]; ok && first != got {
						return fmt.Errorf("%d has %s of chunk %d, another one %s", q.plan.Rank, got, c, first)
					}
					final[[2]int{c, i}] = got
					if terms := strings.FieldsFunc(got, func(r rune) bool { return strings.ContainsRune("(+)", r) }); !sameSet(terms, want) {
						return fmt.Errorf("%d has %s of chunk %d, want %v", q.plan.Rank, got, c, want)
					}
				}
			}
		}
	}
	return nil
}

// finished checks that sums which a peer wants, and no others, are said to be final.
func finished(plans []*Plan, want func(rank, chunk int) []int) error {
	for r, p := range plans {
		added := map[Ref]bool{} // something is added to it
		for _, l := range p.In {
			for _, s := range l.Segments {
				if s.Do.Reduces() {
					added[s.After] = true
				}
			}
		}
		for i, l := range p.In {
			for k, s := range l.Segments {
				last := s.Do.Reduces() && !added[Ref{i + 1, k}]
				owns := last && len(want(r, s.Chunk)) == p.N && !replaced(p, s.Chunk)
				if owns != s.Do.Finishes() {
					return fmt.Errorf("%d: what is done with chunk %d from %d is %d", r, s.Chunk, l.Peer, s.Do)
				}
			}
		}
	}
	return nil
}

// replaced reports whether a final chunk comes from another peer.
func replaced(p *Plan, chunk int) bool {
	for _, l := range p.In {
		for _, s := range l.Segments {
			if s.Chunk == chunk && s.Do == Set {
				return true
			}
		}
	}
	return false
}

func sameSet(terms []string, want []int) bool {
	left := map[string]int{}
	for _, r := range want {
		left[fmt.Sprint(r)]++
	}
	for _, t := range terms {
		left[t]--
	}
	for _, n := range left {
		if n != 0 {
			return false
		}
	}
	return true
}

// everybody has all chunks, and contributes to each.
func everybody(plans []*Plan) (has func(int, int) bool, want func(int) []int) {
	var all []int
	for r := range plans {
		all = append(all, r)
	}
	return func(int, int) bool { return true }, func(int) []int { return all }
}

func each(n int, f func(rank int) *Plan) (plans []*Plan) {
	for r := range n {
		plans = append(plans, f(r))
	}
	return plans
}

// The ring that the engine runs: its steps are those of data spec, section 2.2.
func TestRingIsAnAllReduce(t *testing.T) {
	for n := 1; n <= 9; n++ {
		plans := each(n, func(r int) *Plan { return Ring(n, r) })
		has, want := everybody(plans)
		require.NoError(t, check(plans, has, want), "%d peers", n)
		for r, p := range plans {
			for s := range Steps(n) {
				require.Equal(t, SendChunk(r, n, s), p.Out[0].Segments[s].Chunk)
				require.Equal(t, RecvChunk(r, n, s), p.In[0].Segments[s].Chunk)
				require.Equal(t, Reduces(n, s), p.In[0].Segments[s].Do.Reduces())
				require.Equal(t, s == n-2, p.In[0].Segments[s].Do == Finish)
			}
		}
	}
}

// gathering is an all-gather over the ring: peer r has chunk r.
func gathering(n, rank int) *Plan {
	p := &Plan{N: n, Rank: rank, Chunks: n}
	var out, in []Segment
	for s := range n - 1 {
		out = append(out, Segment{Chunk: mod(rank-s, n)})
		in = append(in, Segment{Chunk: mod(rank-s-1, n)})
		if s > 0 {
			out[s].After = Ref{1, s - 1}
		}
	}
	p.Out, p.In = []Lane{{mod(rank+1, n), out}}, []Lane{{mod(rank-1, n), in}}
	return p
}

func TestAnAllGatherIsAPlan(t *testing.T) {
	for n := 2; n <= 9; n++ {
		plans := each(n, func(r int) *Plan { return gathering(n, r) })
		err := check(plans, func(r, c int) bool { return r == c }, func(c int) []int { return []int{c} })
		require.NoError(t, err, "%d peers", n)
	}
}

// tree is how one chunk travels: the parent of each peer towards the owner, who
// reduces it, and from the owner, who has it; the owner's is -1.
type tree struct{ reduce, spread []int }

// forest is what rank does if chunk c travels along trees[c]. A peer adds what its
// children send in their order. First all sums, then all results; each in the
// order of the chunks, so that no lane waits for itself.
func forest(n, rank int, trees []tree) *Plan {
	p := &Plan{N: n, Rank: rank, Chunks: len(trees)}
	lane := func(list *[]Lane, peer int) *Lane {
		for i := range *list {
			if (*list)[i].Peer == peer {
				return &(*list)[i]
			}
		}
		*list = append(*list, Lane{Peer: peer})
		return &(*list)[len(*list)-1]
	}
	come := func(c, from int, do Action, after Ref) Ref {
		l := lane(&p.In, from)
		l.Segments = append(l.Segments, Segment{Chunk: c, Do: do, After: after})
		for i := range p.In {
			if p.In[i].Peer == from {
				return Ref{i + 1, len(l.Segments) - 1}
			}
		}
		return Ref{}
	}
	leave := func(c, to int, after Ref) {
		l := lane(&p.Out, to)
		l.Segments = append(l.Segments, Segment{Chunk: c, After: after})
	}
	sums := make([]Ref, len(trees))
	for c, t := range trees {
		for child, parent := range t.reduce {
			if parent == rank {
				sums[c] = come(c, child, Add, sums[c])
			}
		}
		if t.reduce[rank] >= 0 {
			leave(c, t.reduce[rank], sums[c])
		} else if last := sums[c]; !last.None() {
			p.In[last.Lane-1].Segments[last.Segment].Do = Finish
		}
	}
	for c, t := range trees {
		has := sums[c]
		if t.spread[rank] >= 0 {
			has = come(c, t.spread[rank], Set, Ref{})
		}
		for child, parent := range t.spread {
			if parent == rank {
				leave(c, child, has)
			}
		}
	}
	return p
}

// randomTree spans n peers below owner.
func randomTree(n, owner int, draw func(n int) int) []int {
	parent := make([]int, n)
	in := []int{owner}
	for _, r := range permutation(n, draw) {
		if r != owner {
			parent[r] = in[draw(len(in))]
			in = append(in, r)
		}
	}
	parent[owner] = -1
	return parent
}

func permutation(n int, draw func(n int) int) []int {
	p := make([]int, n)
	for i := range p {
		j := draw(i + 1)
		p[i], p[j] = p[j], i
	}
	return p
}

// A star for each chunk is the direct exchange, in two hops.
func TestAStarPerChunkIsAnAllReduce(t *testing.T) {
	for n := 2; n <= 7; n++ {
		trees := make([]tree, n)
		for c := range trees {
			star := make([]int, n)
			for r := range star {
				star[r] = c
			}
			star[c] = -1
			trees[c] = tree{star, star}
		}
		plans := each(n, func(r int) *Plan { return forest(n, r, trees) })
		has, want := everybody(plans)
		require.NoError(t, check(plans, has, want), "%d peers", n)
	}
}

// Any trees will do, one to reduce a chunk and another one to spread it.
func TestATreePerChunkIsAnAllReduce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "n")
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "draw") }
		trees := make([]tree, rapid.IntRange(1, 6).Draw(t, "chunks"))
		for c := range trees {
			owner := draw(n)
			trees[c] = tree{randomTree(n, owner, draw), randomTree(n, owner, draw)}
		}
		plans := each(n, func(r int) *Plan { return forest(n, r, trees) })
		has, want := everybody(plans)
		require.NoError(t, check(plans, has, want), "%v", trees)
	})
}

// The checks notice what would be wrong.
func TestAWrongPlanIsNoticed(t *testing.T) {
	broken := map[string]func(p []*Plan){
		"before it was added":     func(p []*Plan) { p[1].Out[0].Segments[2].After = Ref{} },
		"not added":               func(p []*Plan) { p[2].In[0].Segments[0].Do = Set },
		"added twice":             func(p []*Plan) { p[0].In[0].Segments[3].Do = Add },
		"another order":           func(p []*Plan) { s := p[0].Out[0].Segments; s[0], s[1] = s[1], s[0] },
		"a lane to nobody":        func(p []*Plan) { p[0].Out[0].Peer = 2 },
		"after the wrong chunk":   func(p []*Plan) { p[1].Out[0].Segments[2].After.Segment = 0 },
		"a step that nobody does": func(p []*Plan) { p[3].Out[0].Segments = p[3].Out[0].Segments[:5] },
	}
	for name, breaks := range broken {
		t.Run(name, func(t *testing.T) {
			plans := each(4, func(r int) *Plan { return Ring(4, r) })
			breaks(plans)
			has, want := everybody(plans)
			require.Error(t, check(plans, has, want))
		})
	}
	// An owner who adds in the order of arrival.
	star := tree{[]int{-1, 0, 0, 0}, []int{-1, 0, 0, 0}}
	plans := each(4, func(r int) *Plan { return forest(4, r, []tree{star}) })
	has, want := everybody(plans)
	plans[0].In[1].Segments[0].After = Ref{}
	require.Error(t, check(plans, has, want))
	// Two lanes that wait for each other.
	round := []tree{{[]int{-1, 0}, []int{-1, 0}}, {[]int{1, -1}, []int{1, -1}}}
	plans = each(2, func(r int) *Plan { return forest(2, r, round) })
	require.NoError(t, check(plans, has, func(int) []int { return []int{0, 1} }))
	for _, p := range plans {
		for _, lanes := range [][]Lane{p.Out, p.In} {
			s := lanes[0].Segments
			s[0], s[1] = s[1], s[0] // results in front of sums
		}
		p.Out[0].Segments[0].After = swapped(p.Out[0].Segments[0].After)
		p.Out[0].Segments[1].After = swapped(p.Out[0].Segments[1].After)
	}
	require.ErrorContains(t, check(plans, has, func(int) []int { return []int{0, 1} }), "no more")
}

func swapped(r Ref) Ref {
	if !r.None() {
		r.Segment = 1 - r.Segment
	}
	return r
}
