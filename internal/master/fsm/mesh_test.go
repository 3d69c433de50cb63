package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// collecting is a world whose members know all collectives. uuids count down, so
// that the ring is not in the order in which members came.
func collecting(t *testing.T, n int) (*world, []ClientID) {
	w := newWorld(t, Config{})
	w.version, w.eager = wire.CollectivesVersion, true
	up, left := counting(), []wire.UUID{}
	for range 1000 {
		left = append(left, up())
	}
	w.uuid = func() wire.UUID {
		u := left[len(left)-1]
		left = left[:len(left)-1]
		return u
	}
	return w, w.members(n, true)
}

func vote(tag uint64, k plan.Kind) wire.C2MCollectiveCommsInitiate {
	p := initiate(tag)
	p.Call.Kind = uint8(k)
	return p
}

// meshVote is a vote that wants a mesh.
func meshVote(tag uint64) wire.C2MCollectiveCommsInitiate {
	p := vote(tag, plan.AllToAll)
	p.Call.Flags = wire.CallMesh
	return p
}

// infos has all members vote for a round and returns what it begins with.
func (w *world) infos(cs []ClientID) (ps []wire.M2CP2PConnectionInfo) {
	w.t.Helper()
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	for _, c := range cs {
		ps = append(ps, want[wire.M2CP2PConnectionInfo](w, c))
		w.send(c, connected)
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionsEstablished](w, c)
	}
	return ps
}

// all sends p for every client.
func (w *world) all(cs []ClientID, p wire.Packet) {
	for _, c := range cs {
		w.send(c, p)
	}
}

// verdict takes what ends a collective of cs.
func (w *world) verdict(cs []ClientID, tag uint64, aborted bool) (code errs.Code, why string) {
	w.t.Helper()
	for _, c := range cs {
		p := want[wire.M2CCollectiveCommsAbort](w, c)
		require.Equal(w.t, aborted, p.Aborted)
		require.Equal(w.t, tag, p.Tag)
		code, why = errs.Code(p.ReasonCode), p.Reason
	}
	return code, why
}

func (w *world) commenced(cs []ClientID, tag uint64) {
	w.t.Helper()
	for _, c := range cs {
		require.Equal(w.t, tag, want[wire.M2CCollectiveCommsCommence](w, c).Tag)
	}
}

// Members are told in the order in which they came, whatever the ring: newcomers
// at the end, without those that have left.
func TestMembersKeepTheirOrder(t *testing.T) {
	w, cs := collecting(t, 3)
	ids := func(cs ...ClientID) (us []wire.UUID) {
		for _, c := range cs {
			us = append(us, w.ids[c])
		}
		return us
	}
	for _, p := range w.infos(cs) {
		require.True(t, p.Ext.GroupCollectives)
		require.Equal(t, ids(cs...), p.Ext.Members)
	}
	w.leave(cs[0])
	for _, c := range cs[1:] {
		want[wire.M2CPeerDropped](w, c)
	}
	late := w.join(0, true)
	for _, c := range cs[1:] {
		w.send(c, acceptVote)
	}
	now := []ClientID{cs[1], cs[2], late}
	for _, c := range now {
		require.Equal(t, ids(now...), want[wire.M2CP2PConnectionInfo](w, c).Ext.Members)
	}
}

// One member that does not know them, and none has them; it is named to those that
// do. What others are told stays as it was.
func TestGroupsWithoutCollectives(t *testing.T) {
	for name, c := range map[string]struct {
		native bool
		is     string
	}{"PCCL": {false, "a PCCL peer"}, "older": {true, "an older gopccl"}} {
		t.Run(name, func(t *testing.T) {
			w, cs := collecting(t, 2)
			w.version = 0
			odd := w.member(0, c.native)
			all := append(cs, odd)
			ps := w.infos(all)
			for _, p := range ps[:2] {
				require.False(t, p.Ext.GroupCollectives)
				require.Empty(t, p.Ext.Members)
				require.Contains(t, p.Ext.Reason, w.ids[odd].String())
				require.Contains(t, p.Ext.Reason, "127.0.0.1")
				require.Contains(t, p.Ext.Reason, c.is)
			}
			require.Empty(t, ps[2].Ext.Reason)
			require.Empty(t, ps[2].Ext.Members)
			w.send(cs[0], vote(1, plan.Broadcast))
			w.isClosed(cs[0], c.is)
		})
	}
}

// What no peer of ours would send costs the connection.
func TestImpossibleCollectives(t *testing.T) {
	outside := vote(1, plan.Gather)
	outside.Call.Root = 3
	pointless := vote(1, plan.AllGather)
	pointless.Call.Root = 1
	for why, p := range map[string]wire.Packet{
		"its kind is unknown": vote(1, plan.NumKinds), "index of its root, 3": outside, "index of its root, 1": pointless,
	} {
		w, cs := collecting(t, 3)
		w.send(cs[0], p)
		w.isClosed(cs[0], why)
	}
	w, cs := collecting(t, 2)
	w.version = 0
	old := w.member(1, true)
	w.send(old, wire.C2MWantMesh{})
	w.isClosed(old, "asks for a mesh")
	w.quiet(cs...)
}

