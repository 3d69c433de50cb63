package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// A neighbour that has ended a connection in a round, or while a ring is prepared, may have others
// by now, and still listen. One that does not is named to the next master.
func TestLooksForNeighbours(t *testing.T) {
	for name, begin := range map[string]func(r *rig){
		"vote":        func(r *rig) { r.update() },
		"round":       func(r *rig) { r.update(); r.in(r.info([]int{1, 2, 3})) },
		"preparation": func(r *rig) { r.in(wire.M2CPrepareRing{Change: 400, Peers: endpoints(3)}) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, listens := range []bool{true, false} {
				r := connectedAs(t, canResume, resumes, true, 1, 2, 3)
				begin(r)
				r.step(MasterGone{})
				r.step(LinkEnded{Peer: uid(2)})
				e := want[Preflight](r)
				require.Equal(t, endpoints(2), e.Peers)
				if listens {
					r.step(Preflighted{Number: e.Number})
					require.Empty(t, r.reattach().Broken)
					continue
				}
				r.step(Preflighted{Number: e.Number, Failed: uids(2)})
				r.silent()
				require.Equal(t, uids(2), r.reattach().Broken)
			}

			// It may turn out behind the report.
			r := connectedAs(t, canResume, resumes, true, 1, 2, 3)
			begin(r)
			r.step(MasterGone{})
			r.step(LinkEnded{Peer: uid(2)})
			e := want[Preflight](r)
			require.Empty(t, r.reattach().Broken)
			r.step(Preflighted{Number: e.Number, Failed: uids(2)})
			r.sent(wire.C2MPreflightDone{FailedPeers: uids(2)})
		})
	}
	r := connected(t, true, 1, 2, 3)
	r.update()
	r.step(LinkEnded{Peer: uid(2)})
	_, tries := has[Preflight](r)
	require.False(t, tries, "the session does not resume")
}

// Who could not be reached in a round is named, too, until it is tried again.
func TestUnreachedAreMissed(t *testing.T) {
	r := connectedAs(t, canResume, resumes, true, 1, 2, 3)
	r.update()
	r.in(r.info([]int{1, 2, 3}))
	r.step(LinkEnded{Peer: uid(2)})
	late := want[Preflight](r)
	r.step(Established{Round: 2, Failed: uids(2)})
	r.step(MasterGone{})
	require.Equal(t, uids(2), r.reattach().Broken)
	r.in(wire.M2CResumed{})
	r.in(wire.M2CP2PConnectionsEstablished{})
	r.in(r.info([]int{1, 2, 3}))
	r.step(Preflighted{Number: late.Number, Failed: uids(2)}) // of the round before
	r.silent()
	r.step(MasterGone{})
	require.Empty(t, r.reattach().Broken)
}
