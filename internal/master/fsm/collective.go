package fsm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
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
	if why := c.group.impossible(c, p.Call); why != "" {
		m.kick(c, "collective %d is a %v: %s", p.Tag, plan.Kind(p.Call.Kind), why)
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
	g.addOp(c, t, clientOp{n: m.numbers.parts, count: p.Count, dtype: p.DType, op: p.Op, form: p.Form, call: p.Call, forward: p.Forward})
	if p.Call.Flags&wire.CallMesh != 0 {
		m.wantMesh(g)
	}
	m.checkCommence(g, t)
}

// impossible says why no peer of ours would send a vote for such a collective, "" if
// one would.
func (g *group) impossible(c *client, call wire.Call) string {
	k := plan.Kind(call.Kind)
	switch {
	case k == plan.AllReduce:
		return ""
	case !k.Valid():
		return "its kind is unknown"
	case !c.can.collectives:
		return "it has not announced them"
	case g.lacks != "":
		return g.lacks
	case k.Rooted() && uint64(call.Root) >= uint64(len(g.roster)+g.left), !k.Rooted() && call.Root != 0:
		return fmt.Sprintf("no member has the index of its root, %d", call.Root)
	}
	return ""
}

// checkCommence starts a collective that every accepted member voted for.
func (m *Machine) checkCommence(g *group, t *tagState) {
	ms := m.members(g)
	if len(ms) == 0 || t.voters() != len(ms) {
		return
	}
	if g.mesh.state == meshPreparing && wantsMesh(t, ms) {
		return // settleMesh looks again
	}
	m.commence(t, ms)
	m.compare(g, t, ms)
	if ms[0].op(t.tag).call.Kind != 0 {
		if why := m.departed(g); why != "" {
			m.abort(g, t, errs.RankConnectionLost, why)
		}
	}
	m.catchUp(g, t, ms)
}

// compare aborts t if its voters do not pass the same arguments.
func (m *Machine) compare(g *group, t *tagState, voters []*client) {
	names, why := mismatch(t, voters)
	switch kind := plan.Kind(voters[0].op(t.tag).call.Kind); {
	case why == "":
	case g.left > 0 && ofOtherMembers(kind, names):
		// Roots and counts are of the members that there were at the launch. If it is not
		// that, it is a mismatch again after the round that follows.
		m.abort(g, t, errs.RankConnectionLost, "a peer has left since some members launched it, with other arguments than those that launched it later")
	default:
		t.final = true
		m.tell(g, "mismatch", true, "%s", why)
		if allNative(voters) {
			m.abort(g, t, errs.Mismatch, why)
		}
	}
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
			o.lacks = true
			m.abortFor(g, t, c, o.why, "")
		}
	}
	if any {
		m.checkComplete(g, t)
	}
}

func (m *Machine) commence(t *tagState, voters []*client) {
	m.recovery.youth.grow()
	seq := m.numbers.collectives
	m.numbers.collectives++
	g := voters[0].group
	early := slices.ContainsFunc(voters, func(c *client) bool { return c.op(t.tag).ahead != aheadNothing })
	first := voters[0].op(t.tag)
	g.inForce.pace.Begin(first.count*uint64(first.dtype.Size()), g.flying == 0, early, m.now)
	if first.call.Kind != 0 || g.mesh.exchanged(first.count*uint64(first.dtype.Size())) {
		g.inForce.pace.Spoil() // rings are compared by what uses them
	}
	g.learned.begin(m.planned(g, first, early))
	// Nothing is left of an earlier use whose members are all gone.
	t.over(m)
	t.performed, t.seq = true, seq
	g.flying++
	p := wire.Packet(wire.M2CCollectiveCommsCommence{Tag: t.tag, SeqNr: seq, Forward: !m.recovery.counts && forwards(t, voters)})
	for _, c := range voters {
		c.op(t.tag).to(Perform, m.now)
		m.send(c, p)
	}
}

// planned says of a collective that is commenced what its plan can be judged by: its
// bytes, 0 if it shows nothing, its plan, and whether it runs alone.
func (m *Machine) planned(g *group, o *clientOp, early bool) (bytes uint64, name string, alone bool, now time.Duration) {
	if o.call.Kind != 0 || o.form.Algorithm != wire.FormAsIs || early {
		return 0, "", false, m.now
	}
	bytes, name = o.count*uint64(o.dtype.Size()), ringName
	at := g.mesh.large.For(bytes)
	switch {
	case at != nil:
		name = at.Scheme.Name
	case g.mesh.exchanged(bytes): // it says nothing of the ring
		return 0, "", false, m.now
	}
	return bytes, name, g.flying == 0, m.now
}