// Kind, root, flags and digest have to agree as count, type and operation do; the
// count where each member has its own does not.
func TestMismatchOfCollectives(t *testing.T) {
	base := vote(7, plan.Gather)
	base.Call.Root, base.Call.Digest = 1, 5
	base.Form = wire.FormOf("minmax", 3)
	for name, change := range map[string]func(p *wire.C2MCollectiveCommsInitiate){
		"kind":      func(p *wire.C2MCollectiveCommsInitiate) { p.Call.Kind = uint8(plan.Scatter) },
		"to all":    func(p *wire.C2MCollectiveCommsInitiate) { p.Call = wire.Call{} },
		"root":      func(p *wire.C2MCollectiveCommsInitiate) { p.Call.Root = 2 },
		"flags":     func(p *wire.C2MCollectiveCommsInitiate) { p.Call.Flags = wire.CallQuantized },
		"wire type": func(p *wire.C2MCollectiveCommsInitiate) { p.Call.WireType = 3 },
		"digest":    func(p *wire.C2MCollectiveCommsInitiate) { p.Call.Digest = 6 },
		"count":     func(p *wire.C2MCollectiveCommsInitiate) { p.Count++ },
		"quantizer": func(p *wire.C2MCollectiveCommsInitiate) { p.Call.Digest, p.Form = 6, wire.FormOf("zeropoint", 3) },
		"sum":       func(p *wire.C2MCollectiveCommsInitiate) { p.Call.Sum = 9 }, // known to some only
	} {
		w, cs := collecting(t, 3)
		odd := base
		change(&odd)
		w.send(cs[0], base)
		w.send(cs[1], odd)
		w.send(cs[2], base)
		w.commenced(cs, 7)
		if name == "sum" {
			w.quiet(cs...)
			continue
		}
		code, why := w.verdict(cs, 7, true)
		require.Equal(t, errs.Mismatch, code, name)
		require.Contains(t, why, "gather of 10 x float32 sum, root 1", name)
		require.Contains(t, why, "called with different "+map[string]string{
			"kind": "kinds:", "to all": "kinds, roots", "root": "roots:", "flags": "arguments:",
			"wire type": "quantizations:", "digest": "lists of counts:", "count": "counts:", "quantizer": "quantizations:",
		}[name], name)
	}
	w, cs := collecting(t, 3)
	for i, c := range cs {
		p := base
		p.Call.Flags, p.Count = wire.CallCounts, uint64(i)
		w.send(c, p)
	}
	w.commenced(cs, 7)
	w.quiet(cs...)
}

// A member that finds out that another one sends it something else than it expects says so,
// and all hear of it, also if it began before the commence.
func TestMembersThatDisagree(t *testing.T) {
	for _, early := range []bool{false, true} {
		w, cs := collecting(t, 3)
		said := wire.C2MCollectiveCommsComplete{Tag: 7, WasAborted: true, Reason: "too few bytes", ReasonCode: uint16(errs.Mismatch)}
		w.send(cs[0], vote(7, plan.Gather))
		if early {
			w.send(cs[0], said)
		}
		w.all(cs[1:], vote(7, plan.Gather))
		w.commenced(cs, 7)
		if !early {
			w.send(cs[0], said)
		}
		code, why := w.verdict(cs, 7, true)
		require.Equal(t, errs.Mismatch, code)
		require.Contains(t, why, "too few bytes")
	}
}

// A member whose connection has ended says so, and the others are told why theirs is aborted.
func TestACauseIsPassedOn(t *testing.T) {
	w, cs := collecting(t, 3)
	w.all(cs, vote(7, plan.Gather))
	w.commenced(cs, 7)
	w.send(cs[0], wire.C2MCollectiveCommsComplete{Tag: 7, WasAborted: true, Reason: "from x: connection timed out", ReasonCode: uint16(errs.RankConnectionLost)})
	code, why := w.verdict(cs, 7, true)
	require.Equal(t, errs.RankConnectionLost, code)
	require.Contains(t, why, "could not complete the operation: from x: connection timed out")
}

