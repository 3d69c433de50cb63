package sim

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// Collectives other than all-reduce, one in each loop: kinds_test.go says what is called,
// and blocks_test.go how the data goes.

// Tags of them; those of all-reduces are small.
const (
	barrierTag  = 1 << 40
	exchangeTag = barrierTag + 1
)

// occasion is one such collective, of which the trainers of a group, who keep step,
// call one in each revision. A group that was left by all begins with the first
// revision again, so the members count, too.
type occasion struct {
	group    uint32
	revision uint64
	members  string
}

// gathering is what the members have of it.
type gathering struct {
	arguments *arguments
	jobs      map[wire.UUID]*job // of those that have called it
	verdict   int                // as in record
	by        int
}

// way is what a plan is made of.
type way struct {
	known   bool
	mesh    bool
	members []wire.UUID
	route   string
}

// taken is the way of a collective, as the first member took it that was told.
type taken struct {
	way
	occasion *gathering // nil: an all-reduce
}

func (b *book) occasion(p *peer) *gathering {
	ring := slices.Clone(p.m.View().Ring)
	slices.SortFunc(ring, func(a, b wire.UUID) int { return bytes.Compare(a[:], b[:]) })
	var all strings.Builder
	for _, u := range ring {
		all.Write(u[:])
	}
	k := occasion{p.group, p.memory.revision, all.String()}
	if b.occasions[k] == nil {
		b.occasions[k] = &gathering{arguments: p.w.draw(len(ring)), jobs: map[wire.UUID]*job{}}
	}
	return b.occasions[k]
}

// meet calls a barrier or an all-to-all, now and then when the mesh that others have
// asked for may stand already; then goes on whatever its verdict is.
func (p *peer) meet(then func()) {
	if !p.w.plan.others || p.m.View().LocalWorldSize < 2 {
		then()
		return
	}
	if p.w.rng.chance(3) {
		p.w.after(p.w.rng.between(0, 30*time.Millisecond), p, func() {
			if !p.ended(nil) {
				p.callOther(then)
			}
		})
		return
	}
	p.callOther(then)
}

func (p *peer) callOther(then func()) {
	w, members := p.w, p.m.View().Members
	me := slices.Index(members, p.uuid)
	if me < 0 || len(members) < 2 {
		then()
		return
	}
	g := w.collector.occasion(p)
	a := g.arguments.of(me)
	tag, j := uint64(exchangeTag), a.job(&w.rng, me)
	if a.kind == plan.Barrier {
		tag = barrierTag
	}
	if err := j.spec.Check(a.n, me, true); err != nil {
		w.failf("peer %d: %v", p.id, err)
	}
	p.nextOp++
	o := &op{p: p, id: p.nextOp, tag: tag, vote: j.vote(), meshed: p.m.View().Mesh, occasion: g, job: j}
	if w.bug == rootUnsaid {
		o.vote.Root, o.vote.Digest = 0, 0
	}
	p.ops = append(p.ops, o)
	g.jobs[p.uuid] = j
	p.call("launch another", func(c pfsm.CallID) pfsm.Event {
		p.launches[c] = o
		return pfsm.CallCollective{
			Call: c, Op: o.id, Tag: tag, Count: uint64(j.spec.Count()), DType: a.dt, RedOp: a.op,
			Vote: o.vote, Sends: uint64(j.spec.MostSent(a.n, false)), Direct: uint64(j.spec.MostSent(a.n, true)), Far: p.line.remote,
		}
	}, func(d pfsm.Done) {
		if d.Err != nil && !p.over && !errors.Is(d.Err, errs.Canceled) && !errors.Is(d.Err, errs.TooFewPeers) {
			w.failf("peer %d: launch: %v", p.id, d.Err)
		}
	})
	p.awaitOne(o, func([]uint64) {
		if o.refused && p.m.View().LocalWorldSize > 1 { // given up before its launch, and the others count on it
			p.leave()
			return
		}
		then()
	})
}

