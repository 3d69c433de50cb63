package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// A collective that is finished forward has returned at some members before the master has heard of all
// (docs/spec/extensions.md, "Finishing forward"). What one of them has returned, all who live get: if
// others could not complete it, the master asks one that holds the result for it, and passes it on.
const (
	// mostRescues bounds the collectives whose result is passed on at a time, and with it the memory
	// for results: 256 MiB. A group has few of them, so that its members cannot keep others from
	// theirs. What is beyond waits.
	mostRescues   = 64
	rescuesOfOne  = 4
	longestRescue = 2 * time.Minute // for a member to send a result, or to take it
	// mostGiven bounds the members to whom one result is sent at a time, each of which may take it
	// slowly.
	mostGiven = 4
)

// forward is what finishing forward makes of a collective.
type forward struct {
	final   bool   // its verdict is no longer to be changed
	held    bool   // all have the result, whatever they were told before
	rescued bool   // its result is asked for, or passed on
	waits   bool   // ... will be, when another one is through
	result  []byte // nil: not known yet
}

// holding is the part of a member in that.
type holding struct {
	lacks bool // it could not complete the collective
	holds bool // it has the result, and can give it
	asked bool // ... and is asked for it
	given bool // it was sent the result
	quits bool // its caller was told that it has failed for all
}

// forwards reports whether the voters of t may return its result before all have it.
func forwards(t *tagState, voters []*client) bool {
	first := voters[0].op(t.tag)
	if plan.Kind(first.call.Kind) != plan.AllReduce || !first.portable() {
		return false
	}
	for _, c := range voters {
		if o := c.op(t.tag); !c.can.forward || !o.forward || o.ahead == aheadAborted {
			return false
		}
	}
	return agree(t, voters)
}

// size is how many bytes the result of o has.
func (o *clientOp) size() uint64 { return o.count * uint64(o.dtype.Size()) }

// portable reports whether the result of o is small enough to be passed on.
func (o *clientOp) portable() bool { return o.count <= wire.MaxForward && o.size() <= wire.MaxForward }

// ends notes how the data phase of o ended.
func (o *clientOp) ends(p wire.C2MCollectiveCommsComplete) {
	o.lacks, o.quits = p.WasAborted, o.quits || p.GivenUp
	o.holds = p.Holds && !p.WasAborted && plan.Kind(o.call.Kind) == plan.AllReduce && o.portable()
}

// rescue has the members that could not complete t get the result from one that holds it. It
// reports whether that is under way.
func (m *Machine) rescue(g *group, t *tagState) bool {
	if !t.aborted || t.final {
		return false
	}
	var holder *client
	var lacking []*client
	for _, c := range m.performers(g, t) {
		o := c.op(t.tag)
		switch {
		case !c.can.forward || !o.forward || o.quits:
			return false
		case o.lacks:
			lacking = append(lacking, c)
		case o.holds && (holder == nil || holder.place.away && !c.place.away):
			holder = c
		}
	}
	switch {
	case holder == nil:
		return false
	case len(lacking) == 0:
		t.held = true
		return false
	case !t.rescued && !m.mayRescue(g):
		t.waits = true
		return true
	}
	t.rescued, t.waits = true, false
	m.lookAtRescues(m.now + longestRescue)
	t.ending = wait{since: m.now} // those who are asked now have kept nobody waiting
	if t.result == nil && holder.op(t.tag).size() > 0 {
		holder.op(t.tag).asked = true
		holder.op(t.tag).to(Perform, m.now)
		m.send(holder, wire.M2CAskResult{Tag: t.tag, Seq: t.seq})
		m.tell(g, "forward", false, "collective %d is asked of %s, which has completed it", t.tag, holder.name())
		return true
	}
	for _, c := range lacking[:min(len(lacking), mostGiven)] {
		c.op(t.tag).given = true
		c.op(t.tag).to(Perform, m.now)
		m.send(c, wire.M2CResult{Tag: t.tag, Seq: t.seq, Data: t.result})
	}
	return true
}

// rescues counts the collectives of g whose result is passed on.
func (g *group) rescues() (n int) {
	for t := range g.tags.all() {
		if t.rescued {
			n++
		}
	}
	return n
}

// mayRescue reports whether one more result of g can be passed on.
func (m *Machine) mayRescue(g *group) bool {
	n := 0
	for _, g := range m.groups {
		n += g.rescues()
	}
	return n < mostRescues && g.rescues() < rescuesOfOne
}

// lookAtRescues has rescuesDue look at t, if it does not earlier.
func (m *Machine) lookAtRescues(t time.Duration) {
	if m.rescueBy == 0 || t < m.rescueBy {
		m.rescueBy = t
	}
}

// rescuesDue drops the members that have kept others waiting for a result, or with one, for too long: beside
// their other signs of life nothing else bounds that.
func (m *Machine) rescuesDue() {
	if m.rescueBy == 0 || m.now < m.rescueBy {
		return
	}
	m.rescueBy = 0
	for _, g := range m.groups {
		for t := range g.tags.all() {
			for _, c := range m.members(g) {
				o := c.op(t.tag)
				switch {
				case !t.rescued || o == nil || o.state != Perform || c.closing:
				case m.now >= t.ending.since+longestRescue:
					m.close(c, "dropped", fmt.Sprintf("did not pass the result of collective %d on, or take it, within %v", t.tag, longestRescue))
				default:
					m.lookAtRescues(t.ending.since + longestRescue)
				}
			}
		}
	}
}

// result takes the result of a collective from the member that was asked for it.
func (m *Machine) result(c *client, p wire.C2MResult) {
	o := c.op(p.Tag)
	if o == nil || !o.asked || o.t.seq != p.Seq {
		m.kick(c, "result of collective %d that it was not asked for", p.Tag)
		return
	}
	o.asked = false
	if uint64(len(p.Data)) == o.size() {
		o.t.result = p.Data
	} else {
		o.holds = false
	}
	o.to(VoteComplete, m.now)
	m.checkComplete(c.group, o.t)
}

// goOnWaiting has the collectives go on that wait for others to be through with their results, as far as there
// is room.
func (m *Machine) goOnWaiting() {
	for _, g := range slices.Clone(m.groups) {
		for _, t := range slices.Collect(g.tags.all()) {
			if t.waits && m.mayRescue(g) {
				t.waits = false
				m.checkComplete(g, t)
			}
		}
	}
}

// over forgets what a use of t has left.
func (t *tagState) over(m *Machine) {
	m.freed = m.freed || t.rescued
	t.aborted, t.decided, t.forward, t.wait = false, false, forward{}, wait{since: m.now}
}

// failedTwice reports whether c cannot even take the result that it was sent.
func (o *clientOp) failedTwice() bool { return o.given && o.lacks }
