package fsm

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// A member whose connection has ended is waited for. When it is back, all say again what
// they hold, and nobody has gone.
func TestMemberComesBack(t *testing.T) {
	ring := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	begin := func() (*world, []ClientID) {
		w := heir(t, Config{Term: 1, Authority: true, Linger: 2 * time.Second, Registry: recordOf(ring...)})
		var cs []ClientID
		for _, u := range ring {
			cs = append(cs, w.returns(u, stood(ring...)))
		}
		return w, cs
	}
	report := func(w *world, c ClientID, r wire.C2MReport) {
		w.obey(w.feed(PacketIn{c, r}))
		require.Equal(t, wire.M2CResumed{}, w.pop(c))
	}

	w, cs := begin()
	w.send(cs[0], initiate(7))
	w.send(cs[2], initiate(7)) // lost: its sender says so in its report
	w.obey(w.feed(Gone{cs[2], "reset"}))
	w.quiet(cs[:2]...)
	back := w.comes(ring[2], 1, [16]byte{})
	require.Equal(t, ring[2], want[wire.M2CSessionRegistrationResponse](w, back).UUID)
	for _, c := range cs[:2] {
		want[wire.M2CReportAgain](w, c)
	}
	w.send(cs[1], initiate(7)) // on its way before the question came
	voted := stood(ring...)
	voted.Ops = []wire.ReportedOp{{Vote: initiate(7)}}
	report(w, cs[0], voted)
	report(w, back, voted)
	w.obey(w.feed(PacketIn{cs[1], voted}))
	want[wire.M2CResumed](w, cs[1])
	for _, c := range []ClientID{cs[0], cs[1], back} {
		want[wire.M2CCollectiveCommsCommence](w, c)
	}
	w.quiet(cs[0], cs[1], back)

	// One who has said farewell has gone, and so has one who stays away.
	w, cs = begin()
	w.send(cs[2], wire.C2MFarewell{})
	w.obey(w.feed(Gone{cs[2], "closed"}))
	require.Equal(t, ring[2], want[wire.M2CPeerDropped](w, cs[0]).UUID)
	w, cs = begin()
	w.obey(w.feed(Gone{cs[2], "reset"}))
	w.quiet(cs[:2]...)
	for range 8 {
		w.now += lookAfter
		w.obey(w.feed(Tick{}))
	}
	news := w.pop(cs[0])
	for news == wire.Packet(wire.M2CHeartbeat{}) {
		news = w.pop(cs[0])
	}
	require.Equal(t, ring[2], news.(wire.M2CPeerDropped).UUID)
}

// lingering is a master that waits for members whose connections have ended.
func lingering(t *testing.T) *world {
	return newWorld(t, Config{Resume: true, Linger: 2 * time.Second, HeartbeatInterval: time.Hour, HeartbeatTimeout: 3 * time.Hour})
}

// trained is one whose group has synchronised three revisions with the entry k=7.
func trained(t *testing.T) (*world, []ClientID) {
	w := lingering(t)
	w.resume = true
	cs := w.members(2, true)
	w.train(cs)
	return w, cs
}

func (w *world) train(cs []ClientID) {
	w.t.Helper()
	for rev := range uint64(3) {
		for _, c := range cs {
			w.send(c, syncVoteOf(rev, 0, entry("k", 7)))
		}
		w.verdicts(cs...)
		w.endSync(cs, false)
	}
}

// standing is the report of a member of the ring that g has, which has synchronised
// so far.
func (w *world) standing(g int, next uint64) wire.C2MReport {
	ring := w.m.groups[g].ring
	return wire.C2MReport{Round: wire.StoodRound{Decision: 1, Ring: ring, Members: ring, World: uint64(len(ring)), Groups: 1}, NextRevision: next}
}

// blips has a member come back over another connection, and all say r.
func (w *world) blips(cs []ClientID, at int, r wire.C2MReport) {
	w.t.Helper()
	w.returnsTo(cs, at)
	for _, c := range cs {
		w.send(c, r)
		require.Equal(w.t, wire.M2CResumed{}, w.pop(c))
	}
}

// returnsTo has a member come back, and the others asked what they hold.
func (w *world) returnsTo(cs []ClientID, at int) {
	w.t.Helper()
	u := w.ids[cs[at]]
	cs[at] = w.comes(u, 0, [16]byte{})
	p := want[wire.M2CSessionRegistrationResponse](w, cs[at])
	require.True(w.t, p.Accepted, p.Ext.Reason)
	require.Equal(w.t, u, p.UUID)
	for i, c := range cs {
		if i != at {
			want[wire.M2CReportAgain](w, c)
		}
	}
}

