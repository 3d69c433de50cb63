package fsm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// The master before may have told the names of a round to some and not to others, who take no
// connection from those whose names they do not know.
func TestNamesAreToldAgainInARecovery(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	w.name = "gpu-1"
	a := w.returns(two[0], stood(two...))
	w.name = "gpu-2"
	b := w.comes(two[1], 0, [16]byte{})
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, b).Accepted)
	w.obey(w.feed(PacketIn{b, stood(two...)}))
	require.Equal(t, wire.M2CResumed{}, w.pop(b))
	for _, c := range []ClientID{a, b} {
		names := map[wire.UUID]string{}
		for _, m := range want[wire.M2CNames](w, c).Members {
			names[m.UUID] = m.Name
		}
		require.Equal(t, map[wire.UUID]string{two[0]: "gpu-1", two[1]: "gpu-2"}, names)
	}
}

// A newcomer that was gone for a moment, while members connect to it in a round, waits for the end
// of that round, and hears whose connections it has to take. It is not turned back.
func TestNewcomersOutliveTheirRound(t *testing.T) {
	w := newWorld(t, Config{Resume: true, Linger: 2 * time.Second, HeartbeatInterval: time.Hour, HeartbeatTimeout: 3 * time.Hour})
	w.resume = true
	a := w.members(1, true)[0]
	w.name = "gpu-1"
	b := w.join(0, true)
	u := w.ids[b]
	w.send(a, acceptVote)
	require.Len(t, want[wire.M2CP2PConnectionInfo](w, a).Peers, 1)
	w.leave(b) // it has heard nothing of the round
	w.now += 2 * firstWait
	w.inbox[a] = nil

	back := w.comes(u, 0, [16]byte{})
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, back).Accepted)
	w.send(back, wire.C2MReport{})
	require.Len(t, want[wire.M2CNames](w, back).Members, 1)
	w.quiet(back)
	w.send(a, wire.C2MP2PConnectionsEstablished{Success: true})
	require.Equal(t, wire.M2CResumed{}, w.pop(back))
	require.NotContains(t, w.closed, back)
}

// While it waits, a member comes back over another connection, and all say again what they hold: it
// does, too.
func TestNewcomersWaitThroughABlip(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(2, true)
	w.name = "gpu-1"
	b := w.join(0, true)
	u := w.ids[b]
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	w.leave(b)
	w.now += 2 * firstWait
	for _, c := range cs {
		w.inbox[c] = nil
	}
	back := w.comes(u, 0, [16]byte{})
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, back).Accepted)
	w.send(back, wire.C2MReport{})
	want[wire.M2CNames](w, back)
	w.name = ""
	w.returnsTo(cs, 1)
	require.Equal(t, wire.M2CResumed{}, w.pop(back))
	require.NotContains(t, w.closed, back)
	want[wire.M2CReportAgain](w, back)
	require.False(t, slices.ContainsFunc(w.m.recovery.back, func(b *comeback) bool { return b.waits }))
}

// A connection that has to go while a drop awaits the authority asks for no tick in the past: the
// shell would run in circles.
func TestClosedStrangersAreNotDue(t *testing.T) {
	w := newWorld(t, Config{Resume: true, Authority: true, RegisterTimeout: time.Second, HeartbeatInterval: time.Hour, HeartbeatTimeout: 3 * time.Hour})
	w.resume = true
	asked := false
	w.answer = func(e Effect) Event {
		switch e := e.(type) {
		case Commit:
			return Committed{e.Number}
		case Confirm:
			asked = true // and never answered
		}
		return nil
	}
	w.members(3, true)
	w.connectAt("127.0.0.1:9")
	w.m.clients[0].kicked(w)
	require.True(t, asked)
	w.now += 2 * time.Second
	w.step(Tick{})
	due, has := w.m.Deadline()
	require.False(t, has && due <= w.now, "due at %v, and it is %v", due, w.now)
}