// A barrier whose members say at once that they are through is one round trip.
func TestBarrier(t *testing.T) {
	w, cs := collecting(t, 3)
	for _, c := range cs {
		w.quiet(cs...)
		w.send(c, vote(1, plan.Barrier))
		w.send(c, complete(1, false))
	}
	w.commenced(cs, 1)
	w.verdict(cs, 1, false)
	w.released(1, cs...)
	// Others wait for the verdict of one that says it later.
	w.all(cs, vote(1, plan.Barrier))
	w.commenced(cs, 1)
	w.send(cs[0], complete(1, false))
	w.send(cs[1], complete(1, false))
	w.quiet(cs...)
	w.send(cs[2], complete(1, false))
	w.verdict(cs, 1, false)
	w.released(1, cs...)
}

// A member that was through gives a collective up: before the others have come, while
// one of them is missing, and too late.
func TestThroughAndGivenUp(t *testing.T) {
	for _, k := range []plan.Kind{plan.Barrier, plan.Broadcast, plan.AllGather} {
		t.Run(k.String(), func(t *testing.T) { throughAndGivenUp(t, k) })
	}
}

func throughAndGivenUp(t *testing.T, k plan.Kind) {
	pass := func(w *world, c ClientID) {
		w.send(c, vote(1, k))
		w.send(c, complete(1, false))
	}
	w, cs := collecting(t, 3)
	pass(w, cs[0])
	w.send(cs[0], complete(1, true))
	w.quiet(cs...)
	pass(w, cs[1])
	pass(w, cs[2])
	w.commenced(cs, 1)
	code, why := w.verdict(cs, 1, true)
	require.Equal(t, errs.RankConnectionLost, code)
	require.Contains(t, why, w.ids[cs[0]].Short())
	w.released(1, cs...)

	pass(w, cs[0])
	pass(w, cs[1])
	w.send(cs[2], vote(1, k))
	w.commenced(cs, 1)
	w.send(cs[1], complete(1, true))
	w.verdict(cs, 1, true)
	w.send(cs[2], complete(1, true))
	w.released(1, cs...)

	w.send(cs[0], complete(1, true)) // it is over
	w.quiet(cs...)
	for _, c := range cs {
		pass(w, c)
	}
	w.commenced(cs, 1)
	w.verdict(cs, 1, false)
	w.released(1, cs...)
	w.send(cs[0], complete(1, false))
	w.isClosed(cs[0], "not allowed")
}

// Nobody passes a barrier without a member of the ring, even if all that are left
// have said that they are through.
func TestBarrierWithoutAMember(t *testing.T) {
	w, cs := collecting(t, 3)
	w.send(cs[0], vote(1, plan.Barrier))
	w.send(cs[0], complete(1, false))
	gone := w.ids[cs[2]]
	w.leave(cs[2])
	left := cs[:2]
	for _, c := range left {
		want[wire.M2CPeerDropped](w, c)
	}
	w.send(cs[1], vote(1, plan.Barrier))
	w.send(cs[1], complete(1, false))
	w.commenced(left, 1)
	code, why := w.verdict(left, 1, true)
	require.Equal(t, errs.RankConnectionLost, code)
	require.Contains(t, why, gone.String())
	w.released(1, left...)
}

// preparing takes the calls to connect and returns their change.
func (w *world) preparing(cs []ClientID) (change uint64) {
	w.t.Helper()
	for _, c := range cs {
		p := want[wire.M2CPrepareMesh](w, c)
		change = p.Change
		to := map[wire.UUID]bool{w.ids[c]: true}
		for _, e := range p.Peers {
			require.Equal(w.t, uint16(1), e.Addr.Port())
			to[e.UUID] = true
		}
		require.Len(w.t, p.Peers, max(len(cs)-3, 0), "all but itself and its neighbours")
		for _, u := range neighbours(w.m.groups[0].ring, w.ids[c]) {
			require.False(w.t, to[u])
			to[u] = true
		}
		require.Len(w.t, to, len(cs))
	}
	return change
}

func (w *world) told(cs []ClientID, change uint64, planner uint8) {
	w.t.Helper()
	for _, c := range cs {
		require.Equal(w.t, wire.M2CMesh{Change: change, Planner: planner}, want[wire.M2CMesh](w, c))
	}
}

// The first vote that wants a mesh has it prepared; such votes wait for it, others
// do not. It stays until the next round.
func TestMesh(t *testing.T) {
	w, cs := collecting(t, 5)
	w.send(cs[0], meshVote(1))
	change := w.preparing(cs)
	w.all(cs[1:], meshVote(1))
	w.all(cs, initiate(2))
	w.commenced(cs, 2)
	for i, c := range cs {
		w.quiet(cs...)
		w.send(c, wire.C2MMeshPrepared{Change: change + 1}) // of another time
		if i < 4 {
			w.send(c, wire.C2MMeshPrepared{Change: change})
			w.send(c, wire.C2MMeshPrepared{Change: change}) // twice counts once
		}
	}
	w.send(cs[4], wire.C2MMeshPrepared{Change: change})
	w.told(cs, change, wire.MeshDirect)
	w.commenced(cs, 1)
	w.all(cs, complete(1, false))
	w.verdict(cs, 1, false)
	w.released(1, cs...)
	w.all(cs, meshVote(1))
	w.commenced(cs, 1)
	w.all(cs, complete(1, false))
	w.verdict(cs, 1, false)
	w.released(1, cs...)
	w.all(cs, complete(2, false))
	w.verdict(cs, 2, false)
	w.released(2, cs...)
	w.infos(cs)
	w.send(cs[3], wire.C2MWantMesh{})
	require.Greater(t, w.preparing(cs), change, "a round ends it")
}

