package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/collective"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
)

// blocks is the data phase of a collective other than an all-reduce: the lanes of its
// real plan, a message for each segment, which says how many bytes the lane has.
type blocks struct {
	members    []*peer
	self       int
	mesh       bool
	plan       *plan.Plan
	places     []collective.Place
	out, in    []int // generations of the links, by lane
	sent, done [][]bool
	left       [2][]int       // what is not sent and not received, by lane
	sums       map[int][]byte // chunks on their way to others, and sums that are not final
	running    bool
}

// startOther begins the data phase.
func (op *op) startOther(e pfsm.StartData) {
	p, w, j := op.p, op.p.w, op.job
	op.begin(e)
	p.turn(op.epoch)
	if w.bug == meshOfLaunch {
		e.Mesh = op.meshed
	}
	op.way = way{true, e.Mesh, e.Members, ""}
	if !e.Mesh {
		op.way.route = fmt.Sprint(ringOf(e.Ring, e.Members))
	}
	if !op.eager {
		op.commence(e.Seq)
	}
	if e.Mesh {
		w.collector.meshes++
	}
	b := &blocks{self: slices.Index(e.Members, e.Self), mesh: e.Mesh, sums: map[int][]byte{}}
	op.blocks = b
	order := ringOf(e.Ring, e.Members)
	if w.bug == blocksByRing {
		e.Members, b.self = e.Ring, slices.Index(e.Ring, e.Self)
		order = ringOf(e.Ring, e.Members)
	}
	var own int
	var err error
	b.places, own, err = j.spec.Places(len(e.Members), b.self, e.Mesh)
	if err != nil {
		if op.misfit = true; w.bug == misfitUntyped {
			err = errors.New("it does not fit")
		}
		op.end(err)
		return
	}
	b.plan = plan.For(plan.Job{Kind: j.spec.Kind, N: len(e.Members), Me: b.self, Root: j.spec.Root, Order: order, Mesh: e.Mesh})
	for _, u := range e.Members {
		b.members = append(b.members, w.byUUID(u))
	}
	b.lanes(op)
	w.collector.others.flights[j.spec.Kind]++
	w.after(w.rng.between(0, 2e6), p, func() {
		if op.blocks != b {
			return
		}
		for i, l := range b.plan.In {
			if link := w.link(b.members[l.Peer], p); b.left[1][i] > 0 && (!link.alive || link.gen != b.in[i]) {
				op.end(lost(b.members[l.Peer]))
				return
			}
		}
		b.running = true
		if own >= 0 && j.within < 0 && b.places[own].Src >= 0 && b.places[own].Dst >= 0 {
			c := b.places[own]
			copy(j.spec.Dst[c.Dst:c.Dst+c.Size], j.spec.Src[c.Src:c.Src+c.Size])
		}
		op.move()
	})
}

// lanes notes what there is to do. A segment of no bytes is not sent, but a lane of none is
// announced if the other end may believe that there is something.
func (b *blocks) lanes(op *op) {
	p, w := op.p, op.p.w
	note := func(l plan.Lane) (marks []bool, left int) {
		for _, s := range l.Segments {
			empty := b.places[s.Chunk].Size == 0
			if marks = append(marks, empty); !empty {
				left++
			}
		}
		if left == 0 && op.job.spec.ByMember() {
			marks[0], left = false, 1
		}
		return marks, left
	}
	for _, l := range b.plan.Out {
		marks, left := note(l)
		b.sent, b.left[0] = append(b.sent, marks), append(b.left[0], left)
		b.out = append(b.out, w.link(p, b.members[l.Peer]).gen)
	}
	for _, l := range b.plan.In {
		marks, left := note(l)
		b.done, b.left[1] = append(b.done, marks), append(b.left[1], left)
		b.in = append(b.in, w.link(b.members[l.Peer], p).gen)
	}
}

func (b *blocks) ready(r plan.Ref) bool { return r.None() || b.done[r.Lane-1][r.Segment] }

// extent returns what is said of the bytes of a lane.
func (b *blocks) extent(w *world, l plan.Lane, spec *collective.Spec) uint64 {
	var sizes []int
	for _, s := range l.Segments {
		sizes = append(sizes, b.places[s.Chunk].Size)
	}
	if w.bug == extentForgotten {
		return uint64(sum(sizes))
	}
	return spec.Extent(sizes)
}

