package fsm

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// The world of a master that has gone is made again from what its peers hold: what one
// of them was told is decided, and the others are told the same under the same number;
// what nobody was told is decided again, from votes that count as sent now
// (docs/spec/extensions.md, "Recovery").

// rebuild makes the world, and ends the recovery.
func (m *Machine) rebuild(gs []*newest) {
	r := m.recovery
	m.recovery = recovery{over: true, youth: r.youth}
	if !r.again && slices.ContainsFunc(r.back, (*comeback).hasMet) {
		m.recovery.youth.grow()
	}
	if r.again {
		m.recovery.calm = m.now + m.cfg.Linger/returnsTaken
	}
	m.fact(Fact{Kind: "recovered", Text: fmt.Sprintf("%d peers have come back after %v", len(r.back), m.now-r.since)})
	var bs []*comeback
	for _, b := range r.back {
		i, _ := slices.BinarySearchFunc(gs, b.group, func(g *newest, id uint32) int { return int(g.id) - int(id) })
		if b.beside(gs[i]) {
			m.sendBack(b.c)
			continue
		}
		if s := &b.report.Round; s.Decision != 0 && s.Decision < gs[i].round && !b.awaits(gs[i]) {
			if !b.hasMet() { // it has nothing in flight with others
				m.sendBack(b.c)
				continue
			}
			m.turnBack(b, "the ring of its group is newer than the one that it was in: it was away for too long")
			continue
		}
		if b.outvoted(r.back) {
			m.turnBack(b, "the others were told that it has been dropped, and have gone on without it")
			continue
		}
		if b.report.Leaving && b.report.Round.Decision != 0 && !slices.Contains(gs[i].ring, b.c.uuid) {
			m.turnBack(b, "the others go on without it") // as it has asked for
			continue
		}
		if b.stray(gs[i], r.back) {
			m.recovery.add(b)
			m.takeLate(b)
			continue
		}
		bs = append(bs, b)
	}
	bs = m.doubt(bs, &r)
	m.readmit(bs)
	m.takeStates(r.states)
	for _, n := range gs {
		n.known = r.again
		m.restore(n, slices.DeleteFunc(slices.Clone(bs), func(b *comeback) bool { return b.group != n.id }))
	}
	m.restoreRepeats(bs)
	m.answerQueries(bs)
	m.restoreProbes(bs)
	m.voteDue = m.now + m.voteBound()
	m.recovery.counts = true
	for _, b := range bs {
		m.replay(b)
	}
	m.recovery.counts = false
	m.restorePlans()
	m.tryNewcomers()
	m.checkRoundVotes()
	m.checkRoundEnd()
	m.checkOptimized()
	for _, e := range r.held {
		m.packet(e)
	}
}

// outvoted reports whether more members of the ring that b was in were told that it has been
// dropped than were not: what they have decided since they have decided without it. The word
// of one that is gone itself, as b was told, does not count.
func (b *comeback) outvoted(all []*comeback) bool {
	says, denies := 0, 0
	for _, o := range all {
		if o == b || o.report == nil || o.group != b.group || o.report.Round.Decision != b.report.Round.Decision || b.report.Round.Decision == 0 {
			continue
		}
		switch {
		case !slices.Contains(o.report.Round.Gone, b.c.uuid):
			denies++
		case !slices.Contains(b.report.Round.Gone, o.c.uuid):
			says++
		}
	}
	return says > denies
}

// awaits reports whether b waits to hear of the newest round, which others have seen
// succeed.
func (b *comeback) awaits(n *newest) bool {
	return b.report.Call.Step == wire.StepRing && b.report.Call.Decision == n.round && n.round > b.report.Round.Decision && slices.Contains(n.ring, b.c.uuid)
}

// stray reports whether b is a newcomer in a round that no member of its group takes part
// in any more: they may be in a later one, without newcomers.
func (b *comeback) stray(n *newest, all []*comeback) bool {
	connects := func(b *comeback) bool {
		return b.report.Call.Step == wire.StepConnecting || b.report.Call.Step == wire.StepRing
	}
	if b.member(n) || !connects(b) {
		return false
	}
	members := false
	for _, o := range all {
		if o.report != nil && o.report.Round.Decision > b.report.Call.Decision {
			return true // nobody takes part in two rounds at a time
		}
		if o.group != b.group || !o.member(n) {
			continue
		}
		if members = true; connects(o) && !o.awaits(n) && o.report.Call.Decision == b.report.Call.Decision {
			return false
		}
	}
	return members
}

