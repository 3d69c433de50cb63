package fsm

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// Newcomers that are let into a round and say nothing: however often they come,
// with ever new ports, the members keep nearly all of their time, and an honest
// newcomer that comes with the first of them is let in.
func TestSilentNewcomersCostLittle(t *testing.T) {
	for _, crash := range []bool{false, true} {
		w := newWorld(t, Config{RoundTimeout: 12 * time.Second, RegisterTimeout: 10 * time.Second})
		cs := w.members(4, true)
		honest := w.join(0, true)
		x := newWiring(w)
		x.mute = func(c ClientID) bool { return c != honest && !slices.Contains(cs, c) }
		var bad ClientID
		lost, failed := time.Duration(0), 0
		const whole = 30 * time.Minute
		for w.now < whole {
			if bad == 0 || w.closed[bad] != "" {
				bad = x.join(false)
			}
			began := w.now
			_, over := x.round()
			if !over {
				if crash {
					w.after(time.Second)
					w.leave(bad)
					w.closed[bad] = "left"
				} else {
					w.after(newcomerTime)
				}
				ok, over := x.verdict(cs)
				require.True(t, over && !ok)
				failed++
				lost += w.now - began
				if failed == 1 {
					require.Contains(t, w.accepted(), honest, "it reported success: it takes part in the repetition")
				}
			}
			w.after(50 * time.Millisecond) // a step
		}
		require.Greater(t, failed, 5)
		require.Less(t, float64(lost)/float64(whole), 0.05)
		require.Equal(t, append(cs, honest), w.accepted()[:5])
		for _, c := range append(cs, honest) {
			require.NotContains(t, w.closed, c)
		}
	}
}

// lendNothing has rounds that newcomers cost paid back before others come.
func (w *world) lendNothing() {
	w.m.debt.proved = account{paid: w.now + repayFactor*unpaid}
	w.m.debt.others = w.m.debt.proved
}

// asks is pending behind whatever cs have heard before.
func (w *world) asks(cs []ClientID) bool {
	for _, c := range cs {
		w.inbox[c] = nil
	}
	defer w.quiet(cs...)
	return w.pending(cs)
}

// Newcomers that die in a round, as some do in every long run, do not keep others out, until the
// members have lost more than they lend. Then all is paid back but that.
func TestFewLostRoundsKeepNobodyOut(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	dies := ClientID(0)
	x := newWiring(w)
	x.mute = func(c ClientID) bool { return c == dies }
	const took = 900 * time.Millisecond
	lost := time.Duration(0)
	for ; lost <= 10*time.Second; lost += took {
		dies = x.join(true)
		require.True(t, w.asks(cs), "after %v", lost)
		_, over := x.round()
		require.False(t, over)
		w.after(took)
		w.leave(dies)
		ok, over := x.verdict(cs)
		require.True(t, over && !ok)
		ok, _ = x.round()
		require.True(t, ok)
	}
	require.True(t, slices.ContainsFunc(w.facts, func(f Fact) bool {
		return f.Kind == "round" && strings.Contains(f.Text, "no more of them are let in for 1m")
	}))
	x.join(true)
	require.False(t, w.asks(cs))
	w.after(100 * (lost - 10*time.Second))
	require.True(t, w.asks(cs))
}

// What is lent is time, and would be hundreds of short rounds in a row: the members repeat by themselves
// each that newcomers cost, and come to a step. Of what that costs not every time is told.
func TestShortRoundsAreNotLostInARow(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	x := newWiring(w)
	x.mute = func(c ClientID) bool { return !slices.Contains(cs, c) }
	const rounds, took = 2000, 20 * time.Millisecond
	lost, closed := 0, 0
	for range rounds {
		bad := x.join(true)
		_, over := x.round()
		if over { // the newcomer waits
			closed++
			w.leave(bad)
			w.after(took)
			continue
		}
		lost++
		w.after(took)
		w.leave(bad)
		ok, over := x.verdict(cs)
		require.True(t, over && !ok)
		x.join(true) // it would spoil the repetition
		ok, over = x.round()
		require.True(t, over && ok, "after %d", lost)
		for _, i := range w.m.Snapshot().Clients {
			if i.Phase != Accepted {
				w.leave(i.ID)
			}
		}
	}
	require.Greater(t, lost, 450, "they were lent that much")
	require.Greater(t, closed, 900)
	told := 0
	for _, f := range w.facts {
		if f.Kind == "round" && strings.Contains(f.Text, "no more of them are let in") {
			told++
			require.Contains(t, f.Text, "for 2s")
		}
	}
	require.LessOrEqual(t, told, 1+int(time.Duration(closed)*took/time.Second))
	require.Positive(t, told)
	established := slices.IndexFunc(w.facts, func(f Fact) bool { return strings.Contains(f.Text, "connections established (and ") })
	require.GreaterOrEqual(t, established, 0, "the log says how many lines like it are left out")
}

// Proved newcomers that go on costing rounds keep no others out, who need not have cost any.
func TestProvedNewcomersDoNotShutOthersOut(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	w.lendNothing()
	x := newWiring(w)
	var dies ClientID
	x.mute = func(c ClientID) bool { return c == dies }
	prove := func(c ClientID, proved bool) {
		w.m.conns[c].trial.proof.proved = proved
	}
	honest := x.join(true)
	prove(honest, false)
	for n := 0; !slices.Contains(w.accepted(), honest); n++ {
		require.Less(t, n, 4)
		w.inbox[honest] = nil
		if dies == 0 {
			dies = x.join(true)
			prove(dies, true)
		}
		if _, over := x.round(); over {
			w.after(50 * time.Millisecond)
			continue
		}
		w.after(100 * time.Millisecond)
		w.leave(dies)
		dies = 0
		ok, over := x.verdict(cs)
		require.True(t, over && !ok)
	}
}

