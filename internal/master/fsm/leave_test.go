package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// leaveWorld builds a world of n members that can go on without one that leaves.
func leaveWorld(t *testing.T, n int) (*world, []ClientID) {
	w := newWorld(t, Config{Switch: true})
	var cs []ClientID
	for range n {
		old := w.accepted()
		c := w.connectAt("127.0.0.1:4000")
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: wire.Ext{Native: true, Switch: true, Early: wire.Early{Eager: true}, Collectives: 1, Plans: wire.PlansVersion}})
		require.EqualValues(t, wire.PlansVersion, want[wire.M2CSessionRegistrationResponse](w, c).Ext.Plans)
		for _, o := range old {
			w.send(o, acceptVote)
		}
		w.round(true)
		cs = append(cs, c)
	}
	w.facts = nil
	return w, cs
}

// parting takes what the others of a group hear when c asks to leave.
func (w *world) parting(c ClientID, others []ClientID) (p wire.M2CPrepareLeave) {
	w.t.Helper()
	w.send(c, wire.C2MLeave{})
	for _, o := range others {
		p = want[wire.M2CPrepareLeave](w, o)
		require.Equal(w.t, w.ids[c], p.Leaver)
	}
	return p
}

func (w *world) without(change uint64, others []ClientID) {
	w.t.Helper()
	for _, o := range others {
		w.send(o, wire.C2MRingPrepared{Change: change})
	}
	for _, o := range others {
		p := want[wire.M2CRingWithout](w, o)
		require.EqualValues(w.t, len(others), p.World)
		require.EqualValues(w.t, len(others), p.Largest)
		require.Len(w.t, p.Ring, len(others))
	}
}

// A member leaves between two collectives: what the others have voted for is commenced
// without it, in the ring without it, and nothing is aborted.
func TestLeaveBetweenCollectives(t *testing.T) {
	w, cs := leaveWorld(t, 4)
	for _, c := range cs[1:] {
		w.send(c, initiate(1))
	}
	before := w.m.Snapshot().Groups[0].Ring
	p := w.parting(cs[0], cs[1:])
	require.NotZero(t, p.Epoch)
	w.quiet(cs...)
	for _, c := range cs[1:3] {
		w.send(c, wire.C2MRingPrepared{Change: p.Change})
	}
	w.quiet(cs...)
	require.Equal(t, before, w.m.Snapshot().Groups[0].Ring)
	w.without(p.Change, cs[1:])
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
	w.isClosed(cs[0], "it has left the run")
	for _, c := range cs[1:] {
		require.EqualValues(t, 1, want[wire.M2CCollectiveCommsCommence](w, c).Tag)
	}
	w.quiet(cs[1:]...) // nobody is named as gone, nothing is aborted
	for _, c := range cs[1:] {
		w.send(c, complete(1, false))
	}
	for _, c := range cs[1:] {
		require.False(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
	next := w.parting(cs[1], cs[2:])
	require.Greater(t, next.Epoch, p.Epoch)
}

// What members launched before one left, and others after, has arguments of other members:
// that is no mistake of theirs, until a round has told all who is there.
func TestArgumentsAroundALeave(t *testing.T) {
	w, cs := leaveWorld(t, 4)
	broadcast := func(root uint32) wire.C2MCollectiveCommsInitiate {
		p := initiate(1)
		p.Call = wire.Call{Kind: uint8(plan.Broadcast), Root: root}
		return p
	}
	w.send(cs[1], broadcast(3))
	p := w.parting(cs[0], cs[1:])
	w.without(p.Change, cs[1:])
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
	for _, c := range cs[2:] {
		w.send(c, broadcast(2))
	}
	for _, c := range cs[1:] {
		want[wire.M2CCollectiveCommsCommence](w, c)
		a := want[wire.M2CCollectiveCommsAbort](w, c)
		require.True(t, a.Aborted)
		require.EqualValues(t, errs.RankConnectionLost, a.ReasonCode)
		w.send(c, complete(1, true))
	}
	for _, c := range cs[1:] {
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
	for _, c := range cs[1:] {
		w.send(c, acceptVote)
	}
	w.round(true)
	for i, c := range cs[1:] {
		w.send(c, broadcast(uint32(min(i, 1))))
	}
	for _, c := range cs[1:] {
		want[wire.M2CCollectiveCommsCommence](w, c)
		require.EqualValues(t, errs.Mismatch, want[wire.M2CCollectiveCommsAbort](w, c).ReasonCode)
	}
}

// All that are left may be through with one: it ends as aborted for all of them. A barrier and
// an all-reduce go on.
func TestThroughBeforeALeave(t *testing.T) {
	w, cs := leaveWorld(t, 4)
	p := initiate(1)
	p.Call = wire.Call{Kind: uint8(plan.Broadcast), Root: 3}
	for _, c := range cs[1:] {
		w.send(c, p)
		w.send(c, complete(1, false))
	}
	parting := w.parting(cs[0], cs[1:])
	w.without(parting.Change, cs[1:])
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
	for _, c := range cs[1:] {
		want[wire.M2CCollectiveCommsCommence](w, c)
		require.True(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
		want[wire.M2CCollectiveCommsComplete](w, c)
		w.quiet(c)
	}
}

// Two may ask at once; one of two remaining members just goes.
func TestLeaveOneAfterTheOther(t *testing.T) {
	w, cs := leaveWorld(t, 4)
	p := w.parting(cs[0], cs[1:])
	w.send(cs[1], wire.C2MLeave{})
	w.quiet(cs...)
	for _, c := range cs[1:] {
		w.send(c, wire.C2MRingPrepared{Change: p.Change})
	}
	for _, c := range cs[1:] {
		want[wire.M2CRingWithout](w, c)
	}
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
	p = want[wire.M2CPrepareLeave](w, cs[2])
	require.Equal(t, w.ids[cs[1]], p.Leaver)
	require.Equal(t, p.Change, want[wire.M2CPrepareLeave](w, cs[3]).Change)
	w.without(p.Change, cs[2:])
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[1]).Left)
	w.send(cs[2], wire.C2MLeave{})
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[2]).Left)
	require.Equal(t, w.ids[cs[2]], want[wire.M2CPeerDropped](w, cs[3]).UUID)
	w.send(cs[3], wire.C2MLeave{})
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[3]).Left)
	require.Empty(t, w.m.Snapshot().Clients)
}