// member reports whether b was let in before. One that a failed round has let in may
// be alone with that: it waits to be let in again.
func (b *comeback) member(n *newest) bool { return b.report.Round.Decision != 0 || b.awaits(n) }

// readmit registers those who have come back, in the states in which votes and answers
// find them.
func (m *Machine) readmit(bs []*comeback) {
	for _, b := range bs {
		c, call := b.c, &b.report.Call
		m.enter(c, b.group)
		c.place.neighbours = []wire.UUID{c.uuid} // whatever list it was sent last
		switch call.Step {
		case wire.StepProbing, wire.StepCalled:
			c.put(Optimizing, m.now)
		case wire.StepOptimized:
			c.put(VoteOptimizeDone, m.now)
		case wire.StepFetching:
			if call.Verdict.IsOutdated {
				c.put(Request, m.now)
			} else {
				c.put(Distribute, m.now)
			}
		case wire.StepSynced:
			c.put(VoteSyncDone, m.now)
		}
	}
}

// restore makes one group what it was, and delivers what some of its members were told
// and others were not.
func (m *Machine) restore(n *newest, bs []*comeback) {
	if len(bs) == 0 {
		m.recordLost(n.id)
		return
	}
	g := m.groupOf(n.id)
	m.introduce(g)
	m.restoreRing(g, n, bs)
	m.restoreRounds(g, n, bs)
	departed := m.tellDeparted(g, bs)
	m.restoreMesh(g, n, bs)
	m.restoreSync(g, bs)
	m.restoreOps(g, n, bs)
	for _, b := range bs {
		for _, l := range b.report.Links {
			m.learn(b.c, l.To, l.Mbps, l.Deviation)
		}
	}
	if departed != "" {
		m.checkTags(g, departed)
	}
	m.checkSynced(g)
}

// introduce tells those of g who have come back who the others are. The master before may have told
// some of them of a round and others not, who take no connection from a newcomer without a name.
func (m *Machine) introduce(g *group) {
	names := m.roll(m.present(g.id))
	for _, c := range g.clients {
		if c.listens.as.Name != "" {
			m.send(c, names)
		}
	}
}

// recordLost keeps how far a group had come that nobody has come back of.
func (m *Machine) recordLost(id uint32) {
	i, found := m.records.find(id)
	if !found {
		return
	}
	r := m.records.groups[i]
	r.Members = nil
	if es := (Registry{Groups: []GroupRecord{r}}).ended(); len(es) > 0 {
		m.records.record(r)
		m.keep(es[0])
	} else {
		m.records.forget(id)
	}
}

// leftUnknown stands for those who have left since the round, where a ring without one may have
// come: collectives that were launched before count them, and end as aborted.
const leftUnknown = 1 << 20

// restoreRing gives g the ring in force, and what is counted by it.
func (m *Machine) restoreRing(g *group, n *newest, bs []*comeback) {
	g.ring = n.ring
	if !slices.IsSortedFunc(n.ring, wire.UUID.Compare) {
		g.prefer(n.ring)
	}
	g.lacks = "a member cannot, or not all are known to"
	for _, b := range bs {
		s := &b.report.Round
		if !n.known {
			g.state.next = max(g.state.next, b.report.NextRevision)
		}
		if s.Decision == n.round && b.report.Change.Taken == n.taken && len(s.Members) > 0 {
			g.roster, g.lacks = s.Members, ""
		}
		if b.report.Change.Taken != 0 {
			g.left = leftUnknown
		}
		if b.member(n) {
			m.admit(b.c)
			if len(n.ring) > 1 {
				b.c.record.stood = max(1, m.round.n)
			}
		}
	}
	m.installed(g)
	if !n.known {
		m.restoreState(g)
	}
	for _, b := range bs {
		if b.report.NextRevision == g.state.next {
			b.c.vote.has = g.state.next
		}
	}
	if m.cfg.Authority && n.ring != nil {
		last := n.round
		if i, found := m.records.find(g.id); found { // one that nobody was told of is over, too
			last = max(last, m.records.groups[i].Round)
		}
		m.records.record(m.recordOf(g, last))
	}
}

// restoreState completes what the members of g say of its shared state with what the
// registry says. Those who have synchronised nothing since all had left know nothing.
func (m *Machine) restoreState(g *group) {
	i, found := m.records.find(g.id)
	if !found {
		return
	}
	r := m.records.groups[i]
	reported := g.state.next
	if g.state.next = max(reported, r.NextRevision); g.state.next == r.NextRevision {
		g.state.print, g.state.resumes = r.Print, r.Resumes && reported == 0
	}
}

