package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/collective"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// What the trainers of a group call, and what each of them must have then. The buffers are
// described by the real collective.Spec; what must be in them is said here by itself.

// elem is the size of an element.
const elem = 8

// difference is how the call of one member differs from those of the others.
type difference int

const (
	same       difference = iota
	kinds                 // another kind
	roots                 // another root
	sizes                 // another number of elements
	types                 // of another type
	operations            // combined otherwise
	lists                 // other counts of all members, which all have to know
	pairs                 // another count of what one sends and another one receives
	shares                // ... whose sum over a ring is the same
	numDifferences
)

var differenceNames = [numDifferences]string{"", "kinds", "roots", "sizes", "types", "operations", "lists", "pairs", "shares"}

// fits reports whether calls of a kind can differ so.
func (d difference) fits(k plan.Kind, varied bool, n int) bool {
	switch d {
	case roots:
		return k.Rooted()
	case sizes:
		return !varied
	case operations:
		return k.Combines()
	case lists:
		return varied && !k.Direct()
	case pairs:
		return varied && k.Direct()
	case shares:
		return varied && (k == plan.Gather || k == plan.Scatter) && n > 2
	}
	return true
}

// vary reports whether the blocks of a kind may have unequal counts.
func vary(k plan.Kind) bool {
	return k != plan.Broadcast && k != plan.Reduce && k != plan.Barrier
}

// vote is what a member says of j.
func (j *job) vote() wire.Call {
	if j.a.kind == plan.Barrier {
		return wire.Call{Kind: uint8(plan.Barrier), Digest: wire.DigestOf(uint8(plan.Barrier), 0, 0, "", nil)}
	}
	return j.spec.Vote()
}

// arguments are of one collective: those of all members, but for what odd does.
type arguments struct {
	kind    plan.Kind
	n, root int
	dt      dtype.Type
	op      dtype.Op
	varied  bool
	counts  []int // of elements, by member; of an all-to-all from each to each
	inPlace uint  // a bit for each member
	keep    uint  // ... whose outputs are to be preserved
	odd     int   // calls another collective; -1: nobody
	how     difference
	mates   []int // those who alone can see with odd how it differs; nobody: the master does
	other   *arguments
}

// draw makes up a collective of n members.
func (w *world) draw(n int) *arguments {
	a := w.drawKind(n, plan.Kind(1+w.rng.n(plan.NumKinds-1)))
	if w.plan.kind != plan.AllReduce {
		a = w.drawKind(n, w.plan.kind)
	}
	if a.kind == plan.Barrier || w.plan.agree || !w.rng.chance(5) {
		return a
	}
	a.how = difference(1 + w.rng.n(int(numDifferences)-1))
	for !a.how.fits(a.kind, a.varied, n) {
		if a.how++; a.how == numDifferences {
			a.how = kinds
		}
	}
	a.odd = w.rng.n(n)
	a.other = w.differ(a)
	return a
}

func (w *world) drawKind(n int, k plan.Kind) *arguments {
	a := &arguments{
		kind: k, n: n, dt: dtype.Int64, op: dtype.Sum, odd: -1,
		inPlace: uint(w.rng.next()), keep: uint(w.rng.next()),
	}
	if k.Rooted() {
		a.root = w.rng.n(n)
	}
	if k.Combines() {
		a.dt = []dtype.Type{dtype.Int64, dtype.Float64}[w.rng.n(2)]
		a.op = []dtype.Op{dtype.Sum, dtype.Sum, dtype.Max}[w.rng.n(3)]
	}
	a.varied = vary(k) && w.rng.chance(2)
	if k == plan.AllToAll {
		a.inPlace, a.counts = 0, make([]int, n*n)
	} else {
		a.counts = make([]int, n)
	}
	each := 1 + w.rng.n(3)
	for i := range a.counts {
		if a.counts[i] = each; a.varied {
			a.counts[i] = w.rng.n(4)
		}
	}
	return a
}

