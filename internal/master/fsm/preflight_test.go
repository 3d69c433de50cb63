package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// field is a world whose members try newcomers.
type field struct {
	*wiring
	cs   []ClientID // members
	busy func(ClientID) bool
}

func newField(t testing.TB, n int) *field {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second, RegisterTimeout: 10 * time.Second})
	f := &field{wiring: newWiring(w), busy: func(ClientID) bool { return false }}
	for range n {
		f.cs = append(f.cs, f.enter())
		f.try()
		if len(f.cs) == 1 {
			w.round(true)
			continue
		}
		ok, _ := f.round()
		require.True(t, ok)
	}
	w.facts = nil
	return f
}

// enter registers a peer with the capability.
func (f *field) enter() ClientID { return f.enterFrom("127.0.0.1:9", true) }

func (f *field) enterFrom(at string, able bool) ClientID {
	c := f.w.connectAt(at)
	f.port++
	f.w.send(c, wire.C2MRequestSessionRegistration{P2PPort: f.port, Ext: wire.Ext{Native: true, Preflight: able, Secured: f.w.secured()}})
	r := want[wire.M2CSessionRegistrationResponse](f.w, c)
	require.True(f.w.t, r.Accepted, r.Ext.Reason)
	require.Equal(f.w.t, able, r.Ext.Preflight)
	return c
}

// answerAll answers preflights also for those who are mute in rounds.
func (f *field) answerAll() {
	mute := f.mute
	f.mute = func(ClientID) bool { return false }
	f.try()
	f.mute = mute
}

// try answers preflights until there are none; mute or busy peers do not.
func (f *field) try() (asked []ClientID) {
	for again := true; again; {
		again = false
		for c := ClientID(1); c <= f.w.next; c++ {
			if f.mute(c) || f.busy(c) {
				continue
			}
			for i := 0; i < len(f.w.inbox[c]); i++ {
				p, is := f.w.inbox[c][i].(wire.M2CPreflight)
				if !is {
					continue
				}
				f.w.inbox[c] = slices.Delete(f.w.inbox[c], i, i+1)
				i--
				if f.w.closed[c] != "" {
					continue
				}
				again = true
				asked = append(asked, c)
				done := wire.C2MPreflightDone{Number: p.Number}
				for _, e := range p.Peers {
					if f.cut(c, f.client(e.UUID)) {
						done.FailedPeers = append(done.FailedPeers, e.UUID)
					}
				}
				f.w.send(c, done)
			}
		}
	}
	return asked
}

func (f *field) pending() bool {
	for _, c := range f.w.accepted() {
		f.w.inbox[c] = slices.DeleteFunc(f.w.inbox[c], func(p wire.Packet) bool { _, is := p.(wire.M2CPreflight); return !is })
		f.w.send(c, wire.C2MCheckPeersPending{})
	}
	c := f.w.accepted()[0]
	p := f.w.inbox[c][len(f.w.inbox[c])-1]
	for _, c := range f.w.accepted() {
		f.w.inbox[c] = f.w.inbox[c][:len(f.w.inbox[c])-1]
	}
	return p.(wire.M2CPeersPendingResponse).PeersPending
}

// A newcomer that cannot be reached, or that reaches no member, costs no round at
// all: a member tries it first, and it tries two members.
func TestPreflightTurnsAwayBeforeARound(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		for _, way := range []string{"in", "out", "silent"} {
			t.Run(fmt.Sprintf("%d members/%s", n, way), func(t *testing.T) {
				f := newField(t, n)
				rounds := f.w.m.round.n
				bad := f.enter()
				f.cut = func(from, to ClientID) bool { return way == "in" && to == bad || way == "out" && from == bad }
				f.mute = func(c ClientID) bool { return way == "silent" && c == bad }
				require.False(t, f.pending(), "it has proved nothing yet")
				asked := f.try()
				switch way {
				case "in":
					f.w.isClosed(bad, "cannot reach it at 127.0.0.1:")
					f.w.isClosed(bad, "forward this port")
					require.GreaterOrEqual(t, len(asked), min(n, targets), "one member alone does not turn it away")
				case "out":
					f.w.isClosed(bad, "cannot reach the members at 127.0.0.1:")
				default:
					f.w.inbox[bad] = nil
					f.w.quiet(bad)
					f.w.after(preflightTime)
					f.w.isClosed(bad, "did not answer")
				}
				require.False(t, f.pending())
				require.Equal(t, rounds, f.w.m.round.n)
				require.Len(t, f.w.closed, 1)
				require.Empty(t, f.w.m.trials.open)
				honest := f.enter()
				f.try()
				require.True(t, f.pending())
				ok, _ := f.round()
				require.True(t, ok)
				require.Contains(t, f.w.accepted(), honest)
			})
		}
	}
}