// failed checks the error of a collective that has failed: of a kind that says what to do.
func (b *book) failed(w *world, op *op, err error) {
	a := op.occasion.arguments
	switch {
	case errors.Is(err, errs.Mismatch):
		b.others.mismatches[a.how]++
		if a.odd < 0 && op.occasion.complete(w, op) { // and no member called it when there were more members
			w.failf("peer %d: %v: all have called the same: %v", op.p.id, a.kind, err)
		}
	case errors.Is(err, errs.InvalidArgument):
		if !op.misfit {
			w.failf("peer %d: %v: %v", op.p.id, a.kind, err)
		}
	case op.misfit && w.struck == 0 && w.heirs.kills == 0 && op.occasion.complete(w, op):
		w.failf("peer %d: %v: the arguments do not fit, and the error is %v", op.p.id, a.kind, err)
	case errors.Is(err, errs.Canceled):
	case errors.Is(err, errs.RankConnectionLost):
		// Behind a leave, and until a round, it is taken for the arguments of other members.
		excused := b.drained > 0 && a.how != kinds && a.how != types && a.how != operations && strings.Contains(err.Error(), "a peer has left since some members launched it")
		if a.odd >= 0 && !excused && w.struck == 0 && w.heirs.kills == 0 && op.occasion.complete(w, op) {
			w.failf("peer %d: %v called with different %s: %v", op.p.id, a.kind, differenceNames[a.how], err)
		}
	default:
		w.failf("peer %d: %v: %v", op.p.id, a.kind, err)
	}
}

// complete reports whether all members have called it, and are there.
func (g *gathering) complete(w *world, op *op) bool {
	for _, u := range op.way.members {
		if p := w.byUUID(u); g.jobs[u] == nil || p.over || p.dead {
			return false
		}
	}
	return op.way.known
}

// planned checks that all members of a collective go the same way.
func (b *book) planned(w *world, op *op) {
	if !op.way.known || op.job != nil && op.job.me == op.occasion.arguments.odd {
		return
	}
	was := b.ways[op.seq]
	if !was.known {
		b.ways[op.seq] = taken{op.way, op.occasion}
		return
	}
	if was.occasion != op.occasion {
		return // one was called when there were more members, which the master tells all of them
	}
	if was.mesh != op.way.mesh || was.route != op.way.route || !slices.Equal(was.members, op.way.members) {
		w.failf("operation %d: peer %d goes another way than others, mesh %v and %v, %q and %q", op.seq, op.p.id, op.way.mesh, was.mesh, op.way.route, was.route)
	}
}

// met checks the buffers and the verdict of such a collective: the same for all, and no
// success without a member that was counted.
func (b *book) met(w *world, op *op) {
	if op.restored {
		b.others.broken++
		if buffer := op.job.spoilt(); buffer != "" {
			w.failf("peer %d: the %s of a failed %v is not as it was", op.p.id, buffer, op.job.a.kind)
		}
	} else {
		b.checkOther(w, op)
	}
	if op.canceled || !op.p.m.View().Connected {
		return
	}
	g, verdict := op.occasion, 1
	if op.restored {
		verdict = 2
	}
	if g.verdict != 0 && g.verdict != verdict && !w.forgotten(g.by) && !w.forgotten(op.p.id) {
		w.failf("%v: peer %d says %d, peer %d said %d (1 success, 2 failure)", plan.Kind(op.vote.Kind), op.p.id, verdict, g.by, g.verdict)
	}
	g.verdict, g.by = verdict, op.p.id
	if verdict == 2 {
		return
	}
	b.others.gathered++
}

// checkOther checks the result of op against what all its members have brought.
func (b *book) checkOther(w *world, op *op) {
	members := op.p.m.View().Members
	if op.way.known {
		members = op.way.members
	}
	var jobs []*job
	for _, u := range members {
		j := op.occasion.jobs[u]
		if j == nil {
			w.failf("peer %d passes a %v that %s has not called", op.p.id, op.job.a.kind, u.Short())
			return
		}
		jobs = append(jobs, j)
	}
	if a := op.occasion.arguments; a.odd >= 0 {
		if op.unseen(members) {
			return
		}
		w.failf("peer %d: a %v succeeded that peers have called with different %s", op.p.id, a.kind, differenceNames[a.how])
		return
	}
	if op.job.a.kind == plan.Barrier {
		return
	}
	if what := op.job.wrong(jobs, ringOf(op.ring, members)); what != "" {
		w.failf("peer %d: %v of %d, root %d: %s", op.p.id, op.job.a.kind, len(members), op.job.a.root, what)
	}
}