// restoreRounds ends the newest round for those who have not heard that it stands, and
// has any other one fail.
func (m *Machine) restoreRounds(g *group, n *newest, bs []*comeback) {
	for _, b := range bs {
		c, call := b.c, &b.report.Call
		switch {
		case b.awaits(n):
			m.send(c, wire.M2CP2PConnectionsEstablished{Success: true, Ring: n.ring, Mortal: m.mortal(g)})
		case call.Step == wire.StepConnecting || call.Step == wire.StepRing:
			if !m.round.active {
				m.round = round{active: true, n: m.round.n, since: m.now, recovered: true}
			}
			g.round.dropped = true
			c.round = roundPart{in: true, newcomer: c.phase != Accepted}
			m.round.accept = m.round.accept || c.round.newcomer
			m.round.held = m.round.held || !c.round.newcomer
			c.put(Connecting, m.now)
		}
	}
}

// repeats returns the round that has failed for b, and that it has voted to repeat.
func (b *comeback) repeats() (decision uint64, does bool) {
	call := &b.report.Call
	votes := call.Step == wire.StepAccept || call.Step == wire.StepEstablish
	return call.Decision, votes && call.Decision != 0 && b.c.phase == Accepted
}

// restoreRepeats has groups whose part of a round failed while others went on wait for no
// others.
func (m *Machine) restoreRepeats(bs []*comeback) {
	goOn := map[uint64]bool{}
	for _, b := range bs {
		failed, does := b.repeats()
		if !does {
			continue
		}
		if _, known := goOn[failed]; !known {
			goOn[failed] = m.othersGoOn(bs, failed)
		}
		b.c.group.round.again = b.c.group.round.again || goOn[failed]
	}
}

// othersGoOn reports whether a round that has failed for a group is over for another one, or
// was not its own. A group takes part in a round as a whole, and some of its members may not have
// heard of it before the master ended.
func (m *Machine) othersGoOn(bs []*comeback, failed uint64) bool {
	part, over := map[*group]bool{}, map[*group]bool{}
	for _, b := range bs {
		call, g := &b.report.Call, b.c.group
		votes := call.Step == wire.StepAccept || call.Step == wire.StepEstablish
		connects := call.Step == wire.StepConnecting || call.Step == wire.StepRing
		part[g] = part[g] || (votes || connects) && call.Decision == failed
		over[g] = over[g] || b.report.Round.Decision >= failed
	}
	return slices.ContainsFunc(m.groups, func(g *group) bool { return len(m.members(g)) > 0 && (over[g] || !part[g]) })
}

// tellDeparted tells those who have come back who has not, and returns it in words.
func (m *Machine) tellDeparted(g *group, bs []*comeback) (why string) {
	for _, u := range g.ring {
		if m.uuids[u] != nil {
			continue
		}
		why = fmt.Sprintf("peer %s has gone while there was no master", u.Short())
		for _, b := range bs {
			if !slices.Contains(b.report.Round.Gone, u) {
				m.send(b.c, wire.M2CPeerDropped{UUID: u, Group: g.id, Reason: "it has not come back to the master"})
			}
		}
	}
	return why
}

// restoreMesh gives those who have connected for a mesh the word that others had. One
// of which nobody has heard is refused, and all hear that, or they would ask for it in
// vain. What those have who are to hear of a ring without a leaver (restoreChange) ends
// with that, and says nothing.
func (m *Machine) restoreMesh(g *group, n *newest, bs []*comeback) {
	settled := wire.ReportedMesh{Planner: wire.MeshNone}
	asked := false
	for _, b := range bs {
		e := &b.report.Mesh
		if b.divides(n) {
			continue
		}
		asked = asked || e.Step != wire.MeshUnknown
		if e.Step == wire.MeshSettled && e.Change >= settled.Change {
			settled = *e
		}
	}
	if !asked {
		return
	}
	g.mesh = mesh{state: meshRefused, change: settled.Change}
	if settled.Planner == wire.MeshDirect {
		g.mesh.state = meshDirect
	}
	for _, b := range bs {
		e := &b.report.Mesh
		if b.divides(n) {
			continue
		}
		if e.Change == settled.Change && e.Step != wire.MeshUnknown {
			b.c.place.meshed, b.c.place.ways, b.c.place.unreached = e.Change, e.Ways, e.Failed
		}
		g.mesh.partial = g.mesh.partial || g.mesh.state == meshRefused && len(e.Ways) > 0
		if e.Step == wire.MeshSettled || b.c.phase != Accepted || b.c.round.in {
			continue // M2C 2 has ended what there was of it
		}
		p := wire.M2CMesh{Change: e.Change, Planner: wire.MeshNone}
		if e.Change == settled.Change {
			p.Planner = settled.Planner
		}
		m.send(b.c, p)
	}
	g.mesh.partial = g.mesh.partial && needNoMesh(m.members(g))
}

