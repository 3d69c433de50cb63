package fsm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/wire"
)

func (g *group) tagState(tag uint64) *tagState {
	for _, t := range g.tags {
		if t.tag == tag {
			return t
		}
	}
	return nil
}

// initiate is a vote to start a collective (control spec, section 11).
func (m *Machine) initiate(c *client, p wire.C2MCollectiveCommsInitiate) {
	if c.op(p.Tag) != nil {
		m.kick(c, "collective %d initiated twice", p.Tag)
		return
	}
	if len(c.ops) >= maxOps {
		m.kick(c, "more than %d collectives at once", maxOps)
		return
	}
	c.ops = append(c.ops, clientOp{tag: p.Tag, state: VoteInit, count: p.Count, dtype: p.DType, op: p.Op})
	if c.state != Collective {
		c.set(Collective, m.now)
	}
	g := c.group
	t := g.tagState(p.Tag)
	if t == nil {
		t = &tagState{tag: p.Tag, since: m.now}
		g.tags = append(g.tags, t)
	}
	m.checkCommence(g, t)
}

// checkCommence starts a collective that every accepted member voted for.
func (m *Machine) checkCommence(g *group, t *tagState) {
	ms := m.members(g)
	for _, c := range ms {
		if o := c.op(t.tag); o == nil || o.state != VoteInit {
			return
		}
	}
	if len(ms) == 0 {
		return
	}
	m.commence(t, ms)
	if why := mismatch(t, ms); why != "" {
		m.fact(Fact{Kind: "mismatch", Warn: true, Group: g.id, Text: why})
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
		o.state = VoteComplete
		if o.ahead == aheadAborted {
			m.abort(g, t, errs.RankConnectionLost, "peer "+c.name()+" could not complete the operation")
		}
	}
	if any {
		m.checkComplete(g, t)
	}
}

func (m *Machine) commence(t *tagState, voters []*client) {
	seq := m.seq
	m.seq++
	g := voters[0].group
	over := slices.ContainsFunc(voters, func(c *client) bool { return c.op(t.tag).ahead != aheadNothing })
	g.pace.over = over && (g.pace.over || g.flying == 0)
	g.pace.begins(voters[0].op(t.tag), g.flying == 0, m.now)
	// Nothing is left of an earlier use whose members are all gone.
	t.performed, t.aborted, t.since, t.warned = true, false, m.now, false
	g.flying++
	for _, c := range voters {
		c.op(t.tag).state = Perform
		m.send(c, wire.M2CCollectiveCommsCommence{Tag: t.tag, SeqNr: seq})
	}
}

// mismatch describes how the arguments of a collective differ (quirk Q47),
// "" if they agree.
func mismatch(t *tagState, ms []*client) string {
	first := *ms[0].op(t.tag)
	same := true
	var b strings.Builder
	fmt.Fprintf(&b, "collective %d called with different arguments:", t.tag)
	for i, c := range ms {
		o := c.op(t.tag)
		same = same && o.count == first.count && o.dtype == first.dtype && o.op == first.op
		if i < 16 {
			fmt.Fprintf(&b, " %s: %d x %v %v;", c.name(), o.count, o.dtype, o.op)
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
	if o != nil && o.state == VoteInit && c.eager && o.ahead == aheadNothing {
		// It began without the commence, in a group that may (docs/extensions.md).
		if o.ahead = aheadComplete; p.WasAborted {
			o.ahead = aheadAborted
		}
		return
	}
	if o == nil || o.state != Perform {
		m.kick(c, "collective %d completed without being performed", p.Tag)
		return
	}
	o.state = VoteComplete
	g := c.group
	t := g.tagState(p.Tag)
	if p.WasAborted {
		m.abort(g, t, errs.RankConnectionLost, "peer "+c.name()+" could not complete the operation")
	}
	m.checkComplete(g, t)
}

// performers returns the members that take part in the running collective t.
func (m *Machine) performers(g *group, t *tagState) []*client {
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
	t.aborted, g.pace.spoil = true, true
	for _, c := range m.performers(g, t) {
		p := wire.M2CCollectiveCommsAbort{Tag: t.tag, Aborted: true}
		if c.native {
			p.Ext = wire.Ext{Reason: why, ReasonCode: uint16(code)}
		}
		m.send(c, p)
	}
	m.fact(Fact{Kind: "abort", Group: g.id, Text: fmt.Sprintf("collective %d aborted: %s", t.tag, why)})
}

// checkComplete releases t when nobody performs it any more.
func (m *Machine) checkComplete(g *group, t *tagState) {
	ps := m.performers(g, t)
	for _, c := range ps {
		if c.op(t.tag).state == Perform {
			return
		}
	}
	for _, c := range ps {
		if !t.aborted {
			m.send(c, wire.M2CCollectiveCommsAbort{Tag: t.tag})
		}
		m.send(c, wire.M2CCollectiveCommsComplete{Tag: t.tag})
		c.dropOp(t.tag)
		if len(c.ops) == 0 {
			c.set(Idle, m.now)
		}
	}
	if t.performed {
		t.performed = false
		if g.flying--; g.flying == 0 && len(ps) > 0 {
			m.performed(g)
		}
	}
	if len(ps) == 0 {
		return
	}
	// Votes for the next use of the tag may have come in already from members
	// that were no part of this one.
	t.aborted, t.since, t.warned = false, m.now, false
	m.dropUnused(g, t)
}

func (m *Machine) dropUnused(g *group, t *tagState) {
	used := slices.ContainsFunc(m.clients, func(c *client) bool { return c.group == g && c.op(t.tag) != nil })
	if i := slices.Index(g.tags, t); !used && i >= 0 {
		g.tags = slices.Delete(g.tags, i, i+1)
	}
}

// checkTags re-checks the collectives of g after a member left (control spec,
// section 12, step 7).
func (m *Machine) checkTags(g *group, why string) {
	for _, t := range slices.Clone(g.tags) {
		m.checkCommence(g, t)
		m.checkComplete(g, t)
		for _, c := range m.performers(g, t) {
			if c.op(t.tag).state == Perform {
				m.abort(g, t, errs.RankConnectionLost, why)
				break
			}
		}
		m.dropUnused(g, t)
	}
}
