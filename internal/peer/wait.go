package peer

import (
	"context"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// Pauses between two questions of WaitForPeers. Nothing tells a peer that a newcomer
// comes; a question costs a round trip to the master, and the last peer to ask
// sets the pace of all.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// WaitForPeers returns when this peer's group has at least n members, at once and
// without a word if it has. Until then it lets in all who wait to be
// let in: all peers of the run must therefore call it, or PeersPending and
// UpdateTopology, at the same place of their loops. A trainer calls it in front
// of every step, to pause when its group has fallen below n and to go on when
// peers have come. The members are those of the last round, so that all peers
// decide alike; one that has died since is noticed by the next operation.
//
// While the group is large enough it lets no newcomer in. A step therefore begins
// with PeersPending, and UpdateTopology if any waits: newcomers depend on that, and
// so do the other groups of the run, which ask and wait for the votes of all.
//
// Errors: those of PeersPending and UpdateTopology. ctx ends the waiting; while a
// round runs it leaves the run, as in UpdateTopology.
func (s *Session) WaitForPeers(ctx context.Context, n int) error {
	pause := firstPause
	for {
		if v := s.View(); v.Connected && v.LocalWorldSize >= n {
			return nil
		}
		pending, err := s.PeersPending(ctx)
		if err != nil {
			return err
		}
		if pending {
			if err := s.UpdateTopology(ctx); err != nil {
				return err
			}
			pause = firstPause
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.done: // PeersPending says why
		case <-ctx.Done():
			timer.Stop()
			return errs.New(errs.Canceled, "wait for peers", ctx.Err()).WithPhase("waiting for peers to come")
		}
		timer.Stop()
		pause = min(2*pause, lastPause)
	}
}