// A member whose own network is broken does not keep newcomers out: another one
// is asked, and the two are not made neighbours.
func TestPreflightAsksASecondMember(t *testing.T) {
	for seed := range 8 {
		f := newField(t, 4)
		odd := f.cs[seed%4]
		for range 4 {
			n := f.enter()
			f.cut = func(from, to ClientID) bool { return from == odd && !slices.Contains(f.cs, to) }
			f.try()
			require.True(t, f.pending())
			ok, _ := f.round()
			require.NotContains(t, f.w.closed, n)
			if !ok { // it was not asked, and became a neighbour
				ok, _ = f.round()
			}
			require.True(t, ok)
			require.Contains(t, f.w.accepted(), n)
		}
		require.Empty(t, f.w.closed)
	}
}

// A member that leaves, or does not answer, is replaced; with none left the rules
// of rounds have to do.
func TestPreflightGoesOnWithoutItsMember(t *testing.T) {
	f := newField(t, 3)
	n := f.enter()
	f.busy = func(c ClientID) bool { return c != n }
	f.try()
	require.False(t, f.pending())
	by := f.w.m.trials.open[0].by.id
	f.w.leave(by)
	require.NotEqual(t, by, f.w.m.trials.open[0].by.id)
	f.w.after(preflightTime)
	f.w.after(preflightTime)
	require.Empty(t, f.w.m.trials.open)
	require.True(t, f.pending())
	// A newcomer that leaves is forgotten.
	n = f.enter()
	require.NotEmpty(t, f.w.m.trials.open)
	f.w.leave(n)
	require.Empty(t, f.w.m.trials.open)
	for _, c := range f.w.m.clients {
		require.Zero(t, c.trial.trying)
	}
}

// An able member tries a newcomer of an older version or of PCCL, which is asked
// nothing; where no member is able, newcomers are not tried.
func TestPreflightOnlyWhereItIsUnderstood(t *testing.T) {
	f := newField(t, 2)
	old := f.enterFrom("127.0.0.1:9", false)
	require.Empty(t, f.w.inbox[old])
	require.False(t, f.pending())
	f.try()
	require.True(t, f.pending())
	ok, _ := f.round()
	require.True(t, ok)
	pccl := f.join(false)
	require.Empty(t, f.w.inbox[pccl])
	require.False(t, f.pending())
	f.try()
	require.True(t, f.pending())
	require.False(t, f.w.m.conns[pccl].trial.proof.proved, "it has not said whom it reaches")
	shut := f.join(false)
	f.cut = func(_, to ClientID) bool { return to == shut }
	rounds := f.w.m.round.n
	f.try()
	f.w.isClosed(shut, "cannot reach it at 127.0.0.1:")
	require.Equal(t, rounds, f.w.m.round.n)

	w := newWorld(t, Config{})
	w.members(2, true)
	x := newWiring(w)
	n := x.join(true)
	require.True(t, w.m.conns[n].trial.proof.done)
}

// Newcomers that have proved themselves take part in rounds without others, and
// do not wait until those have paid for what they cost; the others all take part
// in the next round, and that before the proved ones have had another.
func TestProvedNewcomersDoNotWaitForOthers(t *testing.T) {
	f := newField(t, 4)
	f.w.lendNothing()
	f.mute = func(c ClientID) bool { return f.w.m.conns[c] != nil && !f.w.m.conns[c].native }
	strangers := func(n int) (cs []ClientID) {
		for range n {
			cs = append(cs, f.join(false))
		}
		f.answerAll()
		return cs
	}
	bad := strangers(6)
	honest := f.enterFrom("127.0.0.5:9", true)
	f.answerAll()
	ok, over := f.round()
	require.True(t, ok && over)
	require.Contains(t, f.w.accepted(), honest)
	for _, c := range bad {
		require.Equal(t, Idle, f.w.state(c))
	}
	// Now it is the turn of the others, all of them, though a proved one waits.
	second := f.enterFrom("127.0.0.5:9", true)
	f.answerAll()
	_, over = f.round()
	require.False(t, over)
	require.Equal(t, Idle, f.w.state(second))
	f.w.after(newcomerTime)
	for _, c := range bad {
		require.Contains(t, f.w.closed, c)
	}
	require.True(t, f.pending(), "the proved one owes nothing")
	ok, over = f.round() // the members repeat it by themselves
	require.True(t, ok && over)
	require.NotContains(t, f.w.accepted(), second)
	bad = strangers(6)
	for range 2 { // a few per second of one host
		f.w.after(failedPause)
		f.answerAll()
	}
	for _, c := range []ClientID{second, f.enterFrom("127.0.0.5:9", true), f.enterFrom("127.0.0.5:9", true)} {
		f.answerAll()
		f.w.inbox[c] = nil
		began := f.w.now
		ok, over = f.round()
		require.True(t, ok && over)
		require.Contains(t, f.w.accepted(), c)
		require.Equal(t, began, f.w.now)
	}
	require.False(t, f.pending(), "the others wait until it is paid back")
	f.w.after(repayFactor * newcomerTime)
	require.True(t, f.pending())
	_, over = f.round()
	require.False(t, over)
	for _, c := range bad {
		require.Equal(t, Connecting, f.w.state(c))
	}
}

