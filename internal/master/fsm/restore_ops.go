package fsm

import (
	"cmp"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// underway is a collective of which somebody knows the number.
type underway struct {
	tag, seq uint64
	older    bool // it uses the ring before the one in force
	final    bool // somebody was told that it is over
	verdict  *wire.Verdict
	parts    []part
}

// part is what a client has reported of it, while it is not through.
type part struct {
	b *comeback
	o *wire.ReportedOp
}

// through reports whether b has heard of the end of the collective.
func (w *underway) through(b *comeback) bool {
	return slices.ContainsFunc(b.report.Verdicts, func(v wire.ReportedVerdict) bool { return v.Tag == w.tag && v.Seq >= w.seq })
}

// findOps returns the latest collectives with their tags that somebody knows the number
// of, and that not all are through with.
func findOps(n *newest, bs []*comeback) (ws []*underway) {
	by := map[uint64]*underway{}
	known := func(tag, seq uint64) *underway {
		w := by[tag]
		if w == nil {
			w = &underway{tag: tag, seq: seq}
			by[tag] = w
			ws = append(ws, w)
		}
		if seq > w.seq {
			*w = underway{tag: tag, seq: seq}
		}
		return w
	}
	for _, b := range bs {
		if b.report.Round.Decision != n.round {
			continue // what it knows is from before the ring
		}
		for i := range b.report.Verdicts {
			v := &b.report.Verdicts[i]
			if w := known(v.Tag, v.Seq); w.seq == v.Seq {
				w.verdict, w.final = &v.Verdict, true
			}
		}
		for i := range b.report.Ops {
			o := &b.report.Ops[i]
			if o.Step < wire.OpRunning {
				continue
			}
			if w := known(o.Vote.Tag, o.Seq); w.seq == o.Seq {
				w.older = w.older || o.Older
				if o.Heard && !w.final {
					w.verdict = &o.Verdict
				}
			}
		}
	}
	for _, b := range bs {
		for i := range b.report.Ops {
			o := &b.report.Ops[i]
			if w := by[o.Vote.Tag]; w != nil && o.After <= w.seq && !w.through(b) {
				w.parts = append(w.parts, part{b, o})
			}
		}
	}
	ws = slices.DeleteFunc(ws, func(w *underway) bool { return len(w.parts) == 0 })
	slices.SortFunc(ws, func(a, b *underway) int { return cmp.Compare(a.seq, b.seq) })
	return ws
}

// restoreOps goes on with the collectives that somebody has heard the commence of. The
// others hear of it, in the place that it had among the changes of rings.
func (m *Machine) restoreOps(g *group, n *newest, bs []*comeback) {
	ws := findOps(n, bs)
	for _, w := range ws {
		if w.older || w.verdict != nil {
			m.recommence(g, w)
		}
	}
	m.restoreChange(g, n, bs)
	for _, w := range ws {
		if !w.older && w.verdict == nil {
			m.recommence(g, w)
		}
	}
	m.giveUpChanges(g, bs)
	for _, w := range ws {
		m.goOn(g, w)
	}
}

// recommence makes the parts in w what they were, and tells its number to those who
// have only voted.
func (m *Machine) recommence(g *group, w *underway) {
	t := g.tags.get(w.tag)
	if t == nil {
		t = g.tags.add(w.tag, m.now)
	}
	t.performed, t.seq = true, w.seq
	g.flying++
	g.inForce.pace.Spoil()
	for _, p := range w.parts {
		c, v := p.b.c, &p.o.Vote
		if c.state != Collective {
			c.put(Collective, m.now)
		}
		m.numbers.parts++
		g.addOp(c, t, clientOp{n: m.numbers.parts, count: v.Count, dtype: v.DType, op: v.Op, form: v.Form, call: v.Call, told: p.o.Heard, forward: v.Forward})
		c.op(w.tag).to(Perform, m.now)
		p.b.taken = append(p.b.taken, w.tag)
		if p.o.Step < wire.OpRunning {
			m.send(c, wire.M2CCollectiveCommsCommence{Tag: w.tag, SeqNr: w.seq})
		}
	}
}

// goOn tells the verdict on w that some have heard, or comes to one when all have
// reported.
func (m *Machine) goOn(g *group, w *underway) {
	t := g.tags.get(w.tag)
	if v := w.verdict; v != nil {
		// Where somebody was told that all have the result, all do: those who have not heard of the abort
		// before it have to, as what it left may still come.
		stood := !v.Aborted && v.Code == wire.VerdictStood
		t.aborted, t.decided, t.final, t.held = v.Aborted || stood, true, w.final, w.final && stood
		for _, p := range w.parts {
			if o := p.b.c.op(w.tag); t.aborted && !o.told {
				o.told = true
				m.send(p.b.c, wire.M2CCollectiveCommsAbort{Tag: w.tag, Aborted: true, Reason: v.Reason, ReasonCode: v.Code})
			}
		}
	}
	m.compareAgain(g, t, w)
	for _, p := range w.parts {
		if p.o.Step == wire.OpAhead || p.o.Step == wire.OpReported {
			p.b.c.op(w.tag).ends(p.o.Done)
			p.b.c.op(w.tag).to(VoteComplete, m.now)
		}
	}
	for _, p := range w.parts {
		if o := p.o; o.Step != wire.OpVoted && o.Step != wire.OpRunning && o.Done.WasAborted {
			m.abortFor(g, t, p.b.c, disagreement(p.b.c, o.Done), cause(p.b.c, o.Done))
		}
	}
	m.checkComplete(g, t)
}

// compareAgain looks at the arguments of the parts of w again: the master that commenced it
// may have died before it told that they differ.
func (m *Machine) compareAgain(g *group, t *tagState, w *underway) {
	if w.verdict != nil {
		return
	}
	var voters []*client
	for _, p := range w.parts {
		voters = append(voters, p.b.c)
	}
	if allNative(voters) {
		m.compare(g, t, voters)
	}
}

// divides reports whether b is to hear yet that a ring without a leaver is in force.
func (b *comeback) divides(n *newest) bool {
	h := &b.report.Change
	return h.Prepares != 0 && h.Prepares == n.taken && h.Leaver != (wire.UUID{})
}

// restoreChange gives the ring in force to those who have connected for it and were not
// told of it.
func (m *Machine) restoreChange(g *group, n *newest, bs []*comeback) {
	told := wire.M2CSwitchRing{Change: n.taken, Ring: n.ring}
	without := wire.M2CRingWithout{Change: n.taken, Ring: n.ring}
	for _, b := range bs {
		if h, s := &b.report.Change, &b.report.Round; n.taken != 0 && h.Taken == n.taken {
			told.Direct, without.World, without.Largest = h.Direct, s.World, s.Largest
		}
	}
	g.mesh.take(told.Direct, len(g.roster))
	g.learned.last = g.mesh.large
	g.mesh.spares = told.Direct != (wire.Direct{})
	for _, b := range bs {
		h := &b.report.Change
		switch {
		case h.Prepares == 0 || h.Prepares != n.taken:
			continue
		case h.Leaver != (wire.UUID{}):
			m.send(b.c, without)
			if g.mesh.state == meshRefused { // it asks for another one, and all have to know the same
				m.send(b.c, wire.M2CMesh{Change: g.mesh.change, Planner: wire.MeshNone})
			}
		default:
			m.send(b.c, told)
		}
		h.Prepares, h.Leaver = 0, wire.UUID{}
	}
}

// giveUpChanges ends the preparations for rings that nobody has. In one without a member
// that leaves, what had begun eagerly was taken back, and nothing was commenced: those
// who have not heard of it have to do the same.
func (m *Machine) giveUpChanges(g *group, bs []*comeback) {
	var last wire.ReportedChange // of those
	for _, b := range bs {
		if h := &b.report.Change; h.Leaver != (wire.UUID{}) && h.Prepares > last.Prepares {
			last = *h
		}
	}
	for _, b := range bs {
		own := b.report.Change.Prepares
		if own != 0 {
			m.send(b.c, wire.M2CSwitchRing{Change: own})
		}
		step := b.report.Call.Step
		if last.Epoch == 0 || own == last.Prepares || b.c.uuid == last.Leaver || b.c.phase != Accepted || step == wire.StepConnecting || step == wire.StepRing {
			continue
		}
		p := wire.M2CPrepareLeave{Change: last.Prepares, Epoch: last.Epoch, Leaver: last.Leaver}
		for _, u := range g.ring {
			if o := m.uuids[u]; o != nil && o != b.c && u != last.Leaver && len(p.Peers) < 2 {
				p.Peers = append(p.Peers, wire.PeerEndpoint{Addr: o.at(o.listens.p2p), UUID: u})
			}
		}
		if len(p.Peers) > 0 {
			m.send(b.c, p)
			m.send(b.c, wire.M2CSwitchRing{Change: last.Prepares})
		}
	}
}
