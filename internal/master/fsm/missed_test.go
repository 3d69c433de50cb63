package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// In a round one member is enough that cannot reach another one: those beside that in the ring
// in force may have other neighbours by now. It may say so behind its report.
func TestNoLongRecoveryForWhoIsMissedInARound(t *testing.T) {
	three := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	const long = 5*time.Second + returnTime
	for name, c := range map[string]struct {
		broken bool
		step   wire.ReportStep // of the one that does not say it
		says   wire.Packet
		grace  time.Duration
	}{
		"both in a round":          {true, wire.StepEstablish, nil, brokenGrace},
		"nobody says so":           {false, wire.StepEstablish, nil, long},
		"a neighbour has not lost": {true, wire.StepNone, nil, long},
		"the round fails later":    {false, wire.StepRing, wire.C2MP2PConnectionsEstablished{FailedPeers: three[2:]}, brokenGrace},
		"it is tried later":        {false, wire.StepRing, wire.C2MPreflightDone{FailedPeers: three[2:]}, brokenGrace},
		"another master had asked": {false, wire.StepRing, wire.C2MPreflightDone{Number: 3, FailedPeers: three[2:]}, long},
		"its connection has ended": {false, wire.StepRing, wire.C2MLinkEnded{Peer: three[2]}, long},
	} {
		t.Run(name, func(t *testing.T) {
			w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(three...)})
			r := stood(three...)
			r.Call = wire.ReportedCall{Step: wire.StepConnecting, Decision: 10}
			if c.broken {
				r.Broken = three[2:]
			}
			a := w.returns(three[0], r)
			r = stood(three...)
			r.Call = wire.ReportedCall{Step: c.step}
			w.returns(three[1], r)
			if c.says != nil {
				w.obey(w.feed(PacketIn{a, c.says}))
			}
			require.Equal(t, c.grace, w.m.until(w.m.survey())-w.m.recovery.since)
		})
	}
}

// What one member says costs memory for members only, however often and of whom it says it.
func TestUnreachedAreMembers(t *testing.T) {
	three := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(three...)})
	a := w.returns(three[0], stood(three...))
	for i := range byte(100) {
		w.obey(w.feed(PacketIn{a, wire.C2MPreflightDone{FailedPeers: []wire.UUID{three[2], uuidOf(100 + i)}}}))
	}
	require.Equal(t, three[2:], w.m.recovery.back[0].report.Broken)
}

// A newcomer in a round may not reach members that a master has not told of it: what it says puts
// none of them out.
func TestNewcomersMissNobody(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two[0])})
	r := wire.C2MReport{Round: wire.StoodRound{World: 2, Groups: 1}, Call: wire.ReportedCall{Step: wire.StepRing, Decision: 10, Failed: two[:1]}, Broken: two[:1]}
	w.returns(two[1], r)
	require.Equal(t, 5*time.Second+returnTime, w.m.until(w.m.survey())-w.m.recovery.since)
}