// restorePlans has plans made for groups that have a mesh, or need none, and were told of no
// plans: the master before may have ended while it made them.
func (m *Machine) restorePlans() {
	for _, g := range m.groups {
		if !g.mesh.planned() || g.mesh.direct != (wire.Direct{}) || m.departed(g) != "" {
			continue
		}
		if m.reviewPlans(g); g.mesh.spares {
			m.offer(g)
		}
	}
}

// answerQueries answers those who have asked whether newcomers wait, and of whom
// another one has the answer: it was given when all had asked.
func (m *Machine) answerQueries(bs []*comeback) {
	last := wire.ReportedQuery{}
	for _, b := range bs {
		if b.report.Query.Decision > last.Decision {
			last = b.report.Query
		}
	}
	for _, b := range bs {
		q := &b.report.Query
		if q.Asking && last.Decision > max(q.Decision, b.report.Round.Decision) && b.c.phase == Accepted {
			q.Asking = false
			m.send(b.c, wire.M2CPeersPendingResponse{PeersPending: last.Pending, Decision: last.Decision})
		}
	}
}

// restoreProbes ends the measurements of an optimization that was under way: those who had
// not begun have nothing to measure. If somebody is through with it, all are.
func (m *Machine) restoreProbes(bs []*comeback) {
	last, under := uint64(0), false
	for _, b := range bs {
		last = max(last, b.report.Optimized)
	}
	for _, b := range bs {
		if step := b.report.Call.Step; step >= wire.StepProbing && step <= wire.StepOptimized && last <= max(b.report.Optimized, b.report.Round.Decision) {
			under = true
		}
	}
	for _, b := range bs {
		c := b.c
		over := last > max(b.report.Optimized, b.report.Round.Decision)
		switch b.report.Call.Step {
		case wire.StepOptimized:
			if over {
				c.put(Idle, m.now)
				m.send(c, wire.M2COptimizeTopologyComplete{Success: true, Decision: last})
			}
		case wire.StepCalled:
			m.send(c, wire.M2CProbesDone{})
		case wire.StepOptimize:
			if under {
				b.report.Call.Step = wire.StepNone
				c.put(Optimizing, m.now)
				m.send(c, wire.M2COptimizeTopologyResponse{})
			}
		}
	}
}

// restoreSync tells the verdict of an election to those who have voted in it, as some
// have heard it, and its end to those who are through with it.
func (m *Machine) restoreSync(g *group, bs []*comeback) {
	elected, ended := uint64(0), uint64(0)
	for _, b := range bs {
		if b.report.Call.Step >= wire.StepFetching {
			elected = max(elected, b.report.Call.Decision)
		}
		ended = max(ended, b.report.Synced)
	}
	for _, b := range bs {
		c, call := b.c, &b.report.Call
		switch {
		case call.Step < wire.StepFetching:
		case call.Decision <= ended:
			c.put(Idle, m.now)
			m.send(c, wire.M2CSyncSharedStateComplete{NextRevision: c.nextTold(g)})
		default:
			m.restoreVote(c, &call.Vote)
			c.vote.holds = !call.Verdict.IsOutdated || call.Step == wire.StepSynced && !call.Unheld
		}
	}
	if elected <= ended {
		return
	}
	m.restoreElection(g, elected, bs)
}

// nextTold is the revision that M2C 8 tells c to expect, 0 if it cannot resume.
func (c *client) nextTold(g *group) uint64 {
	if !c.can.resume {
		return 0
	}
	return g.state.next
}