// farewells has clients end their sessions.
func (w *world) farewells(cs ...ClientID) {
	for _, c := range cs {
		w.send(c, wire.C2MFarewell{})
	}
	for _, c := range cs {
		w.leave(c)
	}
}

// A group that all had left goes on from where it was, also if a member comes back before
// it has synchronised anything: what members report does not say how far it was.
func TestBlipKeepsWhatAnEmptyGroupWasAt(t *testing.T) {
	w, cs := trained(t)
	w.farewells(cs...)
	require.Empty(t, w.m.groups)
	cs = w.members(2, true)
	w.blips(cs, 1, w.standing(0, 0))
	for _, c := range cs {
		w.send(c, syncVoteOf(0, 0, entry("k", 1)))
	}
	for _, p := range w.verdicts(cs...) {
		require.True(t, p.IsOutdated, "a fresh state was elected")
	}
	w.endSync(cs, true)
	for _, c := range cs {
		w.send(c, syncVoteOf(2, 0, entry("k", 7)))
	}
	for _, p := range w.verdicts(cs...) {
		require.False(t, p.IsOutdated, "the state as it was")
	}
}

// Nor do they know the content of the state that the next one has to follow.
func TestBlipKeepsWhatTheStateIs(t *testing.T) {
	w, cs := trained(t)
	w.blips(cs, 0, w.standing(0, 3))
	require.EqualValues(t, 3, w.m.Snapshot().Groups[0].NextRevision)
	w.farewells(cs...)
	w.resume = false
	require.False(t, w.resumes(syncVoteOf(2, 0, entry("k", 8))), "another content")
	require.True(t, w.resumes(syncVoteOf(2, 0, entry("k", 7))), "the state as it was")
}

// What an operator has given up stays so, though members still say what it was.
func TestBlipKeepsWhatWasGivenUp(t *testing.T) {
	w, cs := trained(t)
	w.step(ResetState{})
	w.blips(cs, 0, w.standing(0, 3))
	require.Zero(t, w.m.Snapshot().Groups[0].NextRevision)
}

// A group of which nobody comes back while others say what they hold is remembered.
func TestBlipRemembersGroupsThatStayAway(t *testing.T) {
	w, cs := trained(t)
	other := w.member(1, true)
	w.train([]ClientID{other})
	w.leave(other)
	w.blips(cs, 0, w.standing(0, 3))
	w.after(w.m.cfg.Linger)
	require.Len(t, w.m.groups, 1)
	require.Len(t, w.m.ended, 1)
	require.Equal(t, []uint64{1, 3}, []uint64{uint64(w.m.ended[0].id), w.m.ended[0].next})
}

// What an election that nobody has heard of has elected was there, and is expected again.
func TestBlipInAnElection(t *testing.T) {
	w, cs := trained(t)
	for _, c := range cs {
		w.send(c, syncVoteOf(3, 0, entry("k", 9)))
	}
	w.verdicts(cs...)
	r := w.standing(0, 3)
	r.Call = wire.ReportedCall{Step: wire.StepElection, Vote: syncVoteOf(3, 0, entry("k", 9))}
	w.blips(cs, 0, r)
	for _, p := range w.verdicts(cs...) {
		require.False(t, p.IsOutdated)
		require.EqualValues(t, 4, p.Ext.Resuming.NextRevision)
	}
	w.endSync(cs, false)
	require.EqualValues(t, 4, w.m.Snapshot().Groups[0].NextRevision)
}

// A certificate that allows one session at a time does not shut out that session.
func TestSingleComesBack(t *testing.T) {
	w := lingering(t)
	connect := func(r wire.Resuming) ClientID {
		w.next++
		w.step(Connected{Client: w.next, Remote: netip.MustParseAddrPort("127.0.0.1:5"), Who: Identity{Name: "a", Single: true}})
		w.send(w.next, wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{Native: true, Resuming: r}})
		return w.next
	}
	a := connect(wire.Resuming{Resume: true})
	p := want[wire.M2CSessionRegistrationResponse](w, a)
	require.True(t, p.Accepted)
	want[wire.M2CNames](w, a)
	w.round(true)
	r := w.standing(0, 0)
	for _, away := range []bool{false, true} {
		w.now += w.m.cfg.Linger
		if away {
			w.leave(a)
		}
		stranger := want[wire.M2CSessionRegistrationResponse](w, connect(wire.Resuming{Resume: true}))
		require.Contains(t, stranger.Ext.Reason, "one at a time")
		a = connect(wire.Resuming{Resume: true, Identity: p.Ext.Resuming.Identity})
		back := want[wire.M2CSessionRegistrationResponse](w, a)
		require.True(t, back.Accepted, back.Ext.Reason)
		require.Equal(t, p.UUID, back.UUID)
		w.send(a, r)
		want[wire.M2CResumed](w, a)
	}
}

