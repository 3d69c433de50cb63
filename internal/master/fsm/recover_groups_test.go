package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// twoGroups is a registry of two groups that have stood in round 9.
func twoGroups(a, b []wire.UUID) Registry {
	return Registry{Groups: []GroupRecord{{ID: 0, Round: 9, Members: a}, {ID: 1, Round: 9, Members: b}}}
}

// A group that was told of the end of an optimization goes on, and its reports forget that: the
// other one, which waits for it, hears of it, too.
func TestRecoveredOptimizationIsOverForSome(t *testing.T) {
	others := []wire.UUID{uuidOf(3), uuidOf(4)}
	w := heir(t, Config{Term: 1, Authority: true, Registry: twoGroups(two, others)})
	r := stood(two...)
	r.Round.Decision = 12 // after the optimization
	a, b := w.returns(two[0], r), w.returns(two[1], r)
	r = stood(others...)
	r.Call.Step = wire.StepOptimized
	c := w.returnsIn(1, others[0], r)
	r.Call.Step = wire.StepProbing
	d := w.returnsIn(1, others[1], r)
	w.quiet(a, b, c, d)
	w.send(d, wire.C2MOptimizeTopologyWorkComplete{})
	for _, x := range []ClientID{c, d} {
		require.True(t, want[wire.M2COptimizeTopologyComplete](w, x).Success)
	}
	w.quiet(a, b, c, d)
}

// A group that repeats its part of a round, while others go on, waits for none of them under the
// next master either: their calls do not conflict. One that votes for a round of its own does.
func TestRecoveredRepetitionWaitsForNoOthers(t *testing.T) {
	others := []wire.UUID{uuidOf(3)}
	for _, failed := range []uint64{0, 12} {
		w := heir(t, Config{Term: 1, Authority: true, Registry: twoGroups(two, others)})
		r := stood(two...)
		r.Round.Decision = 12
		r.Call.Step = wire.StepOptimize
		a, b := w.returns(two[0], r), w.returns(two[1], r)
		r = stood(others...)
		r.Call = wire.ReportedCall{Step: wire.StepAccept, Decision: failed}
		c := w.returnsIn(1, others[0], r)
		if failed == 0 {
			w.isClosed(c, "the calls of the peers conflict")
			continue
		}
		want[wire.M2CP2PConnectionInfo](w, c)
		w.quiet(a, b)
		w.obey(w.feed(PacketIn{c, wire.C2MP2PConnectionsEstablished{Success: true}}))
		require.True(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, wire.C2MOptimizeTopology{})
		for _, x := range []ClientID{a, b, c} {
			want[wire.M2COptimizeTopologyResponse](w, x)
		}
	}
}

// Newcomers do not know whom a round before them had: without a registry a master waits for those
// as long as for others, and not as for members that look dead.
func TestNewcomersDoNotKnowWhoIsMissing(t *testing.T) {
	w := heir(t, Config{Term: 1})
	r := wire.C2MReport{Round: wire.StoodRound{World: 4, Groups: 1}, Call: wire.ReportedCall{Step: wire.StepConnecting, Decision: 7}}
	w.returns(two[0], r)
	w.after(2 * brokenGrace)
	require.Empty(t, w.accepted())
	require.True(t, w.m.recovery.on)
}
