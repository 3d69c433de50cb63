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
	type story struct {
		failed uint64
		waits  bool // one of those who go on has not heard that their part of the round stands
	}
	for _, s := range []story{{}, {failed: 12}, {failed: 14}, {failed: 12, waits: true}} {
		w := heir(t, Config{Term: 1, Authority: true, Registry: twoGroups(two, others)})
		r := stood(two...)
		r.Round.Decision = 12
		r.Call.Step = wire.StepOptimize
		a := w.returns(two[0], r)
		if s.waits {
			r = stood(two...)
			r.Call = wire.ReportedCall{Step: wire.StepRing, Decision: 12}
		}
		b := w.returns(two[1], r)
		r = stood(others...)
		r.Call = wire.ReportedCall{Step: wire.StepAccept, Decision: s.failed}
		c := w.returnsIn(1, others[0], r)
		if s.failed == 0 {
			w.isClosed(c, "the calls of the peers conflict")
			continue
		}
		want[wire.M2CP2PConnectionInfo](w, c)
		if s.waits {
			require.True(t, want[wire.M2CP2PConnectionsEstablished](w, b).Success)
			w.send(b, wire.C2MOptimizeTopology{})
		}
		w.quiet(a, b)
		w.obey(w.feed(PacketIn{c, wire.C2MP2PConnectionsEstablished{Success: true}}))
		require.True(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, wire.C2MOptimizeTopology{})
		for _, x := range []ClientID{a, b, c} {
			want[wire.M2COptimizeTopologyResponse](w, x)
		}
	}
}

// All groups repeat a round together that none of them stands in. A member may not have heard that it
// had begun, or not yet that it has failed, and the order in which they come back says nothing: a group
// that began alone would make the next call while the others still wait for it in this one.
func TestRecoveredRepetitionOfAllGroups(t *testing.T) {
	failed := wire.ReportedCall{Step: wire.StepAccept, Decision: 12}
	unheard := wire.ReportedCall{Step: wire.StepAccept}
	connecting := wire.ReportedCall{Step: wire.StepConnecting, Decision: 12}
	others := []wire.UUID{uuidOf(3), uuidOf(4)}
	for name, calls := range map[string][3]wire.ReportedCall{ // of the one in group 0, and of the others
		"all know":                     {failed, failed, failed},
		"one has not heard of it":      {failed, failed, unheard},
		"a group has not heard of it":  {failed, unheard, unheard},
		"one connects":                 {failed, failed, connecting},
		"a group connects":             {failed, connecting, connecting},
		"one connects, one is unheard": {failed, unheard, connecting},
		"the others know":              {connecting, failed, failed},
		"the others have not heard":    {connecting, unheard, unheard},
	} {
		for _, order := range [][3]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {0, 2, 1}, {2, 0, 1}, {1, 2, 0}} {
			w := heir(t, Config{Term: 1, Authority: true, Registry: twoGroups(two[:1], others)})
			var cs [3]ClientID
			for _, i := range order {
				r := stood(two[:1]...)
				if i > 0 {
					r = stood(others...)
				}
				r.Call = calls[i]
				cs[i] = w.returnsIn(min(uint32(i), 1), append(two[:1:1], others...)[i], r)
			}
			for i, c := range cs { // to each other, or to neighbours in a round that nobody stands in
				if calls[i].Step == wire.StepConnecting {
					w.send(c, connected)
				}
			}
			for i, c := range cs {
				if calls[i].Step == wire.StepConnecting {
					require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success, name)
					w.send(c, acceptVote)
				}
			}
			decision := want[wire.M2CP2PConnectionInfo](w, cs[0]).Ext.Resuming.Decision
			for _, c := range cs[1:] {
				require.Equal(t, decision, want[wire.M2CP2PConnectionInfo](w, c).Ext.Resuming.Decision, name)
			}
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