// One whose connection ends again and again does not have the others report all the time.
// It is waited for meanwhile.
func TestBlipsArePaced(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	stands, linger := w.standing(0, 0), w.m.cfg.Linger
	refused := func(at int) {
		t.Helper()
		c := w.comes(w.ids[cs[at]], 0, [16]byte{})
		p := want[wire.M2CSessionRegistrationResponse](w, c)
		require.False(t, p.Accepted)
		require.Equal(t, uint16(errs.TurnedAway), p.Ext.ReasonCode)
		require.Contains(t, p.Ext.Reason, "wait")
		w.leave(c)
		w.quiet(cs[0], cs[1])
	}
	w.blips(cs, 2, stands)
	refused(2)
	refused(0) // others do not have to wait for so long
	w.now += linger / returnsTaken
	w.blips(cs, 0, stands)
	refused(2)
	w.now += linger
	w.blips(cs, 2, stands)
	w.leave(cs[2])
	w.now += linger / returnsTaken
	refused(2)
	w.now += linger - linger/returnsTaken
	w.returnsTo(cs, 2)
}

// One that a collective has failed without is not waited for as long as others, whether
// that or the end of its connection is heard first.
func TestNoLongWaitForWhoIsMissed(t *testing.T) {
	for _, first := range []bool{false, true} {
		w := lingering(t)
		w.resume = true
		cs := w.members(3, true)
		for _, c := range cs {
			w.send(c, initiate(7))
		}
		for _, c := range cs {
			want[wire.M2CCollectiveCommsCommence](w, c)
		}
		if first {
			w.leave(cs[2])
		}
		w.send(cs[0], complete(7, true))
		if !first {
			w.leave(cs[2])
		}
		w.after(missedGrace - time.Millisecond)
		require.Len(t, w.accepted(), 3)
		w.after(time.Millisecond)
		require.Len(t, w.accepted(), 2)
	}
}

// One that comes back again and again, and never reports, holds the others up for no longer
// than one that stays away.
func TestBlipsEnd(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	r, u := w.standing(0, 0), w.ids[cs[2]]
	w.returnsTo(cs, 2)
	for _, c := range cs[:2] {
		w.send(c, r)
		want[wire.M2CResumed](w, c)
	}
	for range 6 {
		w.now += 600 * time.Millisecond
		w.comes(u, 0, [16]byte{})
	}
	require.False(t, w.m.recovery.on)
	require.Len(t, w.accepted(), 2)
}

// One whose connection stands is not lost because that of another one has ended: it has as
// long as it may be silent.
func TestBlipsWaitForThoseWhoAreThere(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	r := w.standing(0, 0)
	w.returnsTo(cs, 2)
	for _, c := range cs[1:] {
		w.send(c, r)
		want[wire.M2CResumed](w, c)
	}
	w.after(10 * w.m.cfg.Linger)
	w.quiet(cs...)
	w.send(cs[0], r)
	want[wire.M2CResumed](w, cs[0])
	require.Len(t, w.accepted(), 3)
}

