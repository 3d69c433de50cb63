package plan

import (
	"math/bits"
	"slices"
)

// Job is what a plan is asked for: a kind of collective, and the place of one member
// in it. Members have an order of their own, which does not change with the ring:
// blocks of data, roots and peers are named by the index in it.
type Job struct {
	Kind  Kind
	N     int // members
	Me    int // this one
	Root  int // of kinds that have one
	Order []int
	// Order is the ring: the members in its order. Nil: as they are numbered.

	// Mesh: every pair of members is connected. Without it all data goes along the ring. An
	// all-reduce of two has one hop with it.
	Mesh bool
	// Scheme is how an all-reduce goes over a mesh, in so many Stripes. Nil: directly,
	// in equal parts and one stripe.
	Scheme  *Scheme
	Stripes int
}

// For returns what a member does. It is the same function on all members, and total:
// there is a plan for every kind, root, order and number of members.
//
// Chunks are blocks of the data. Broadcast and Reduce have one, all of it. AllToAll
// has one for each pair: that from i to j is i*N+j. The others have one for each
// member: the block that it gives, gets or owns. Blocks may have any size, zero too.
//
// What is sent is the least that the way allows. Of S bytes in all, a member of
// AllGather sends S without the next member's block, one of ReduceScatter S without
// its own, one of AllReduce both; Broadcast and Reduce are chains, on which each link
// carries S. Blocks of Gather, Scatter and AllToAll travel once over a mesh. Over a
// ring each travels once for every link of its way.
func For(j Job) *Plan {
	b := &builder{Job: j, p: &Plan{N: j.N, Rank: j.Me, Chunks: j.Kind.chunks(j.N)}}
	if j.Kind == AllReduce && j.Scheme != nil {
		b.p.Chunks = len(j.Scheme.Trees) * j.Stripes
	}
	if j.N < 2 {
		return b.p
	}
	if b.Order == nil {
		b.Order = make([]int, j.N)
		for i := range b.Order {
			b.Order[i] = i
		}
	}
	b.at = slices.Index(b.Order, j.Me)
	switch j.Kind {
	case AllReduce:
		if j.Scheme != nil {
			b.trees(j.Scheme, j.Stripes)
			break
		}
		if j.Mesh && j.N == 2 {
			b.pair()
			break
		}
		if j.Mesh {
			b.trees(Direct(j.N, nil), 1)
			break
		}
		b.spread(b.fold())
	case AllGather:
		b.spread(Ref{})
	case ReduceScatter:
		b.fold()
	case Broadcast:
		b.broadcast()
	case Reduce:
		b.reduce()
	case Gather:
		b.gather()
	case Scatter:
		b.scatter()
	case AllToAll:
		b.allToAll()
	}
	return b.p
}

// pair has each of two members send all that it has, and sum all of it up itself: one hop where
// a ring has two, for the same bytes. Both add in the order of the members, so that they have
// the same bits.
func (b *builder) pair() {
	other, do := 1-b.Me, Finish
	if b.Me == 1 {
		do = Behind
	}
	for chunk := range b.p.Chunks {
		b.out(other, chunk, Ref{})
		b.in(other, chunk, do, Ref{})
	}
	b.p.Both = true
}

// chunks returns how many chunks a plan of the kind has.
func (k Kind) chunks(n int) int {
	switch k {
	case Broadcast, Reduce:
		return 1
	case AllToAll:
		return n * n
	case Barrier:
		return 0
	}
	return n
}

// Sent returns the bytes that go out, of chunks of the given sizes.
func (p *Plan) Sent(size func(chunk int) int) int { return traffic(p.Out, size) }

// Received returns the bytes that come in.
func (p *Plan) Received(size func(chunk int) int) int { return traffic(p.In, size) }

func traffic(lanes []Lane, size func(chunk int) int) (bytes int) {
	for _, l := range lanes {
		for _, s := range l.Segments {
			bytes += size(s.Chunk)
		}
	}
	return bytes
}

// builder collects the lanes of one member.
type builder struct {
	Job
	p  *Plan
	at int // place in the ring
}

// ahead returns the member that is so many places further on in the ring.
func (b *builder) ahead(places int) int { return b.Order[mod(b.at+places, b.N)] }

// distance returns how many links of the ring lead from the root to this member.
func (b *builder) distance() int { return mod(b.at-slices.Index(b.Order, b.Root), b.N) }

func lane(list *[]Lane, peer int) int {
	i := slices.IndexFunc(*list, func(l Lane) bool { return l.Peer == peer })
	if i < 0 {
		i = len(*list)
		*list = append(*list, Lane{Peer: peer})
	}
	return i
}

// out sends a chunk behind all that goes to peer already.
func (b *builder) out(peer, chunk int, after Ref) {
	l := &b.p.Out[lane(&b.p.Out, peer)]
	l.Segments = append(l.Segments, Segment{Chunk: chunk, After: after})
}