// Newcomers that come and go abort no collective.
func TestStrangersAbortNothing(t *testing.T) {
	f := newField(t, 2)
	for _, c := range f.cs {
		f.w.inbox[c] = nil
		f.w.send(c, initiate(1))
	}
	for _, c := range f.cs {
		want[wire.M2CCollectiveCommsCommence](f.w, c)
	}
	for range 3 {
		n := f.enter()
		f.w.leave(n)
	}
	for _, c := range f.cs {
		for _, p := range f.w.inbox[c] {
			require.IsType(t, wire.M2CPreflight{}, p)
		}
		f.w.inbox[c] = nil
		f.w.send(c, complete(1, false))
	}
	for _, c := range f.cs {
		require.False(t, want[wire.M2CCollectiveCommsAbort](f.w, c).Aborted)
	}
}

// A complete vote waits a moment for newcomers on trial, and if that was in vain
// the next ones do not for long.
func TestVoteWaitsForTrials(t *testing.T) {
	f := newField(t, 2)
	vote := func() {
		for _, c := range f.cs {
			f.w.send(c, acceptVote)
		}
	}
	n := f.enter()
	for _, c := range f.cs {
		f.w.inbox[c] = slices.DeleteFunc(f.w.inbox[c], func(p wire.Packet) bool { _, is := p.(wire.M2CPreflight); return !is })
	}
	vote()
	require.Empty(t, f.in(Connecting))
	f.try()
	require.Equal(t, append(slices.Clone(f.cs), n), f.in(Connecting))
	f.w.round(true)
	f.cs = append(f.cs, n)

	slow := f.enter()
	f.busy = func(ClientID) bool { return true }
	vote()
	f.w.after(trialPause - time.Millisecond)
	require.Empty(t, f.in(Connecting))
	f.w.after(time.Millisecond)
	require.Equal(t, f.cs, f.in(Connecting))
	for _, c := range append(f.cs, slow) {
		f.w.inbox[c] = slices.DeleteFunc(f.w.inbox[c], func(p wire.Packet) bool { _, is := p.(wire.M2CPreflight); return is })
	}
	f.w.round(true)
	vote()
	require.Equal(t, f.cs, f.in(Connecting), "it does not wait again so soon")
}

// A vote does not wait for newcomers on trial if others are ready.
func TestVoteForSomeWaitsForNobody(t *testing.T) {
	f := newField(t, 2)
	ready := f.enter()
	f.try()
	f.enter() // on trial
	for _, c := range f.cs {
		f.w.send(c, acceptVote)
	}
	require.Equal(t, append(slices.Clone(f.cs), ready), f.in(Connecting))
}

// The time that a vote has waited for newcomers on trial counts, although they were
// ready in time.
func TestVotesWaitRarelyForTrials(t *testing.T) {
	f := newField(t, 2)
	clear := func(preflights bool) {
		for _, c := range f.cs {
			f.w.inbox[c] = slices.DeleteFunc(f.w.inbox[c], func(p wire.Packet) bool { _, is := p.(wire.M2CPreflight); return is == preflights })
		}
	}
	vote := func() {
		for _, c := range f.cs {
			f.w.send(c, acceptVote)
		}
	}
	n := f.enter()
	clear(false)
	vote()
	require.Empty(t, f.in(Connecting), "nobody is ready")
	f.w.after(trialPause - time.Millisecond)
	f.try()
	require.Equal(t, append(slices.Clone(f.cs), n), f.in(Connecting))
	f.w.round(true)
	f.cs = append(f.cs, n)
	f.enter()
	vote()
	require.Equal(t, f.cs, f.in(Connecting), "members have waited enough")
}