// agree reports whether the votes for a collective pass the same arguments.
func agree(t *tagState, ms []*client) bool {
	first, form := ms[0].op(t.tag), wire.WireForm{}
	for _, c := range ms {
		o := c.op(t.tag)
		if !o.agrees(first) || !o.form.Agrees(form) {
			return false
		}
		if o.form.Told {
			form = o.form
		}
	}
	return true
}

// mismatch returns in which arguments the votes for a collective differ, and says whose are
// which (quirk Q47); "" if they agree.
func mismatch(t *tagState, ms []*client) (names []string, why string) {
	if agree(t, ms) {
		return nil, ""
	}
	first := *ms[0].op(t.tag)
	form := wire.WireForm{}
	var b strings.Builder
	for i, c := range ms {
		o := c.op(t.tag)
		names = o.differs(&first, form, names)
		if o.form.Told {
			form = o.form
		}
		if i < 16 {
			fmt.Fprintf(&b, " %s: %s", c.name(), o)
			if o.form.Told {
				fmt.Fprintf(&b, " %v", o.form)
			}
			b.WriteByte(';')
		}
	}
	if len(names) == 0 {
		names = []string{"arguments"}
	}
	return names, fmt.Sprintf("collective %d called with different %s:%s", t.tag, strings.Join(names, ", "), strings.TrimSuffix(b.String(), ";"))
}

// ofOtherMembers reports whether arguments of a kind differ, by their names, in nothing but what
// depends on who the members are.
func ofOtherMembers(k plan.Kind, names []string) bool {
	return k != plan.AllReduce && !slices.ContainsFunc(names, func(name string) bool {
		return name != "roots" && name != "counts" && name != "lists of counts"
	})
}

// differs adds the names of the arguments in which two members differ to names.
func (o *clientOp) differs(p *clientOp, form wire.WireForm, names []string) []string {
	a, b := o.call, p.call
	counts := a.Flags&wire.CallCounts != 0 && b.Flags&wire.CallCounts != 0
	rest := a
	rest.Digest, rest.Sum = b.Digest, b.Sum
	for _, x := range []struct {
		name    string
		differs bool
	}{
		{"kinds", a.Kind != b.Kind},
		{"roots", a.Root != b.Root},
		{"counts", !counts && o.count != p.count || a.Kind == b.Kind && (a.Flags^b.Flags)&wire.CallCounts != 0},
		{"types", o.dtype != p.dtype},
		{"operations", o.op != p.op},
		{"quantizations", !o.form.Agrees(form) || a.WireType != b.WireType},
		{"lists of counts", rest == b && a.Digest != b.Digest && o.form.Agrees(form)},
	} {
		if x.differs && !slices.Contains(names, x.name) {
			names = append(names, x.name)
		}
	}
	return names
}

// agrees reports whether the members whose parts these are pass the same arguments.
func (o *clientOp) agrees(p *clientOp) bool {
	counts := o.call.Flags&wire.CallCounts != 0 || o.count == p.count
	return counts && o.dtype == p.dtype && o.op == p.op && o.call.Agrees(p.call)
}

// String says what was called.
func (o *clientOp) String() string {
	k := plan.Kind(o.call.Kind)
	if k == plan.Barrier {
		return k.String()
	}
	what := fmt.Sprintf("%d x %v %v", o.count, o.dtype, o.op)
	if k == plan.AllReduce {
		return what
	}
	what = fmt.Sprintf("%v of %s", k, what)
	if k.Rooted() {
		what += fmt.Sprintf(", root %d", o.call.Root)
	}
	return fmt.Sprintf("%s, flags %d, digest %x", what, o.call.Flags, o.call.Digest)
}