// Where the others cannot have a ring without it, it goes as a peer that disconnects.
func TestLeaveThatCannotBePrepared(t *testing.T) {
	for name, spoil := range map[string]func(w *world, cs []ClientID, change uint64){
		"unreachable": func(w *world, cs []ClientID, change uint64) {
			w.send(cs[1], wire.C2MRingPrepared{Change: change, FailedPeers: []wire.UUID{w.ids[cs[2]], w.ids[cs[3]]}})
		},
		"too slow":       func(w *world, _ []ClientID, _ uint64) { w.after(prepareTime) },
		"round is voted": func(w *world, cs []ClientID, _ uint64) { w.send(cs[1], acceptVote) },
	} {
		t.Run(name, func(t *testing.T) {
			w, cs := leaveWorld(t, 4)
			p := w.parting(cs[0], cs[1:])
			spoil(w, cs, p.Change)
			require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
			for _, c := range cs[1:] {
				require.Equal(t, w.ids[cs[0]], want[wire.M2CPeerDropped](w, c).UUID)
				require.Equal(t, wire.M2CSwitchRing{Change: p.Change}, want[wire.M2CSwitchRing](w, c))
			}
		})
	}
	// A member that goes meanwhile: the rest is offered another ring, or a round follows.
	w, cs := leaveWorld(t, 5)
	w.parting(cs[0], cs[1:])
	w.leave(cs[1])
	require.Equal(t, w.ids[cs[1]], want[wire.M2CPeerDropped](w, cs[0]).UUID)
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
	// An older member has to be told as before.
	w, cs = leaveWorld(t, 3)
	for _, c := range cs {
		w.m.conns[c].can.leave = c == cs[0]
	}
	w.send(cs[0], wire.C2MLeave{})
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
	want[wire.M2CPeerDropped](w, cs[1])
}

// Who asks to leave begins nothing any more, asks once, and has announced it.
func TestLeaveOutOfOrder(t *testing.T) {
	w, cs := leaveWorld(t, 4)
	w.parting(cs[0], cs[1:])
	w.send(cs[0], initiate(1))
	w.isClosed(cs[0], "began something after it had asked to leave")
	w, cs = leaveWorld(t, 4)
	w.parting(cs[0], cs[1:])
	w.send(cs[0], wire.C2MLeave{})
	w.isClosed(cs[0], "asks to leave twice")
	w, cs = leaveWorld(t, 4)
	w.m.conns[cs[0]].can.leave = false
	w.send(cs[0], wire.C2MLeave{})
	w.isClosed(cs[0], "asks to leave without having announced it")
}

// The only one that has the shared state stays until somebody else has it, or nobody
// is left to take it.
func TestLastHolderStays(t *testing.T) {
	w, cs := leaveWorld(t, 3)
	for _, c := range cs {
		w.send(c, syncVoteOf(0, 0, entry("k", uint64(c))))
	}
	w.verdicts(cs...)
	holds := func(failed ...ClientID) {
		for _, c := range cs {
			p := wire.C2MDistSharedStateComplete{}
			for _, f := range failed {
				p.Ext.Failed = p.Ext.Failed || f == c
			}
			w.send(c, p)
		}
		for _, c := range cs {
			want[wire.M2CSyncSharedStateComplete](w, c)
		}
	}
	holder := cs[2]
	require.Equal(t, Distribute, w.state(holder)) // of equal votes the last one wins
	holds(cs[0], cs[1])
	w.send(holder, wire.C2MLeave{})
	no := want[wire.M2CLeaveAnswer](w, holder)
	require.False(t, no.Left)
	require.Contains(t, no.Reason, "revision 0")
	w.quiet(cs...)

	for _, c := range cs {
		w.send(c, syncVoteOf(1, 0, entry("k", uint64(c))))
	}
	w.verdicts(cs...)
	holds(cs[1])
	w.parting(holder, cs[:2])
}