// piece returns the number of the message of a segment: an empty one has none.
func (b *blocks) piece(l plan.Lane, k int) (n int) {
	for _, s := range l.Segments[:k] {
		if b.places[s.Chunk].Size > 0 {
			n++
		}
	}
	return n
}

// result returns where the result of what comes in lies.
func (b *blocks) result(s plan.Segment, spec *collective.Spec) []byte {
	c := b.places[s.Chunk]
	if c.Dst >= 0 && s.Do != plan.Add {
		return spec.Dst[c.Dst : c.Dst+c.Size]
	}
	if b.sums[s.Chunk] == nil {
		b.sums[s.Chunk] = make([]byte, c.Size)
	}
	return b.sums[s.Chunk]
}

// move sends what is ready and takes in what has come.
func (op *op) move() {
	b := op.blocks
	if b == nil || !b.running {
		return
	}
	spec := &op.job.spec
	for moved := true; moved; {
		moved = false
		for i, l := range b.plan.Out {
			for k, s := range l.Segments {
				if b.sent[i][k] || !b.ready(s.After) {
					continue
				}
				to := b.members[l.Peer]
				way := op.p.w.link(op.p, to)
				if !way.alive || way.gen != b.out[i] {
					op.end(lost(to))
					return
				}
				c := b.places[s.Chunk]
				var data []byte
				if s.After.None() {
					data = spec.Src[max(c.Src, 0) : max(c.Src, 0)+c.Size]
				} else {
					data = b.result(b.plan.In[s.After.Lane-1].Segments[s.After.Segment], spec)
				}
				op.send(way, to, laneStep(b.piece(l, k)), framed(b.extent(op.p.w, l, spec), data))
				b.sent[i][k], moved = true, true
				b.left[0][i]--
			}
		}
		for i, l := range b.plan.In {
			for k, s := range l.Segments {
				if b.done[i][k] || !b.ready(s.After) {
					continue
				}
				from := b.members[l.Peer]
				got, ok := op.take(from, laneStep(b.piece(l, k)))
				if !ok {
					continue
				}
				if !op.receive(from, b.extent(op.p.w, l, spec), s, got) {
					return
				}
				b.done[i][k], moved = true, true
				b.left[1][i]--
			}
		}
	}
	for _, side := range b.left {
		for _, n := range side {
			if n > 0 {
				return
			}
		}
	}
	op.end(nil)
}

// framed puts what is said of the lane in front of data.
func framed(extent uint64, data []byte) []int64 {
	f := make([]int64, 1+len(data)/elem)
	f[0] = int64(extent)
	for i := range f[1:] {
		f[1+i] = int64(binary.LittleEndian.Uint64(data[i*elem:]))
	}
	return f
}

// receive takes in a segment, and reports whether the operation goes on.
func (op *op) receive(from *peer, extent uint64, s plan.Segment, got []int64) bool {
	b, spec := op.blocks, &op.job.spec
	c := b.places[s.Chunk]
	if op.p.w.bug != totalsUnchecked && (uint64(got[0]) != extent || len(got)-1 != c.Size/elem) {
		op.end(errs.New(errs.Mismatch, spec.Kind.String(), errors.New("the ends of a lane do not agree")).WithPeer(from.uuid.String()))
		return false
	}
	out := b.result(s, spec)
	for i, v := range got[1:] {
		if (i+1)*elem > len(out) {
			break
		}
		x := uint64(v)
		if s.Do.Reduces() && op.p.w.bug != chunkLost {
			was := spec.Src[c.Src:]
			if !s.After.None() {
				was = out
			}
			x = op.job.a.combine(x, binary.LittleEndian.Uint64(was[i*elem:]))
		}
		binary.LittleEndian.PutUint64(out[i*elem:], x)
	}
	return true
}

// broke reports whether b still needs a link to other, or from it, that has ended.
func (b *blocks) broke(other *peer, gen int, sending bool) bool {
	if b.plan == nil {
		return false
	}
	lanes, side, gens := b.plan.In, 1, b.in
	if sending {
		lanes, side, gens = b.plan.Out, 0, b.out
	}
	for i, l := range lanes {
		if b.members[l.Peer] == other && b.left[side][i] > 0 && gens[i] <= gen {
			return true
		}
	}
	return false
}