// What makes a mesh impossible is told, and the votes go on without it.
func TestMeshIsRefused(t *testing.T) {
	for name, act := range map[string]func(w *world, cs []ClientID, change uint64) (left []ClientID){
		"not reached": func(w *world, cs []ClientID, change uint64) []ClientID {
			w.send(cs[2], wire.C2MMeshPrepared{Change: change, FailedPeers: []wire.UUID{w.ids[cs[0]]}})
			require.Contains(w.t, w.factOf("mesh").Text, w.ids[cs[0]].Short())
			return cs
		},
		"in time": func(w *world, cs []ClientID, change uint64) []ClientID {
			w.all(cs[1:], wire.C2MMeshPrepared{Change: change})
			w.after(meshTime - time.Nanosecond)
			w.beat(cs)
			require.Empty(w.t, w.inbox[cs[0]])
			w.after(time.Nanosecond)
			return cs
		},
		"a death": func(w *world, cs []ClientID, change uint64) []ClientID {
			w.all(cs[:4], wire.C2MMeshPrepared{Change: change})
			w.leave(cs[4])
			for _, c := range cs[:4] {
				want[wire.M2CPeerDropped](w, c)
			}
			return cs[:4]
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, cs := collecting(t, 5)
			w.all(cs, meshVote(1))
			change := w.preparing(cs)
			left := act(w, cs, change)
			w.told(left, change, wire.MeshNone)
			w.commenced(left, 1)
			if len(left) < len(cs) {
				w.verdict(left, 1, true)
			}
			w.all(left, complete(1, false))
			w.drain(left)
			// It is not tried again before the next round.
			w.all(left, meshVote(2))
			w.commenced(left, 2)
		})
	}
}

// beat takes the heartbeats that have come, and sends one for each member.
func (w *world) beat(cs []ClientID) {
	w.t.Helper()
	for _, c := range cs {
		for len(w.inbox[c]) > 0 {
			want[wire.M2CHeartbeat](w, c)
		}
		w.send(c, wire.C2MHeartbeat{})
	}
}

// drain takes what is left.
func (w *world) drain(cs []ClientID) {
	for _, c := range cs {
		for len(w.inbox[c]) > 0 {
			w.pop(c)
		}
	}
}

// A mesh of more connections than a member should have is refused at once.
func TestMeshIsBounded(t *testing.T) {
	for n, planner := range map[int]uint8{meshPeers + 1: wire.MeshDirect, meshPeers + 2: wire.MeshNone} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w, cs := collecting(t, n)
			w.send(cs[0], wire.C2MWantMesh{})
			if planner == wire.MeshDirect {
				w.all(cs, wire.C2MMeshPrepared{Change: w.preparing(cs)})
			}
			for _, c := range cs {
				require.Equal(t, planner, want[wire.M2CMesh](w, c).Planner)
			}
		})
	}
}

// A wish for a mesh that was sent before its member heard of a round is answered by the round:
// members that connect for that one would not know what to do with another offer.
func TestMeshIsNotAskedForInARound(t *testing.T) {
	w, cs := collecting(t, 4)
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	w.send(cs[0], wire.C2MWantMesh{})
	for _, c := range cs {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	w.quiet(cs...)
	for _, c := range cs {
		w.send(c, connected)
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionsEstablished](w, c)
	}
	w.quiet(cs...)
	w.send(cs[0], wire.C2MWantMesh{}) // it has to ask again
	for _, c := range cs {
		want[wire.M2CPrepareMesh](w, c)
	}
}

// The same holds for a round that an earlier master has begun.
func TestMeshIsNotAskedForInARoundFromBefore(t *testing.T) {
	ring := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3), uuidOf(4)}
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(ring...)})
	w.version = wire.CollectivesVersion
	var cs []ClientID
	for _, u := range ring {
		r := stood(ring...)
		r.Call = wire.ReportedCall{Step: wire.StepConnecting, Decision: 10}
		cs = append(cs, w.returns(u, r))
	}
	w.send(cs[0], wire.C2MWantMesh{})
	w.quiet(cs...)
	for _, c := range cs {
		w.obey(w.feed(PacketIn{c, connected}))
	}
	for _, c := range cs {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
	}
	w.quiet(cs...)
}