// restoreElection goes on with a synchronisation whose election some have heard of.
func (m *Machine) restoreElection(g *group, decision uint64, bs []*comeback) {
	var told *comeback // has the state that was elected, or was told what of it differs
	for _, b := range bs {
		call := &b.report.Call
		if call.Step >= wire.StepFetching && call.Decision == decision && (told == nil || !call.Verdict.IsOutdated) {
			told = b
		}
	}
	call := &told.report.Call
	entries, next := overlay(call.Vote.Entries, &call.Verdict), told.elected()
	handed := !call.Verdict.IsOutdated || call.Verdict.Distributor.Port() != 0
	g.state.prev, g.state.chosen, g.state.electing = g.state.next, printOf(entries), handed
	if handed {
		g.state.next = max(next, g.state.next)
	}
	var voters []*comeback
	var holders, last []netip.AddrPort
	dirty := map[*comeback][]wire.StateEntry{}
	for _, b := range bs {
		c, v := b.c, &b.report.Call.Vote
		if b.report.Call.Step == wire.StepElection {
			b.report.Call.Step = wire.StepNone
			voters = append(voters, b)
			m.restoreVote(c, v)
			dirty[b], _ = compare(v.Entries, entries)
			c.vote.holds = handed && len(dirty[b]) == 0 && v.Revision+1 == next && !v.Ext.Torn
			c.put(Request, m.now)
			if c.vote.holds {
				c.put(Distribute, m.now)
			}
		}
		switch at := c.at(c.listens.state); {
		case c.phase != Accepted || !c.vote.holds || b.report.Call.Step == wire.StepSynced && b.report.Call.Verdict.IsOutdated:
		case v.Strategy == wire.ReceiveOnly:
			last = append(last, at)
		default:
			holders = append(holders, at)
		}
	}
	holders = append(holders, last...)
	for _, b := range voters {
		p := wire.M2CSyncSharedState{Distributor: noAddr}
		p.Ext.Resuming = wire.Resuming{Decision: decision, NextRevision: next}
		if !b.c.vote.holds {
			p.IsOutdated, p.Ext.Reason = true, call.Verdict.Ext.Reason
			for _, e := range dirty[b] {
				if handed {
					p.Keys, p.Hashes, p.HashTypes = append(p.Keys, e.Key), append(p.Hashes, e.Hash), append(p.HashTypes, e.HashType)
				}
			}
			if len(holders) > 0 {
				p.Distributor, p.Ext.Distributors = holders[0], holders
			}
		}
		m.send(b.c, p)
	}
}

// restoreVote makes v the vote of c.
func (m *Machine) restoreVote(c *client, v *wire.C2MSyncSharedState) {
	c.vote = syncVote{seq: m.numbers.votes, revision: v.Revision, strategy: v.Strategy, entries: v.Entries, torn: v.Ext.Torn, has: c.vote.has}
	m.numbers.votes++
}

// overlay returns entries as they are in the state that was elected, of which v says
// what differs.
func overlay(entries []wire.StateEntry, v *wire.M2CSyncSharedState) []wire.StateEntry {
	if !v.IsOutdated {
		return entries
	}
	out := slices.Clone(entries)
	for i := range out {
		if k := slices.Index(v.Keys, out[i].Key); k >= 0 {
			out[i].Hash, out[i].HashType = v.Hashes[k], v.HashTypes[k]
		}
	}
	return out
}

// replay counts the votes of b that nobody was told the end of, in the order in which
// they were cast, as sent now.
func (m *Machine) replay(b *comeback) {
	c, call := b.c, &b.report.Call
	feed := func(p wire.Packet) { m.packet(PacketIn{Client: c.id, Packet: p}) }
	switch call.Step {
	case wire.StepAccept, wire.StepEstablish:
		if c.phase != Accepted {
			break // it waits for M2C 2, as newcomers do
		}
		feed(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: call.Step == wire.StepAccept})
	case wire.StepRing:
		if c.round.in {
			feed(wire.C2MP2PConnectionsEstablished{Success: len(call.Failed) == 0, FailedPeers: call.Failed})
		}
	case wire.StepOptimize:
		feed(wire.C2MOptimizeTopology{})
	case wire.StepElection:
		feed(call.Vote)
	}
	for i := range b.report.Ops {
		o := &b.report.Ops[i]
		if slices.Contains(b.taken, o.Vote.Tag) {
			continue
		}
		feed(o.Vote)
		if o.Step == wire.OpAhead {
			feed(o.Done)
		}
	}
	if b.report.Mesh.Wanted && c.group.mesh.state == meshNone && c.group.lacks == "" {
		feed(wire.C2MWantMesh{})
	}
	if b.report.Query.Asking && c.phase == Accepted {
		feed(wire.C2MCheckPeersPending{})
	}
	if b.report.Leaving {
		feed(wire.C2MLeave{})
	}
	if c.phase != Accepted && !c.round.in {
		m.queueTrial(c)
	}
}
