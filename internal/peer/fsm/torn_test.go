package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// A torn state says so to a master that understands it; one that does not must
// not get it as a candidate. It is refused before anything is sent, and the
// question that comes before the tensors are hashed has the same answer.
func TestTornStateVotes(t *testing.T) {
	entries := []wire.StateEntry{{Key: "w", Hash: 7}}
	for _, native := range []bool{true, false} {
		for strategy := wire.EnforcePopular; strategy <= wire.SendOnly; strategy++ {
			r := connected(t, native, 1, 2)
			refused := strategy == wire.SendOnly || !native && strategy != wire.ReceiveOnly
			ask, c := r.newCall(), r.newCall()
			r.step(AskSync{Call: ask, Strategy: strategy, Torn: true})
			require.Len(t, r.fx, 1)
			r.step(CallSync{Call: c, Revision: 9, Strategy: strategy, Torn: true, Entries: entries})
			if refused {
				r.failed(ask, errs.InvalidUsage)
				r.failed(c, errs.InvalidUsage)
				r.silent()
				continue
			}
			r.ok(ask)
			r.sent(wire.C2MSyncSharedState{Revision: 9, Strategy: strategy, Entries: entries, Ext: wire.Ext{Torn: native}})
		}
	}
}

// The master's reason for an election without a winner is the call's.
func TestReasonOfALostState(t *testing.T) {
	r := connected(t, true, 1, 2)
	c := r.sync("w")
	r.in(wire.M2CSyncSharedState{IsOutdated: true, Ext: wire.Ext{Reason: "load a checkpoint"}})
	r.sent(wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: true}})
	r.in(wire.M2CSyncSharedStateComplete{})
	require.ErrorContains(t, r.failed(c, errs.TransferFailed, errs.NoSharedStateAvailable), "load a checkpoint")
}
