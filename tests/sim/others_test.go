package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// Collectives other than all-reduce: barriers, and all-to-alls over a mesh whose
// data phase is opaque. It ends when all members have begun it, and fails with the
// connections that its plan uses.

// Tags of both; those of all-reduces are small.
const (
	barrierTag  = 1 << 40
	exchangeTag = barrierTag + 1
)

// other is the data phase of such an operation.
type other struct {
	members []wire.UUID
	mesh    bool
}

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
	launched map[wire.UUID]bool
	begun    map[wire.UUID]*op
	verdict  int // as in record
	by       int
}

// way is what a plan is made of.
type way struct {
	known   bool
	mesh    bool
	members []wire.UUID
	route   string
}

func (b *book) occasion(p *peer) *gathering {
	ring := slices.Clone(p.m.View().Ring)
	slices.SortFunc(ring, func(a, b wire.UUID) int { return bytes.Compare(a[:], b[:]) })
	k := occasion{p.group, p.memory.revision, fmt.Sprint(ring)}
	if b.occasions[k] == nil {
		b.occasions[k] = &gathering{launched: map[wire.UUID]bool{}, begun: map[wire.UUID]*op{}}
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
	tag, vote := uint64(exchangeTag), wire.Call{Kind: uint8(plan.AllToAll), Flags: wire.CallMesh}
	if p.memory.revision%3 == 0 {
		tag, vote = barrierTag, wire.Call{Kind: uint8(plan.Barrier)}
	}
	p.nextOp++
	o := &op{p: p, id: p.nextOp, tag: tag, vote: vote, meshed: p.m.View().Mesh, occasion: p.w.collector.occasion(p)}
	p.ops = append(p.ops, o)
	o.occasion.launched[p.uuid] = true
	p.call("launch another", func(c pfsm.CallID) pfsm.Event {
		p.launches[c] = o
		return pfsm.CallCollective{Call: c, Op: o.id, Tag: tag, DType: dtype.Int64, RedOp: dtype.Sum, Vote: vote, Sends: 16}
	}, func(d pfsm.Done) {
		if d.Err != nil && !p.over && !errors.Is(d.Err, errs.Canceled) && !errors.Is(d.Err, errs.TooFewPeers) {
			p.w.failf("peer %d: launch: %v", p.id, d.Err)
		}
	})
	p.awaitOne(o, func([]uint64) { then() })
}

// startOther begins the data phase.
func (op *op) startOther(e pfsm.StartData) {
	p, w := op.p, op.p.w
	op.seq, op.epoch, op.eager, op.open, op.ring = e.Seq, e.Epoch, e.Eager, true, slices.Clone(e.Ring)
	if w.bug == meshOfLaunch {
		e.Mesh = op.meshed
	}
	op.other = &other{e.Members, e.Mesh}
	op.way = way{true, e.Mesh, e.Members, ""}
	if !op.eager {
		op.commence(e.Seq)
	}
	if e.Mesh {
		w.collector.meshes++
	}
	for _, o := range w.peers {
		if op.needs(o) && !w.link(p, o).alive {
			op.end(lost(o))
			return
		}
	}
	op.occasion.begun[p.uuid] = op
	for _, u := range e.Members {
		if op.occasion.begun[u] == nil {
			return
		}
	}
	for _, u := range e.Members {
		o := op.occasion.begun[u]
		w.after(w.rng.between(0, 3*time.Millisecond), o.p, func() { o.end(nil) })
	}
}

// needs reports whether the data phase sends to o.
func (op *op) needs(o *peer) bool {
	if op.other == nil || o == op.p {
		return false
	}
	if op.other.mesh {
		return slices.Contains(op.other.members, o.uuid)
	}
	i := slices.Index(op.ring, op.p.uuid)
	return op.ring[(i+1)%len(op.ring)] == o.uuid
}

// planned checks that all members of a collective go the same way.
func (b *book) planned(w *world, op *op) {
	if !op.way.known {
		return
	}
	was := b.ways[op.seq]
	if !was.known {
		b.ways[op.seq] = op.way
		return
	}
	if was.mesh != op.way.mesh || was.route != op.way.route || !slices.Equal(was.members, op.way.members) {
		w.failf("operation %d: peer %d goes another way than others, mesh %v and %v, %q and %q", op.seq, op.p.id, op.way.mesh, was.mesh, op.way.route, was.route)
	}
}

// met checks the verdict of such a collective: the same for all, and no success
// without a member that was counted.
func (b *book) met(w *world, op *op) {
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
	b.gathered++
	for _, u := range op.p.m.View().Members {
		if !g.launched[u] {
			w.failf("peer %d passes a %v that %s has not called", op.p.id, plan.Kind(op.vote.Kind), u.Short())
		}
	}
}

// prepareMesh opens send pools to the other members.
func (p *peer) prepareMesh(e pfsm.PrepareMesh) {
	p.mesh.meshing = e.Change
	p.connectTo(e.Peers, func() bool { return p.mesh.meshing == e.Change }, func(failed []wire.UUID) {
		p.mesh.meshing = 0
		p.step(pfsm.MeshPrepared{Change: e.Change, Failed: failed, Ways: p.ways(e.Ways)})
	})
}

// meshNews checks the order of what the master says of a mesh and of what uses it.
func (b *book) meshNews(w *world, p *peer, pkt wire.Packet) {
	switch pkt := pkt.(type) {
	case wire.M2CPrepareMesh:
		b.meshing[p.id] = true
	case wire.M2CMesh, wire.M2CP2PConnectionInfo:
		delete(b.meshing, p.id)
	case wire.M2CCollectiveCommsCommence:
		if pkt.Tag == exchangeTag && b.meshing[p.id] {
			w.failf("an all-to-all is commenced at peer %d while its mesh is prepared", p.id)
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