// unseen reports whether of the members that are left none can see that they have called
// different things: who differs may have gone before it could say so, or all others, or the
// only one who could see it.
func (op *op) unseen(members []wire.UUID) bool {
	a, others := op.occasion.arguments, 0
	for i, u := range members {
		gone := op.p.without(u)
		if gone && (i == a.odd || slices.Contains(a.mates, i)) {
			return true
		}
		if !gone && i != a.odd {
			others++
		}
	}
	return others == 0
}

// without reports whether a member is gone, as far as p can know.
func (p *peer) without(u wire.UUID) bool {
	o := p.w.byUUID(u)
	return o.over || o.dead || slices.Contains(p.dropped, u)
}

// metered reports whether the time of op tells the rate of a link of the ring.
func (op *op) metered() bool {
	k := plan.Kind(op.vote.Kind)
	return k == plan.AllReduce || k == plan.AllGather || k == plan.ReduceScatter
}

// prepareMesh opens send pools to the other members.
func (p *peer) prepareMesh(e pfsm.PrepareMesh) {
	p.mesh.meshing = e.Change
	if p.w.plan.alone {
		p.w.after(time.Millisecond, p, func() {
			if p.mesh.meshing == e.Change {
				p.mesh.meshing = 0
				p.step(pfsm.MeshPrepared{Change: e.Change, Failed: p.m.View().Members[:1]})
			}
		})
		return
	}
	p.connectTo(e.Peers, func() bool { return p.mesh.meshing == e.Change }, func(failed []wire.UUID) {
		p.mesh.meshing = 0
		p.step(pfsm.MeshPrepared{Change: e.Change, Failed: failed, Ways: p.ways(e.Ways)})
	})
}

// meshNews checks the order of what the master says of a mesh and of what uses it. What is aborted in the
// same breath uses nothing.
func (b *book) meshNews(w *world, p *peer, pkt wire.Packet) {
	if o := b.unmeshed[p.id]; o != nil {
		delete(b.unmeshed, p.id)
		if a, ok := pkt.(wire.M2CCollectiveCommsAbort); !ok || !a.Aborted || a.Tag != o.tag {
			w.failf("a %v is commenced at peer %d while its mesh is prepared", o.job.a.kind, p.id)
		}
	}
	switch pkt := pkt.(type) {
	case wire.M2CPrepareMesh:
		b.meshing[p.id] = true
	case wire.M2CMesh, wire.M2CP2PConnectionInfo:
		delete(b.meshing, p.id)
	case wire.M2CCollectiveCommsCommence:
		for _, o := range p.ops {
			if o.tag == pkt.Tag && !o.finished && o.vote.Flags&wire.CallMesh != 0 && b.meshing[p.id] {
				b.unmeshed[p.id] = o
			}
		}
	}
}

// disguise is what a master with a bug says to p in the place of pkt; nil: it says
// it later.
func (w *world) disguise(p *peer, pkt wire.Packet) []wire.Packet {
	switch {
	case w.bug == membersByUUID && p.id%2 == 0:
		if info, ok := pkt.(wire.M2CP2PConnectionInfo); ok {
			info.Ext.Members = slices.SortedFunc(slices.Values(info.Ext.Members), wire.UUID.Compare)
			return []wire.Packet{info}
		}
	case w.bug == meshNewsLate && p.id%2 == 0:
		if m, ok := pkt.(wire.M2CMesh); ok {
			p.mesh.late = m
			return nil
		}
		if late := p.mesh.late; late != nil {
			p.mesh.late = nil
			return []wire.Packet{pkt, late}
		}
	}
	return []wire.Packet{pkt}
}