// Many that are not reached and come from one host do not keep others waiting,
// nor do members get more to do than they can.
func TestPreflightsAreBounded(t *testing.T) {
	f := newField(t, 3)
	f.busy = func(c ClientID) bool { return slices.Contains(f.cs, c) }
	for range 200 {
		f.enterFrom("127.6.6.6:1", true)
	}
	load := func(host string) int {
		n := 0
		for _, p := range f.w.m.trials.open {
			if p.by != p.of && p.of.remote.Addr().String() == host {
				n++
			}
		}
		return n
	}
	require.Equal(t, atOnce, load("127.6.6.6"))
	honest := f.enterFrom("127.0.0.1:5", true)
	require.Equal(t, 1, load("127.0.0.1"))
	for range 100 {
		f.enterFrom(fmt.Sprintf("127.7.0.%d:1", f.w.next%250), true)
	}
	for _, c := range f.w.m.clients {
		require.LessOrEqual(t, c.trial.trying, atOnce)
	}
	f.busy = func(ClientID) bool { return false }
	f.try()
	require.True(t, f.w.m.conns[honest].trial.proof.done)
	require.Empty(t, f.w.m.trials.untried)
	ok, _ := f.round()
	require.True(t, ok)
}

// When most members are gone, those that are left do not get all of their trials.
func TestSecondAttemptsAreBounded(t *testing.T) {
	f := newField(t, 9)
	f.busy = func(c ClientID) bool { return slices.Contains(f.cs, c) }
	for i := range 40 {
		f.enterFrom(fmt.Sprintf("127.7.1.%d:1", i), true)
	}
	last := f.w.m.conns[f.cs[8]]
	require.Equal(t, atOnce, last.trial.trying)
	for _, c := range f.cs[:8] {
		f.w.step(Gone{Client: c})
	}
	require.Equal(t, atMost, last.trial.trying)
}

// Newcomers that are not reached and come again at once, with ever new ports,
// cost members neither a round nor more trials than a few per second; those from
// elsewhere do not wait for them, and one from the same host not for long.
func TestReturningNewcomersCostFewTrials(t *testing.T) {
	f := newField(t, 4)
	f.cut = func(_, to ClientID) bool {
		return strings.HasPrefix(f.w.m.conns[to].remote.String(), "127.6.6.6:") && f.w.m.conns[to].listens.p2p != 7
	}
	rounds, trials := f.w.m.round.n, f.w.m.numbers.preflights
	var ghosts [20]ClientID
	haunt := func() {
		for i, c := range ghosts {
			for c == 0 || f.w.closed[c] != "" {
				c = f.enterFrom("127.6.6.6:1", false)
				ghosts[i] = c
				f.try()
				require.Less(t, f.w.m.numbers.preflights-trials, uint64(1000), "trials")
				if f.w.closed[c] == "" {
					break
				}
			}
		}
	}
	const seconds = 60
	for range seconds * 10 {
		haunt()
		f.w.after(100 * time.Millisecond)
		f.try()
		require.False(t, f.pending())
	}
	require.Equal(t, rounds, f.w.m.round.n)
	require.LessOrEqual(t, f.w.m.numbers.preflights-trials, uint64(targets*atOnce*(seconds+2)), "trials")
	require.Greater(t, f.w.m.numbers.preflights-trials, uint64(atOnce*seconds))
	elsewhere := f.enter()
	f.try()
	require.True(t, f.w.m.conns[elsewhere].trial.proof.done)
	f.port = 6
	same := f.enterFrom("127.6.6.6:1", true)
	f.port = 40000
	for range 100 {
		haunt()
		f.w.after(100 * time.Millisecond)
		f.try()
	}
	require.True(t, f.w.m.conns[same].trial.proof.done)
}

// The first peer of a run may be out of reach for all: the first newcomer
// that says so is told, and with the second it has to go.
func TestLonePeerOutOfReach(t *testing.T) {
	f := newField(t, 1)
	lone := f.cs[0]
	f.cut = func(_, to ClientID) bool { return to == lone }
	first := f.enter()
	f.try()
	f.w.isClosed(first, "cannot reach the members at 127.0.0.1:5001")
	second := f.enter()
	f.try()
	f.w.isClosed(lone, "newcomers cannot reach it at 127.0.0.1:5001: forward")
	require.NotContains(t, f.w.closed, second)
	want[wire.M2CPeerDropped](f.w, second)
	f.w.round(true)
	require.Equal(t, []ClientID{second}, f.w.accepted())
}