// differ returns what the odd one calls in the place of a.
func (w *world) differ(a *arguments) *arguments {
	b := *a
	b.counts = slices.Clone(a.counts)
	another := func() int { return (a.odd + 1 + w.rng.n(a.n-1)) % a.n }
	switch a.how {
	case kinds:
		return w.drawKind(a.n, 1+(a.kind+plan.Kind(w.rng.n(int(plan.Barrier)-2)))%(plan.Barrier-1))
	case roots:
		b.root = (a.root + 1 + w.rng.n(a.n-1)) % a.n
	case sizes:
		for i := range b.counts {
			b.counts[i]++
		}
	case types:
		b.dt = dtype.Uint64
	case operations:
		b.op = dtype.Sum + dtype.Max - a.op
	case lists:
		b.counts[another()]++
	case pairs:
		mate := a.root
		if a.kind == plan.AllToAll || a.odd == a.root {
			mate = another()
		}
		a.mates = []int{mate}
		switch {
		case a.kind == plan.AllToAll:
			b.counts[a.odd*a.n+mate]++
		case a.odd == a.root:
			b.counts[mate]++
		default:
			b.counts[a.odd]++
		}
	case shares:
		a.odd, b.odd = a.root, a.root
		from := another()
		to := another()
		for to == from {
			to = another()
		}
		a.mates = []int{from, to}
		a.counts[from]++
		b.counts = slices.Clone(a.counts)
		b.counts[from]--
		b.counts[to]++
	}
	return &b
}

// of returns what member me calls.
func (a *arguments) of(me int) *arguments {
	if me == a.odd {
		return a.other
	}
	return a
}

// block returns the elements of a member's block.
func (a *arguments) block(i int) int { return a.counts[i] }

func sum(list []int) (n int) {
	for _, c := range list {
		n += c
	}
	return n
}

// job is the part of one member in a collective.
type job struct {
	a        *arguments
	me       int
	spec     collective.Spec
	src, dst []byte // as they were
	saved    []byte // what the engine restores Dst from
	within   int    // in place: where Dst begins in Src, or Src in Dst
}

// job makes the buffers of member me.
func (a *arguments) job(r *rng, me int) *job {
	j := &job{a: a, me: me}
	own, all, before := 0, sum(a.counts)*elem, 0
	if a.kind != plan.AllToAll {
		own, before = a.block(me)*elem, sum(a.counts[:me])*elem
	}
	src, dst := 0, 0 // bytes
	root := me == a.root
	switch a.kind {
	case plan.AllGather:
		src, dst = own, all
	case plan.ReduceScatter:
		src, dst = all, own
	case plan.Broadcast:
		if src = a.block(0) * elem; !root {
			src, dst = 0, src
		}
	case plan.Reduce:
		if src = a.block(0) * elem; root {
			dst = src
		}
		before = 0
	case plan.Gather:
		if src = own; root {
			dst = all
		}
	case plan.Scatter:
		if dst = own; root {
			src = all
		}
	case plan.AllToAll:
		src, dst = sum(a.sends(me))*elem, sum(a.receives(me))*elem
	}
	s := collective.Spec{Kind: a.kind, Tag: exchangeTag, Root: a.root, DType: a.dt, Op: a.op, Preserve: a.keep>>me&1 != 0}
	switch {
	case a.inPlace>>me&1 == 0 || src == 0 || dst == 0:
		s.Src, s.Dst = r.content(a.dt, src), r.content(a.dt, dst)
		j.within = -1
	case src > dst:
		s.Src = r.content(a.dt, src)
		s.Dst, j.within = s.Src[before:before+dst], before
	default:
		s.Dst = r.content(a.dt, dst)
		s.Src, j.within = s.Dst[before:before+src], before
	}
	switch {
	case a.varied && a.kind == plan.AllToAll:
		s.SendCounts, s.RecvCounts = a.sends(me), a.receives(me)
	case a.varied:
		s.Counts = slices.Clone(a.counts)
	}
	if dst == 0 {
		s.Dst = nil
	}
	j.spec, j.src, j.dst = s, slices.Clone(s.Src), slices.Clone(s.Dst)
	if s.Preserve || j.within >= 0 {
		j.saved = slices.Clone(s.Dst)
	}
	return j
}

func (a *arguments) sends(me int) []int { return slices.Clone(a.counts[me*a.n : (me+1)*a.n]) }

func (a *arguments) receives(me int) (list []int) {
	for i := range a.n {
		list = append(list, a.counts[i*a.n+me])
	}
	return list
}