// in receives a chunk behind all that comes from peer already.
func (b *builder) in(peer, chunk int, do Action, after Ref) Ref {
	i := lane(&b.p.In, peer)
	l := &b.p.In[i]
	l.Segments = append(l.Segments, Segment{Chunk: chunk, Do: do, After: after})
	return Ref{i + 1, len(l.Segments) - 1}
}

// fold sums up along the ring: the block of each member begins at the one behind it,
// goes around, and ends at its own. It returns where the own block is final.
func (b *builder) fold() (own Ref) {
	for s := range b.N - 1 {
		b.out(b.ahead(1), b.ahead(-1-s), own)
		do := Add
		if s == b.N-2 {
			do = Finish
		}
		own = b.in(b.ahead(-1), b.ahead(-2-s), do, Ref{})
	}
	return own
}

// spread sends the own block, which is there after own, around the ring, and what
// comes behind it.
func (b *builder) spread(own Ref) {
	for s := range b.N - 1 {
		b.out(b.ahead(1), b.ahead(-s), own)
		own = b.in(b.ahead(-1), b.ahead(-1-s), Set, Ref{})
	}
}

// broadcast is a chain from the root along the ring.
func (b *builder) broadcast() {
	d := b.distance()
	var has Ref
	if d > 0 {
		has = b.in(b.ahead(-1), 0, Set, Ref{})
	}
	if d < b.N-1 {
		b.out(b.ahead(1), 0, has)
	}
}

// reduce is a chain from the member behind the root to the root, which adds last.
func (b *builder) reduce() {
	var has Ref
	switch d := b.distance(); d {
	case 0:
		b.in(b.ahead(-1), 0, Finish, Ref{})
		return
	case 1:
	default:
		has = b.in(b.ahead(-1), 0, Add, Ref{})
	}
	b.out(b.ahead(1), 0, has)
}

func (b *builder) gather() {
	switch d := b.distance(); {
	case b.Mesh && d == 0:
		for k := 1; k < b.N; k++ {
			from := mod(b.Me-k, b.N)
			b.in(from, from, Set, Ref{})
		}
	case b.Mesh:
		b.out(b.Root, b.Me, Ref{})
	case d == 0:
		for k := 1; k < b.N; k++ {
			b.in(b.ahead(-1), b.ahead(-k), Set, Ref{})
		}
	default: // the own block, then what comes from those between the root and here
		b.out(b.ahead(1), b.Me, Ref{})
		for k := 1; k < d; k++ {
			b.out(b.ahead(1), b.ahead(-k), b.in(b.ahead(-1), b.ahead(-k), Set, Ref{}))
		}
	}
}

func (b *builder) scatter() {
	switch d := b.distance(); {
	case b.Mesh && d == 0:
		for k := 1; k < b.N; k++ {
			to := mod(b.Me+k, b.N)
			b.out(to, to, Ref{})
		}
	case b.Mesh:
		b.in(b.Root, b.Me, Set, Ref{})
	case d == 0: // the farthest first
		for k := b.N - 1; k > 0; k-- {
			b.out(b.ahead(1), b.ahead(k), Ref{})
		}
	default:
		for k := b.N - 1 - d; k > 0; k-- {
			b.out(b.ahead(1), b.ahead(k), b.in(b.ahead(-1), b.ahead(k), Set, Ref{}))
		}
		b.in(b.ahead(-1), b.Me, Set, Ref{})
	}
}

// allToAll goes over a ring in rounds: in each a member passes on what it got in the
// one before, but for the block that is its own.
func (b *builder) allToAll() {
	pair := func(from, to int) int { return from*b.N + to }
	if b.Mesh {
		for k := 1; k < b.N; k++ {
			to, from := mod(b.Me+k, b.N), mod(b.Me-k, b.N)
			b.out(to, pair(b.Me, to), Ref{})
			b.in(from, pair(from, b.Me), Set, Ref{})
		}
		return
	}
	for k := b.N - 1; k > 0; k-- {
		b.out(b.ahead(1), pair(b.Me, b.ahead(k)), Ref{})
	}
	for r := 1; r < b.N; r++ {
		for k := b.N - 1; k >= r; k-- {
			chunk := pair(b.ahead(-r), b.ahead(k-r))
			came := b.in(b.ahead(-1), chunk, Set, Ref{})
			if k > r {
				b.out(b.ahead(1), chunk, came)
			}
		}
	}
}

// Cut divides count elements of elem bytes into chunks by weight, and returns where
// each ends. Chunk i gets the elements up to count times the sum of the first
// weights by that of all, rounded down to a multiple of 64 bytes; the last ends at
// count. A chunk may be empty; weights may be zero, but not all. elem divides 64.
func Cut(count, elem int, weights []uint32) []int {
	var sum, before uint64
	for _, w := range weights {
		sum += uint64(w)
	}
	ends := make([]int, len(weights))
	align := 64 / elem
	for i, w := range weights {
		before += uint64(w)
		hi, lo := bits.Mul64(uint64(count), before)
		end, _ := bits.Div64(hi, lo, sum)
		if ends[i] = int(end); before < sum {
			ends[i] -= ends[i] % align
		}
	}
	return ends
}
