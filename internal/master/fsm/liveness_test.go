package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

var beating = Config{HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second}

// live lets time pass in small steps while the given clients send heartbeats.
func (w *world) live(d time.Duration, cs ...ClientID) {
	for end := w.now + d; w.now < end; {
		w.after(500 * time.Millisecond)
		for _, c := range cs {
			w.send(c, wire.C2MHeartbeat{})
		}
	}
}

// others drops the heartbeats from an inbox.
func (w *world) others(c ClientID) (ps []wire.Packet) {
	for _, p := range w.inbox[c] {
		if _, beat := p.(wire.M2CHeartbeat); !beat {
			ps = append(ps, p)
		}
	}
	w.inbox[c] = nil
	return ps
}

// calm is quiet but for heartbeats.
func (w *world) calm(cs ...ClientID) {
	w.t.Helper()
	for _, c := range cs {
		require.Empty(w.t, w.others(c), "client %d", c)
		require.NotContains(w.t, w.closed, c)
	}
}

// Capabilities: peers that announce them get them granted, others get not a byte
// more than PCCL sends.
func TestCapabilitiesAreNegotiated(t *testing.T) {
	for _, tc := range []struct {
		cfg   Config
		ask   wire.Ext
		grant wire.Ext
	}{
		{beating, wire.Ext{}, wire.Ext{}},
		{beating, wire.Ext{Native: true}, wire.Ext{Native: true}},
		{beating, wire.Ext{Native: true, HeartbeatInterval: time.Hour, HeartbeatTimeout: time.Hour}, wire.Ext{Native: true, HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second}},
		{Config{}, wire.Ext{Native: true, HeartbeatInterval: 1, HeartbeatTimeout: 1}, wire.Ext{Native: true}},
		{beating, wire.Ext{HeartbeatInterval: 1, HeartbeatTimeout: 1}, wire.Ext{}},
	} {
		w := newWorld(t, tc.cfg)
		c := w.connectAt("127.0.0.1:1")
		w.send(c, wire.C2MRequestSessionRegistration{Ext: tc.ask})
		require.Equal(t, tc.grant, want[wire.M2CSessionRegistrationResponse](w, c).Ext)
	}
}

// M2C 2 tells gopccl peers whether their whole group is of their kind, in this
// round.
func TestGroupNative(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.member(0, true), w.member(0, true)
	other := w.member(1, false)
	mixed := w.join(0, false)
	vote := func(p wire.Packet) {
		for _, c := range []ClientID{other, a, b} {
			w.send(c, p)
		}
	}
	vote(establishVote)
	require.True(t, want[wire.M2CP2PConnectionInfo](w, a).Ext.GroupNative)
	require.True(t, want[wire.M2CP2PConnectionInfo](w, b).Ext.GroupNative)
	require.True(t, want[wire.M2CP2PConnectionInfo](w, other).Ext.IsZero())
	for _, c := range []ClientID{a, b, other} {
		w.send(c, connected)
	}
	for _, c := range []ClientID{a, b, other} {
		want[wire.M2CP2PConnectionsEstablished](w, c)
	}
	vote(acceptVote)
	require.False(t, want[wire.M2CP2PConnectionInfo](w, a).Ext.GroupNative)
	require.True(t, want[wire.M2CP2PConnectionInfo](w, mixed).Ext.IsZero())
}

// Both sides say that they live; a peer that falls silent is dropped and named, PCCL
// peers are left to TCP.
func TestSilenceIsNoticed(t *testing.T) {
	w := newWorld(t, beating)
	a, b, pccl := w.member(0, true), w.member(0, true), w.member(0, false)
	w.live(time.Minute, a, b)
	w.quiet(pccl)
	beats := 0
	for _, p := range w.inbox[a] {
		require.Equal(t, wire.M2CHeartbeat{}, p)
		beats++
	}
	require.InDelta(t, 30, beats, 1)
	w.inbox = map[ClientID][]wire.Packet{}

	w.live(7*time.Second, a)
	w.calm(a, b)
	w.live(2*time.Second, a)
	w.isClosed(b, "silent for 8")
	require.Equal(t, w.ids[b], w.factOf("dropped").Peer) // S1-37
	require.Equal(t, 2, w.factOf("dropped").World)
	require.Equal(t, []wire.Packet{wire.M2CPeerDropped{UUID: w.ids[b], Addr: addr("127.0.0.1:40001"), Reason: w.closed[b]}}, w.others(a))
	w.quiet(pccl)
}

// Any packet, and any piece of one, is a sign of life.
func TestEveryByteIsASignOfLife(t *testing.T) {
	w := newWorld(t, beating)
	a, b := w.member(0, true), w.member(0, true)
	for i := range 60 {
		w.after(time.Second)
		w.step(Alive{a})
		w.send(b, wire.C2MReportPeerBandwidth{To: w.ids[a], Mbps: float64(i + 1)})
		w.step(Alive{77})
	}
	w.calm(a, b)
}