// One whose connections to its neighbours have ended as well is not waited for, whichever is
// heard first, and whether it is between two members or has only one.
func TestNoWaitForWhoIsLost(t *testing.T) {
	for _, n := range []int{2, 3} {
		for _, first := range []bool{false, true} {
			w := lingering(t)
			w.resume = true
			cs := w.members(n, true)
			u := w.ids[cs[n-1]]
			if first {
				w.leave(cs[n-1])
				require.Len(t, w.accepted(), n)
			}
			w.send(cs[0], wire.C2MLinkEnded{Peer: u})
			require.Len(t, w.accepted(), n-btoi(first))
			if !first {
				w.leave(cs[n-1])
			}
			require.Len(t, w.accepted(), n-1)
			require.Equal(t, u, want[wire.M2CPeerDropped](w, cs[0]).UUID)
			back := w.comes(u, 0, [16]byte{})
			want[wire.M2CSessionRegistrationResponse](w, back)
			w.send(back, wire.C2MReport{Round: wire.StoodRound{Decision: 1, Ring: []wire.UUID{u}}})
			require.Contains(t, want[wire.M2CPeerDropped](w, back).Reason, "went on without the session", "it is told at once")
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The word of a neighbour drops nobody whose connection to the master stands. It counts for no
// longer than a member is waited for, and no more when connections are made again. Others
// than neighbours have no say.
func TestLostLinksAloneMeanNothing(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(4, true)
	ring := w.m.groups[0].ring
	at := func(u wire.UUID) ClientID {
		for c, o := range w.ids {
			if o == u {
				return c
			}
		}
		return 0
	}
	lost := wire.C2MLinkEnded{Peer: ring[0]}
	waited := func() {
		t.Helper()
		w.leave(at(ring[0]))
		require.Len(t, w.accepted(), 4)
		w.after(w.m.cfg.Linger - time.Millisecond)
		require.Len(t, w.accepted(), 4)
	}
	w.send(at(ring[2]), lost) // it is opposite
	w.send(at(ring[0]), lost) // itself
	w.send(at(ring[1]), lost)
	require.Len(t, w.accepted(), 4)
	w.now += w.m.cfg.Linger
	waited()

	for i, c := range cs {
		if w.ids[c] == ring[0] {
			w.blips(cs, i, w.standing(0, 0))
		}
	}
	w.send(cs[0], lost)
	w.send(cs[1], lost)
	w.send(cs[2], lost)
	w.send(cs[3], lost)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	w.round(true)
	waited()
}

// In a round those who cannot connect to a member have lost it.
func TestNoWaitForWhoIsLostInARound(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	w.leave(cs[2])
	require.Len(t, w.accepted(), 3)
	w.send(cs[0], wire.C2MP2PConnectionsEstablished{FailedPeers: []wire.UUID{w.ids[cs[2]]}})
	require.Len(t, w.accepted(), 2)
}

// What a neighbour has said of a member counts when a round has begun since, as for another death,
// until the member has answered in that: it lives then, and others have connected to it again.
func TestWordsOfBeforeARound(t *testing.T) {
	for _, answered := range []bool{false, true} {
		w := lingering(t)
		w.resume = true
		cs := w.members(4, true)
		ring := w.m.groups[0].ring
		gone := slices.IndexFunc(cs, func(c ClientID) bool { return w.ids[c] == ring[0] })
		for _, c := range cs {
			w.send(c, wire.C2MLinkEnded{Peer: ring[0]}) // those that are its neighbours are believed
		}
		for _, c := range cs {
			w.send(c, establishVote)
		}
		for _, c := range cs {
			want[wire.M2CP2PConnectionInfo](w, c)
		}
		if answered {
			w.send(cs[gone], wire.C2MP2PConnectionsEstablished{Success: true})
		}
		w.leave(cs[gone])
		require.Len(t, w.accepted(), 3+btoi(answered))
	}
}

// A member of which nobody could say that it has gone is waited for until others wait for it,
// and then for a moment.
func TestLoneMembersHoldNobodyUp(t *testing.T) {
	begin := func() (*world, ClientID, ClientID) {
		w := lingering(t)
		w.resume = true
		a := w.member(0, true)
		return w, a, w.member(1, true)
	}
	w, a, b := begin()
	w.leave(a)
	w.after(w.m.cfg.Linger - time.Millisecond)
	require.Len(t, w.accepted(), 2)
	w.send(b, acceptVote)
	require.Len(t, w.accepted(), 2)
	w.after(time.Millisecond)
	require.Len(t, w.accepted(), 1)

	w, a, b = begin()
	w.leave(a)
	w.send(b, acceptVote)
	w.after(missedGrace - time.Millisecond)
	require.Len(t, w.accepted(), 2)
	w.after(time.Millisecond)
	require.Len(t, w.accepted(), 1)
	want[wire.M2CP2PConnectionInfo](w, b)
}

// While all say again what they hold, one that dies does not hold them up, whether the
// others have reported before its links ended or after, or it has said that it goes.
func TestDeathWhileOthersReport(t *testing.T) {
	for name, ends := range map[string]func(w *world, cs []ClientID, r wire.C2MReport){
		"before": func(w *world, cs []ClientID, r wire.C2MReport) {
			w.leave(cs[1])
			r.Broken = []wire.UUID{w.ids[cs[1]]}
			w.send(cs[0], r)
			w.send(cs[2], r)
		},
		"after": func(w *world, cs []ClientID, r wire.C2MReport) {
			w.send(cs[0], r)
			w.send(cs[2], r)
			w.leave(cs[1])
			w.send(cs[0], wire.C2MLinkEnded{Peer: w.ids[cs[1]]})
			require.True(t, w.m.recovery.on, "one neighbour of two")
			w.send(cs[2], wire.C2MLinkEnded{Peer: w.ids[cs[1]]})
		},
		"farewell": func(w *world, cs []ClientID, r wire.C2MReport) {
			w.send(cs[1], wire.C2MFarewell{})
			w.leave(cs[1])
			w.send(cs[0], r)
			w.send(cs[2], r)
		},
	} {
		w := lingering(t)
		w.resume = true
		cs := w.members(3, true)
		r := w.standing(0, 0)
		w.returnsTo(cs, 2)
		ends(w, cs, r)
		require.False(t, w.m.recovery.on, name)
		require.Len(t, w.accepted(), 2, name)
	}
}
