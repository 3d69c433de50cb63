package fsm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// initiate is a vote to start a collective (control spec, section 11).
func (m *Machine) initiate(c *client, p wire.C2MCollectiveCommsInitiate) {
	if c.op(p.Tag) != nil {
		m.kick(c, "collective %d initiated twice", p.Tag)
		return
	}
	if len(c.ops.by) >= maxOps {
		m.kick(c, "more than %d collectives at once", maxOps)
		return
	}
	if c.state != Collective {
		c.set(Collective, m.now)
	}
	g := c.group
	t := g.tags.get(p.Tag)
	if t == nil {
		t = g.tags.add(p.Tag, m.now)
	}
	m.numbers.parts++
	g.addOp(c, t, clientOp{n: m.numbers.parts, count: p.Count, dtype: p.DType, op: p.Op, form: p.Form})
	m.checkCommence(g, t)
}

// checkCommence starts a collective that every accepted member voted for.
func (m *Machine) checkCommence(g *group, t *tagState) {
	ms := m.members(g)
	if len(ms) == 0 || t.voters() != len(ms) {
		return
	}
	m.commence(t, ms)
	if why := mismatch(t, ms); why != "" {
		m.tell(g, "mismatch", true, "%s", why)
		if allNative(ms) {
			m.abort(g, t, errs.Mismatch, why)
		}
	}
	m.catchUp(g, t, ms)
}

// catchUp counts the votes that members which began before the commence have
// cast already, for a collective that has just been commenced for them.
func (m *Machine) catchUp(g *group, t *tagState, voters []*client) {
	any := false
	for _, c := range voters {
		o := c.op(t.tag)
		if o.ahead == aheadNothing {
			continue
		}
		any = true
		o.to(VoteComplete, m.now)
		if o.ahead == aheadAborted {
			m.abort(g, t, errs.RankConnectionLost, "peer "+c.name()+" could not complete the operation")
		}
	}
	if any {
		m.checkComplete(g, t)
	}
}

func (m *Machine) commence(t *tagState, voters []*client) {
	seq := m.numbers.collectives
	m.numbers.collectives++
	g := voters[0].group
	early := slices.ContainsFunc(voters, func(c *client) bool { return c.op(t.tag).ahead != aheadNothing })
	first := voters[0].op(t.tag)
	g.inForce.pace.Begin(first.count*uint64(first.dtype.Size()), g.flying == 0, early, m.now)
	// Nothing is left of an earlier use whose members are all gone.
	t.performed, t.aborted, t.wait = true, false, wait{since: m.now}
	g.flying++
	p := wire.Packet(wire.M2CCollectiveCommsCommence{Tag: t.tag, SeqNr: seq})
	for _, c := range voters {
		c.op(t.tag).to(Perform, m.now)
		m.send(c, p)
	}
}

// mismatch describes how the arguments of a collective differ (quirk Q47),
// "" if they agree.
func mismatch(t *tagState, ms []*client) string {
	first := *ms[0].op(t.tag)
	same, form := true, wire.WireForm{}
	var b strings.Builder
	fmt.Fprintf(&b, "collective %d called with different arguments:", t.tag)
	for i, c := range ms {
		o := c.op(t.tag)
		same = same && o.count == first.count && o.dtype == first.dtype && o.op == first.op && o.form.Agrees(form)
		if o.form.Told {
			form = o.form
		}
		if i < 16 {
			fmt.Fprintf(&b, " %s: %d x %v %v", c.name(), o.count, o.dtype, o.op)
			if o.form.Told {
				fmt.Fprintf(&b, " %v", o.form)
			}
			b.WriteByte(';')
		}
	}
	if same {
		return ""
	}
	return strings.TrimSuffix(b.String(), ";")
}

// complete ends a member's data phase (control spec, section 11).
func (m *Machine) complete(c *client, p wire.C2MCollectiveCommsComplete) {
	o := c.op(p.Tag)
	if o != nil && o.state == VoteInit && c.can.eager && o.ahead == aheadNothing {
		// It began without the commence, in a group that may (docs/spec/extensions.md).
		if o.ahead = aheadComplete; p.WasAborted {
			o.ahead = aheadAborted
		}
		return
	}
	if o == nil || o.state != Perform {
		m.kick(c, "collective %d completed without being performed", p.Tag)
		return
	}
	o.to(VoteComplete, m.now)
	g, t := c.group, o.t
	if p.WasAborted {
		m.abort(g, t, errs.RankConnectionLost, "peer "+c.name()+" could not complete the operation")
	}
	m.checkComplete(g, t)
}

// performers returns the members that take part in the running collective t.
func (m *Machine) performers(g *group, t *tagState) []*client {
	if t.runs() == 0 {
		return nil
	}
	var ps []*client
	for _, c := range m.members(g) {
		if o := c.op(t.tag); o != nil && o.state != VoteInit {
			ps = append(ps, c)
		}
	}
	return ps
}

// abort tells the members that t is lost, once.
func (m *Machine) abort(g *group, t *tagState, code errs.Code, why string) {
	if t.aborted {
		return
	}
	t.aborted = true
	g.inForce.pace.Spoil()
	plain := wire.Packet(wire.M2CCollectiveCommsAbort{Tag: t.tag, Aborted: true})
	own := wire.Packet(wire.M2CCollectiveCommsAbort{Tag: t.tag, Aborted: true, Ext: wire.Ext{Reason: why, ReasonCode: uint16(code)}})
	for _, c := range m.performers(g, t) {
		if c.native {
			m.send(c, own)
		} else {
			m.send(c, plain)
		}
	}
	m.tell(g, "abort", false, "collective %d aborted: %s", t.tag, why)
}

// checkComplete releases t when no member performs it any more.
func (m *Machine) checkComplete(g *group, t *tagState) {
	if t.ops[Perform] > 0 {
		return
	}
	ps := m.performers(g, t)
	for _, c := range ps {
		if !t.aborted {
			m.send(c, wire.M2CCollectiveCommsAbort{Tag: t.tag})
		}
		m.send(c, wire.M2CCollectiveCommsComplete{Tag: t.tag})
		g.dropOp(c, t)
		if len(c.ops.by) == 0 {
			c.set(Idle, m.now)
		}
	}
	if t.performed {
		t.performed = false
		if g.flying--; g.flying == 0 && len(ps) > 0 {
			m.timeRing(g)
		}
	}
	if len(ps) == 0 {
		return
	}
	// Votes for the next use of the tag may have come in already from members
	// that were no part of this one.
	t.aborted, t.wait = false, wait{since: m.now}
	dropUnused(g, t)
}

func dropUnused(g *group, t *tagState) {
	if t.voters() == 0 && t.runs() == 0 {
		g.tags.drop(t)
	}
}

// checkTags re-checks the collectives of g after a member left (control spec,
// section 12, step 7).
func (m *Machine) checkTags(g *group, why string) {
	for t := range g.tags.all() {
		m.checkCommence(g, t)
		m.checkComplete(g, t)
		if t.ops[Perform] > 0 {
			m.abort(g, t, errs.RankConnectionLost, why)
		}
		dropUnused(g, t)
	}
}