// content makes up elements whose sums as floats depend on the order.
func (r *rng) content(dt dtype.Type, size int) []byte {
	b := make([]byte, size)
	for at := 0; at < size; at += elem {
		v := r.next()
		if dt == dtype.Float64 {
			v = math.Float64bits(math.Ldexp(float64(int64(v)), r.n(64)-64))
		}
		binary.LittleEndian.PutUint64(b[at:], v)
	}
	return b
}

// combine returns what two elements are together.
func (a *arguments) combine(x, y uint64) uint64 {
	if a.dt == dtype.Float64 {
		f, g := math.Float64frombits(x), math.Float64frombits(y)
		if a.op == dtype.Max {
			return math.Float64bits(max(f, g))
		}
		return math.Float64bits(f + g)
	}
	if a.op == dtype.Max {
		return uint64(max(int64(x), int64(y)))
	}
	return x + y
}

// folded is what the same bytes of all are together, added along the ring from the member
// behind the last one.
func (a *arguments) folded(jobs []*job, ring []int, last, from, to int) []byte {
	at := slices.Index(ring, last)
	var out []byte
	for k := 1; k <= len(ring); k++ {
		in := jobs[ring[(at+k)%len(ring)]].src[from:to]
		if out == nil {
			out = slices.Clone(in)
			continue
		}
		for i := 0; i < len(in); i += elem {
			binary.LittleEndian.PutUint64(out[i:], a.combine(binary.LittleEndian.Uint64(out[i:]), binary.LittleEndian.Uint64(in[i:])))
		}
	}
	return out
}

// promised is what Dst of member me must be when all members have brought their parts:
// jobs in the order of the members, ring in that of the ring.
func promised(jobs []*job, ring []int, me int) (want []byte) {
	j := jobs[me]
	a := j.a
	at := func(list []int, i int) (from, to int) {
		from = sum(list[:i]) * elem
		return from, from + list[i]*elem
	}
	switch a.kind {
	case plan.AllGather:
		for _, o := range jobs {
			want = append(want, o.src...)
		}
	case plan.ReduceScatter:
		from, to := at(a.counts, me)
		want = a.folded(jobs, ring, me, from, to)
	case plan.Broadcast:
		if me == a.root {
			return j.dst // nobody has asked for a copy
		}
		want = jobs[a.root].src
	case plan.Reduce:
		if me == a.root {
			want = a.folded(jobs, ring, me, 0, len(j.src))
		}
	case plan.Gather:
		if me == a.root {
			for _, o := range jobs {
				want = append(want, o.src...)
			}
		}
	case plan.Scatter:
		from, to := at(a.counts, me)
		want = jobs[a.root].src[from:to]
	case plan.AllToAll:
		for i, o := range jobs {
			from, to := at(a.sends(i), me)
			want = append(want, o.src[from:to]...)
		}
	}
	return want
}

// restore is what the engine does to what it has overwritten.
func (j *job) restore(bug mutation) {
	if j.saved != nil && (bug != inPlaceForgotten || j.within < 0) && (bug != outputForgotten || j.within >= 0) {
		copy(j.spec.Dst, j.saved)
	}
}

// spoilt says which buffer is not as it has to be after a failure, "" if all are.
func (j *job) spoilt() string {
	switch {
	case !bytes.Equal(j.spec.Src, j.src):
		return "input"
	case j.spec.Preserve && !bytes.Equal(j.spec.Dst, j.dst):
		return "preserved output"
	}
	return ""
}

// wrong says what is wrong with the buffers after a success, "" if nothing is.
func (j *job) wrong(jobs []*job, ring []int) string {
	want := promised(jobs, ring, j.me)
	if !bytes.Equal(j.spec.Dst, want) {
		return fmt.Sprintf("the result is %x instead of %x", j.spec.Dst, want)
	}
	src := slices.Clone(j.src)
	if j.within >= 0 && len(j.spec.Src) >= len(j.spec.Dst) {
		copy(src[j.within:], want)
	}
	if !bytes.Equal(j.spec.Src, src) {
		return fmt.Sprintf("the input is %x instead of %x", j.spec.Src, src)
	}
	return ""
}

// ringOf returns the ring by the indices of the members.
func ringOf(ring, members []wire.UUID) (order []int) {
	for _, u := range ring {
		order = append(order, slices.Index(members, u))
	}
	return order
}