// complete ends a member's data phase (control spec, section 11).
func (m *Machine) complete(c *client, p wire.C2MCollectiveCommsComplete) {
	o := c.op(p.Tag)
	if o != nil && p.WasAborted && plan.Kind(o.call.Kind) != plan.AllReduce && m.giveUp(c, o) {
		return
	}
	if o != nil && o.state == VoteInit && c.can.eager && o.ahead == aheadNothing {
		// It began without the commence, in a group that may (docs/spec/extensions.md).
		o.ends(p)
		if o.ahead = aheadComplete; p.WasAborted {
			m.hurryAway(c.group)
			o.ahead, o.why = aheadAborted, disagreement(c, p)
			if o.forward && c.can.forward {
				o.quits = true
				m.send(c, wire.M2CGivenUp{Tag: p.Tag})
			}
		}
		return
	}
	if o == nil || o.state != Perform {
		m.kick(c, "collective %d completed without being performed", p.Tag)
		return
	}
	o.to(VoteComplete, m.now)
	g, t := c.group, o.t
	if o.asked {
		m.kick(c, "collective %d completed instead of its result", p.Tag)
		return
	}
	if o.ends(p); o.failedTwice() {
		m.kick(c, "could not take the result of collective %d", p.Tag)
		return
	}
	if p.WasAborted {
		m.abortFor(g, t, c, disagreement(c, p), cause(c, p))
		m.hurryAway(g)
	}
	m.checkComplete(g, t)
}

// disagreement returns what c has found out about the arguments of another member, ""
// if it was aborted for another reason.
func disagreement(c *client, p wire.C2MCollectiveCommsComplete) string {
	if c.can.collectives && errs.Code(p.ReasonCode) == errs.Mismatch {
		return p.Reason
	}
	return ""
}

// cause returns why c was aborted, "" if that is a disagreement or it does not say.
func cause(c *client, p wire.C2MCollectiveCommsComplete) string {
	if c.can.collectives && errs.Code(p.ReasonCode) != errs.Mismatch {
		return p.Reason
	}
	return ""
}

// abortFor aborts t because c could not complete it: it disagrees with another member, or has another cause.
func (m *Machine) abortFor(g *group, t *tagState, c *client, disagrees, cause string) {
	if disagrees != "" {
		m.abort(g, t, errs.Mismatch, "at peer "+c.name()+", "+disagrees)
		return
	}
	why := "peer " + c.name() + " could not complete the operation"
	if cause != "" {
		why += ": " + cause
	}
	m.abort(g, t, errs.RankConnectionLost, why)
}

// giveUp takes the word of a member that had said it was through, of a kind in which that
// shows nothing about the others, and whose caller does not wait for them; false if it is
// not that.
func (m *Machine) giveUp(c *client, o *clientOp) bool {
	switch {
	case o.state == VoteInit && o.ahead == aheadComplete:
		o.ahead = aheadAborted
	case o.state == VoteComplete:
		m.abort(c.group, o.t, errs.RankConnectionLost, "peer "+c.name()+" has given it up")
	default:
		return false
	}
	return true
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
	if t.aborted || t.decided {
		return
	}
	t.aborted = true
	g.inForce.pace.Spoil()
	g.learned.now = running{}
	plain := wire.Packet(wire.M2CCollectiveCommsAbort{Tag: t.tag, Aborted: true})
	own := wire.Packet(wire.M2CCollectiveCommsAbort{Tag: t.tag, Aborted: true, Reason: why, ReasonCode: uint16(code)})
	for _, c := range m.performers(g, t) {
		if c.op(t.tag).told {
			continue
		}
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
	if t.ops[Perform] > 0 || m.rescue(g, t) {
		return
	}
	ps := m.performers(g, t)
	over, complete := wire.Packet(wire.M2CCollectiveCommsAbort{Tag: t.tag}), wire.Packet(wire.M2CCollectiveCommsComplete{Tag: t.tag, Held: t.held})
	for _, c := range ps {
		if !t.aborted && !c.op(t.tag).told {
			m.send(c, over)
		}
		m.send(c, complete)
		g.dropOp(c, t)
		if len(c.ops.by) == 0 {
			c.set(Idle, m.now)
		}
	}
	if t.performed {
		t.performed = false
		if g.flying--; g.flying == 0 && len(ps) > 0 {
			m.timeRing(g)
			m.timePlan(g)
			m.offerAgain(g)
		}
	}
	if len(ps) == 0 {
		m.freed, t.forward = m.freed || t.rescued, forward{}
		return
	}
	// Votes for the next use of the tag may have come in already from members
	// that were no part of this one.
	t.over(m)
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
