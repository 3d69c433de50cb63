package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// A newcomer that comes back when the others have gone on says what it still had to say to the
// master before, and may ask: it stays.
func TestLateNewcomerSaysWhatIsOver(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	a, b := w.returns(two[0], stood(two...)), w.returns(two[1], stood(two...))
	w.quiet(a, b)
	late := w.comes(uuidOf(3), 1, [16]byte{})
	want[wire.M2CSessionRegistrationResponse](w, late)
	r := wire.C2MReport{Call: wire.ReportedCall{Step: wire.StepConnecting, Decision: 4}}
	w.send(late, r)
	require.Equal(t, wire.M2CResumed{}, w.pop(late))
	w.send(late, wire.C2MPreflightDone{Number: 3})
	w.send(late, wire.C2MAskTopology{})
	want[wire.M2CTopology](w, late)
	w.send(late, wire.C2MP2PConnectionsEstablished{Success: true})
	require.False(t, want[wire.M2CP2PConnectionsEstablished](w, late).Success)
}

// A member without neighbours that others wait for, which is away, is not given up when this
// master has stood still meanwhile: it may be about to be heard.
func TestAwayWhileTheMasterStandsStill(t *testing.T) {
	for _, still := range []time.Duration{time.Second, 3 * time.Second, 20 * time.Second} {
		w := newWorld(t, Config{Resume: true, Linger: 2 * time.Second, HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second})
		w.resume = true
		c := w.member(0, true)
		w.join(0, true) // waits to be let in
		u := w.ids[c]
		w.obey(w.feed(Gone{c, "reset"}))
		w.now += still
		w.step(Tick{})
		w.after(lookAfter)
		require.Len(t, w.accepted(), 1, "%v", still)
		back := w.comes(u, 0, [16]byte{})
		require.True(t, want[wire.M2CSessionRegistrationResponse](w, back).Accepted, "%v", still)
	}
}

// Who has come back and whose report is slow has as long as it may be silent: its connection
// stands.
func TestSlowReport(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	a := w.returns(two[0], stood(two...))
	b := w.comes(two[1], 0, [16]byte{})
	want[wire.M2CSessionRegistrationResponse](w, b)
	w.after(4 * time.Second)
	w.inbox[a], w.inbox[b] = nil, nil // signs of life
	w.send(b, stood(two...))
	want[wire.M2CResumed](w, b)
	require.Len(t, w.accepted(), 2)
}

// A master whose authority does not answer does not run hot: what is due waits for the answer.
func TestNoHurryWhileTheAuthorityIsSilent(t *testing.T) {
	w := newWorld(t, Config{Resume: true, Authority: true, RoundTimeout: 4 * time.Second, HeartbeatInterval: time.Hour, HeartbeatTimeout: 3 * time.Hour})
	w.resume = true
	silent := false
	w.answer = func(e Effect) Event {
		switch e := e.(type) {
		case Commit:
			return Committed{e.Number}
		case Confirm:
			if !silent {
				return Confirmed(e)
			}
		}
		return nil
	}
	cs := w.members(3, true)
	silent = true
	for _, c := range cs {
		w.send(c, establishVote)
	}
	w.send(cs[0], connected)
	w.send(cs[1], connected) // and the third one never does
	steps := 0
	for end := w.now + time.Minute; w.now < end; steps++ {
		due, ok := w.m.Deadline()
		if !ok {
			break
		}
		w.now = max(w.now, due)
		w.step(Tick{})
		require.Less(t, steps, 10000)
	}
	require.NotZero(t, w.m.records.drop)
}

// Without a registry the newcomers of the last round are waited for, too: one of them may be
// the only one that has heard that its ring stands. Those who had left before are not.
func TestRoundWithANewcomerWithoutARegistry(t *testing.T) {
	w := heir(t, Config{})
	r := stood(uuidOf(1), uuidOf(2)) // of whom the second has left
	r.Round.Gone = []wire.UUID{uuidOf(2)}
	r.Call = wire.ReportedCall{Step: wire.StepRing, Decision: 10}
	r.Round.World = 2 // the first and a newcomer
	a := w.returns(uuidOf(1), r)
	require.True(t, w.m.recovery.on)
	three := []wire.UUID{uuidOf(1), uuidOf(3)}
	n := wire.C2MReport{Round: wire.StoodRound{Decision: 10, Ring: three, Members: three, World: 2, Groups: 1}}
	w.returns(uuidOf(3), n)
	require.False(t, w.m.recovery.on)
	require.Equal(t, three, want[wire.M2CP2PConnectionsEstablished](w, a).Ring)
}

// A newcomer of an earlier round has no place in the world of the last one: the member that
// is missing is waited for.
func TestNewcomerOfAnEarlierRound(t *testing.T) {
	w := heir(t, Config{})
	n := wire.C2MReport{Round: wire.StoodRound{World: 2, Groups: 1}, Call: wire.ReportedCall{Step: wire.StepConnecting, Decision: 10}}
	w.returns(uuidOf(3), n)
	n.Call.Decision = 9
	w.returns(uuidOf(2), n)
	require.True(t, w.m.recovery.on)
	r := stood(uuidOf(1))
	r.Call = wire.ReportedCall{Step: wire.StepConnecting, Decision: 10}
	r.Round.World = 2
	w.returns(uuidOf(1), r)
	require.False(t, w.m.recovery.on)
}

// A member in a round has no mesh any more: it hears nothing of one.
func TestNoMeshInARound(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	r := stood(two...)
	r.Mesh = wire.ReportedMesh{Step: wire.MeshSettled, Change: 5, Planner: wire.MeshDirect}
	w.returns(two[0], r)
	r = stood(two...)
	r.Call = wire.ReportedCall{Step: wire.StepRing, Decision: 10}
	b := w.returns(two[1], r)
	require.False(t, want[wire.M2CP2PConnectionsEstablished](w, b).Success)
}
