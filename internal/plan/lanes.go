package plan

// Plan is what one peer does in a collective operation, as data: which chunks go
// out to whom, which come in from whom, in which order, and what has to be there
// before. It knows no memory, bytes or connections.
//
// A chunk travels in parts of any size, and everything that is said of a segment
// holds for each part of it: a part may leave as soon as the same part of the
// segment that it follows is done, so that all hops of a chunk work at the same
// time. One structure therefore describes a ring, in which every peer has one lane
// out and one in, and a tree for each chunk, with a lane for each pair of
// neighbours; a gathering is one that only sets.
//
// What a plan promises, and the tests of this package check of every one: both
// ends of a lane list the same chunks in the same order; whatever is ready first,
// all of it ends; each contribution enters a chunk once; and what is added to what
// follows from the plan alone and never from what comes first, so that all peers
// get the same bits, and again in a repetition.
type Plan struct {
	N, Rank int // peers, and which of them this is
	Chunks  int
	Out, In []Lane // at most one of each for every other peer
	// Both says that both peers finish every chunk, and nobody copies what another one has
	// finished. In place, what goes out has to be taken from a copy, because it may be
	// overwritten before it is sent. Processors make different NaNs: each of a result has to
	// become the same one.
	Both bool
}

// Lane is an ordered stream of segments to or from one peer.
type Lane struct {
	Peer     int // position
	Segments []Segment
}

// Segment is one chunk on its way over one lane.
type Segment struct {
	Chunk int
	Do    Action // of a lane in
	// After is a segment of the same chunk that comes in: what is sent is what that
	// one has left, and what is added is added to it. None: the source's data. All
	// that is added to a chunk forms such a chain.
	After Ref
	// Gate is a segment of an earlier chunk that comes in. What is sent waits for all of
	// it, too. What is added comes when all of it has been added, over the same lane, so
	// that it may wait for its turn in the same place. None: there is no such bound.
	Gate Ref
}

// Action is what happens to a chunk that comes in.
type Action uint8

const (
	Set    Action = iota // it is final and replaces what was there
	Add                  // it is combined with what this peer has
	Finish               // Add, and the chunk is final: this peer owns it
	Behind               // Finish, but what comes is the first operand and what this peer has the second
)

// Reduces reports whether what comes in is combined with data of this peer.
func (a Action) Reduces() bool { return a != Set }

// Finishes reports whether the chunk is final then, and this peer owns it.
func (a Action) Finishes() bool { return a == Finish || a == Behind }

// Ref names a segment of In. Lanes count from 1, so that the zero value is none.
type Ref struct{ Lane, Segment int }

// None reports whether r names nothing.
func (r Ref) None() bool { return r.Lane == 0 }

// Ring returns the all-reduce of position rank in a ring of n, whose steps are its
// segments: 2(n-1) on each of its two lanes. n = 1 has nothing to do.
func Ring(n, rank int) *Plan {
	p := &Plan{N: n, Rank: rank, Chunks: n}
	if n == 1 {
		return p
	}
	out, in := make([]Segment, Steps(n)), make([]Segment, Steps(n))
	for s := range Steps(n) {
		out[s].Chunk, in[s].Chunk = SendChunk(rank, n, s), RecvChunk(rank, n, s)
		switch {
		case s == n-2:
			in[s].Do = Finish
		case Reduces(n, s):
			in[s].Do = Add
		}
		if s > 0 {
			out[s].After = Ref{1, s - 1}
		}
	}
	p.Out, p.In = []Lane{{mod(rank+1, n), out}}, []Lane{{mod(rank-1, n), in}}
	return p
}