// A master that stood still does not blame its peers.
func TestPausedMaster(t *testing.T) {
	cfg := beating
	cfg.RoundTimeout, cfg.VoteTimeout, cfg.RegisterTimeout = 30*time.Second, 40*time.Second, 50*time.Second
	w := newWorld(t, cfg)
	cs := []ClientID{w.member(0, true), w.member(0, true)}
	stranger := w.connectAt("127.0.0.1:1")
	w.send(cs[0], acceptVote)
	w.live(10*time.Second, cs...)
	for range 3 { // stopped for an hour, and again
		w.now += time.Hour
		w.step(Tick{})
		w.calm(cs[0], cs[1], stranger)
		w.live(5*time.Second, cs...)
	}
	w.factOf("paused")
	w.send(cs[1], acceptVote)
	for _, c := range cs {
		require.Len(t, w.others(c), 1)
		w.send(c, connected)
	}
	for _, c := range cs {
		require.Len(t, w.others(c), 1)
	}
	// From now on silence counts again.
	w.live(9*time.Second, cs[0])
	w.isClosed(cs[1], "silent")
}

// A silent voter is named, then dropped; peers that work or wait elsewhere are not
// to blame.
func TestSilentVoter(t *testing.T) {
	for name, tc := range map[string]struct {
		vote wire.Packet
		what string
	}{
		"accept":    {acceptVote, "accept newcomers"},
		"establish": {establishVote, "establish connections"},
		"optimize":  {wire.C2MOptimizeTopology{}, "optimize"},
		"sync":      {syncVoteOf(0, 0, entry("k", 1)), "synchronise"},
		"initiate":  {initiate(3), "collective 3"},
		"pending":   {wire.C2MCheckPeersPending{}, "pending"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{VoteTimeout: time.Minute, WarnVoteAfter: 10 * time.Second})
			cs := w.members(3, false)
			w.after(5 * time.Minute)
			w.send(cs[0], tc.vote)
			w.after(5 * time.Second)
			w.send(cs[2], tc.vote)
			w.after(4 * time.Second)
			require.Empty(t, w.facts)
			w.after(50 * time.Second)
			named := 0
			for _, f := range w.facts {
				if f.Kind == "waiting-for" {
					named++
					require.Contains(t, f.Text, tc.what)
					require.Contains(t, f.Text, w.ids[cs[1]].Short()) // S1-37
					require.NotContains(t, f.Text, w.ids[cs[0]].Short())
					require.NotContains(t, f.Text, w.ids[cs[2]].Short())
				}
			}
			require.Equal(t, 1, named, "%+v", w.facts)
			require.NotContains(t, w.closed, cs[1])
			w.after(time.Second)
			w.isClosed(cs[1], tc.what)
			require.NotEmpty(t, w.inbox[cs[0]], "the others are not answered")
			require.NotEmpty(t, w.inbox[cs[2]])
		})
	}
}

// A group that repairs its ring by itself does not blame other groups.
func TestOtherGroupsAreNotToBlame(t *testing.T) {
	w := newWorld(t, Config{VoteTimeout: time.Minute})
	a := []ClientID{w.member(0, true), w.member(0, true)}
	b := w.member(1, false)
	w.send(a[0], establishVote)
	w.after(2 * time.Minute)
	w.quiet(b)
	w.isClosed(a[1], "establish connections")
	want[wire.M2CPeerDropped](w, a[0])
	w.round(true)

	// Without gopccl peers all groups have to vote.
	w = newWorld(t, Config{VoteTimeout: time.Minute})
	c, d := w.member(0, false), w.member(1, false)
	w.send(c, establishVote)
	w.after(2 * time.Minute)
	w.isClosed(d, "establish connections")
}

func TestBusyVoterIsNotToBlame(t *testing.T) {
	w := newWorld(t, Config{VoteTimeout: time.Minute})
	a := []ClientID{w.member(0, false), w.member(0, false)}
	b := w.member(1, false)
	w.commence(1, a...)
	w.send(b, acceptVote)
	w.after(time.Hour)
	w.quiet(b)
	w.quiet(a...)
	for _, c := range a {
		w.send(c, complete(1, false))
	}
	w.finish(1, false, a...)
	w.after(2 * time.Minute)
	w.isClosed(a[0], "accept newcomers")
	w.isClosed(a[1], "accept newcomers")
}

// Without any gopccl peer a conflict of votes stays, as in PCCL, until the vote
// timeout: then the oldest vote stands.
func TestConflictAmongPCCLPeers_Q72(t *testing.T) {
	w := newWorld(t, Config{VoteTimeout: time.Minute})
	cs := w.members(2, false)
	w.send(cs[0], acceptVote)
	w.after(time.Second)
	w.send(cs[1], wire.C2MOptimizeTopology{})
	w.after(58 * time.Second)
	w.quiet(cs...)
	w.after(2 * time.Second)
	w.isClosed(cs[1], "accept newcomers")
	w.round(true)
}