// Members do not ask for rounds that would be put off.
func TestPendingWaitsForTheDebt(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	w.lendNothing()
	bad := w.join(0, true)
	x := newWiring(w)
	x.mute = func(c ClientID) bool { return c == bad }
	_, over := x.round()
	require.False(t, over)
	w.after(newcomerTime)
	require.Contains(t, w.closed, bad)
	ok, _ := x.round()
	require.True(t, ok)
	n := x.join(true)
	require.False(t, w.asks(cs))
	x.round() // nor does a vote without asking let it in
	w.quiet(n)
	w.after(repayFactor * newcomerTime)
	require.True(t, w.asks(cs))
	ok, _ = x.round()
	require.True(t, ok)
	require.Contains(t, w.accepted(), n)
}

// A newcomer that is closed amid a round has cost it as much as one that leaves.
func TestClosedNewcomerCostsTheRound(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	x := newWiring(w)
	bad := x.join(true)
	x.mute = func(c ClientID) bool { return c == bad }
	_, over := x.round()
	require.False(t, over)
	w.after(900 * time.Millisecond)
	w.send(bad, acceptVote)
	w.isClosed(bad, "is not allowed in state")
	ok, over := x.verdict(cs)
	require.True(t, over && !ok)
	require.Equal(t, w.now+repayFactor*900*time.Millisecond, w.m.debt.others.paid)
	c := w.connectAt("127.0.0.1:9")
	w.send(c, wire.C2MRequestSessionRegistration{P2PPort: x.port, Ext: wire.Ext{Native: true}})
	require.Contains(t, want[wire.M2CSessionRegistrationResponse](w, c).Ext.Reason, "try again in 2s")
}

// A newcomer that a failed round has let in, and that leaves its repetition, has cost that as well: the
// next one is the members' own, too.
func TestNewcomerCostsTheRepetition(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	x := newWiring(w)
	var dies ClientID
	x.mute = func(c ClientID) bool { return c == dies }
	for n := range time.Duration(20) {
		first, second := x.join(true), x.join(true)
		for _, dies = range []ClientID{first, second} {
			_, over := x.round()
			require.False(t, over)
			w.after(20 * time.Millisecond)
			w.leave(dies)
			ok, over := x.verdict(cs)
			require.True(t, over && !ok)
		}
		require.Greater(t, w.m.debt.others.paid, (n+1)*repayFactor*40*time.Millisecond)
		x.join(true)
		ok, over := x.round()
		require.True(t, over && ok)
		require.Equal(t, cs, w.accepted())
		for _, i := range w.m.Snapshot().Clients {
			if i.Phase != Accepted {
				w.leave(i.ID)
			}
		}
	}
}

// What a member would have cost the others alone is not charged to newcomers.
func TestSilentMemberIsNoDebt(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(3, true)
	w.lendNothing()
	x := newWiring(w)
	n := x.join(true)
	x.mute = func(c ClientID) bool { return c == cs[2] }
	_, over := x.round()
	require.False(t, over)
	w.after(11900 * time.Millisecond)
	w.leave(n) // it had reported success
	w.after(100 * time.Millisecond)
	require.Contains(t, w.closed, cs[2])
	require.Less(t, w.m.debt.others.opens(), w.m.now)
	next := x.join(true)
	ok, over := x.round()
	require.True(t, ok && over)
	require.Contains(t, w.accepted(), next)
}

// Where newcomers are put off for longer than was told, it is told again.
func TestLongerWaitIsTold(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	w.lendNothing()
	x := newWiring(w)
	first, second := x.join(true), x.join(true)
	for _, mute := range []ClientID{first, second} {
		x.mute = func(c ClientID) bool { return c == mute }
		_, over := x.round()
		require.False(t, over)
		w.after(200 * time.Millisecond)
		if mute == first {
			w.leave(first)
			x.verdict(cs)
		}
	}
	w.after(newcomerTime) // the second says nothing
	require.Contains(t, w.closed, second)
	var told []string
	for _, f := range w.facts {
		if _, wait, ok := strings.Cut(f.Text, "no more of them are let in for "); ok {
			told = append(told, wait)
		}
	}
	require.Len(t, told, 2)
	require.Equal(t, "20s", told[0])
	wait, err := time.ParseDuration(told[1])
	require.NoError(t, err)
	require.InDelta(t, w.m.debt.others.opens()-w.m.now, wait, float64(500*time.Millisecond))
}

// The repetition of a group that nobody is left of keeps no newcomers of others out.
func TestNobodyRepeats(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(2, true)
	x := newWiring(w)
	other := w.join(1, true)
	_, over := x.round()
	require.True(t, over)
	require.Contains(t, w.accepted(), other)
	dies := w.join(1, true)
	x.mute = func(c ClientID) bool { return c == dies }
	x.round()
	w.after(20 * time.Millisecond)
	w.leave(dies)
	ok, over := x.verdict(cs)
	require.True(t, ok && over)
	w.leave(other)
	honest := x.join(true)
	x.round()
	require.Contains(t, w.accepted(), honest)
}
