package errs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
)

// What is said about an error is said about a copy: an error that others hold
// already stays what it was.
func TestSayingMoreChangesNoOtherError(t *testing.T) {
	reset := errors.New("reset")
	lost := errs.New(errs.RankConnectionLost, "all-reduce", reset)
	phase := lost.WithPhase("data phase")
	peer := phase.WithPeer("0102")
	hint := peer.WithHint("launch again")
	require.EqualError(t, lost, "gopccl: all-reduce: rank connection lost: reset")
	require.EqualError(t, phase, "gopccl: all-reduce (data phase): rank connection lost: reset")
	require.EqualError(t, peer, "gopccl: all-reduce (data phase) with 0102: rank connection lost: reset")
	require.EqualError(t, hint, "gopccl: all-reduce (data phase) with 0102: rank connection lost: reset [launch again]")
	for _, err := range []error{lost, phase, peer, hint} {
		require.ErrorIs(t, err, errs.RankConnectionLost)
		require.ErrorIs(t, err, reset)
	}
}