// A collective that a peer can never join is commenced and aborted for those
// that voted, so that they can vote elsewhere.
func TestCollectiveNobodyCanJoin(t *testing.T) {
	for i, vote := range []wire.Packet{acceptVote, establishVote, wire.C2MOptimizeTopology{}, syncVoteOf(0, 0, entry("k", 1))} {
		for _, voteFirst := range []bool{true, false} {
			t.Run(fmt.Sprint(i, voteFirst), func(t *testing.T) {
				w := newWorld(t, Config{})
				cs := w.members(3, true)
				if voteFirst {
					w.send(cs[0], vote)
				}
				w.send(cs[1], initiate(5))
				w.quiet(cs...) // the third may still come
				w.send(cs[2], initiate(5))
				if !voteFirst {
					w.quiet(cs...)
					w.send(cs[0], vote)
				}
				for _, c := range cs[1:] {
					require.EqualValues(t, 5, want[wire.M2CCollectiveCommsCommence](w, c).Tag)
					p := want[wire.M2CCollectiveCommsAbort](w, c)
					require.True(t, p.Aborted)
					require.Contains(t, p.Reason, w.ids[cs[0]].Short())
					w.quiet(cs[0])
					w.send(c, complete(5, true))
				}
				w.released(5, cs[1:]...)
				for _, c := range cs[1:] {
					w.send(c, vote)
				}
				for _, c := range cs {
					require.Len(t, w.inbox[c], 1)
				}
			})
		}
	}
}

// Two that started different collectives, and a third that can join neither.
func TestDifferentCollectivesNobodyCanJoin(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	w.send(cs[0], initiate(1))
	w.send(cs[1], initiate(2))
	w.send(cs[2], establishVote)
	for i, c := range cs[:2] {
		tag := uint64(i + 1)
		require.Equal(t, tag, want[wire.M2CCollectiveCommsCommence](w, c).Tag)
		require.True(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
		w.send(c, complete(tag, true))
		w.released(tag, c)
		w.send(c, establishVote)
	}
	w.round(true)
}

// The way of PCCL if no gopccl peer is there: no peer is answered.
func TestCollectiveNobodyCanJoinPCCL(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	w.send(cs[0], establishVote)
	w.send(cs[1], initiate(1))
	w.quiet(cs...)
}

// Votes that wait for each other: the smaller party has to go, of equal ones
// the later.
func TestConflictingVotes(t *testing.T) {
	sync := syncVoteOf(0, 0, entry("k", 1))
	opt := wire.C2MOptimizeTopology{}
	for _, pair := range [][2]wire.Packet{{acceptVote, sync}, {sync, acceptVote}, {acceptVote, opt}, {opt, establishVote}, {sync, opt}, {opt, sync}} {
		w := newWorld(t, Config{})
		cs := w.members(3, true)
		w.send(cs[0], pair[0])
		w.now += time.Second
		w.send(cs[1], pair[1])
		w.isClosed(cs[1], "conflict")
		want[wire.M2CPeerDropped](w, cs[0])
		want[wire.M2CPeerDropped](w, cs[2])
		w.quiet(cs[0], cs[2])
		w.send(cs[2], pair[0])
		for _, c := range []ClientID{cs[0], cs[2]} {
			require.Len(t, w.inbox[c], 1)
		}
	}
}

// Groups that vote for themselves look like a conflict, and are not.
func TestVotesOfDifferentGroups(t *testing.T) {
	w := newWorld(t, Config{})
	a := []ClientID{w.member(0, true), w.member(0, true)}
	b := []ClientID{w.member(1, true), w.member(1, true)}
	w.send(a[0], acceptVote)
	w.send(b[0], syncVoteOf(0, 0, entry("k", 1)))
	w.quiet(append(a, b...)...)
	w.send(b[1], syncVoteOf(0, 0, entry("k", 1)))
	w.verdicts(b...)
	w.confirm(b...)
	w.send(b[0], acceptVote)
	w.send(b[1], acceptVote)
	w.send(a[1], acceptVote)
	w.round(true)
}

// A master that stands still while its peers say again what they hold takes no time from
// them.
func TestMasterStandsStillInARecovery(t *testing.T) {
	ring := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	for _, still := range []time.Duration{2100 * time.Millisecond, 9 * time.Second, time.Minute} {
		w := heir(t, Config{
			Term: 1, Authority: true, Linger: 2 * time.Second, Registry: recordOf(ring...),
		})
		var cs []ClientID
		for _, u := range ring {
			cs = append(cs, w.returns(u, stood(ring...)))
		}
		w.obey(w.feed(Gone{cs[2], "reset"}))
		cs[2] = w.comes(ring[2], 1, [16]byte{})
		w.now += still
		w.obey(w.feed(Tick{}))
		for _, c := range cs {
			w.obey(w.feed(PacketIn{c, stood(ring...)}))
		}
		for _, c := range cs {
			require.Contains(t, w.inbox[c], wire.Packet(wire.M2CResumed{}), "after %v", still)
		}
	}
}
