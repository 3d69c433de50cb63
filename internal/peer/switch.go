package peer

import (
	"context"

	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// preparing is the work of a PrepareRing effect. It belongs to the holder of
// the box.
type preparing struct {
	stop context.CancelFunc // nil: none was ever begun
	done <-chan struct{}
}

// nothing to wait for.
var ended = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// stopPreparing ends the work of a PrepareRing effect; the channel is closed
// when it has ended: two may not make the pool to one peer.
func (s *Session) stopPreparing() <-chan struct{} {
	if s.preparing.stop == nil {
		return ended
	}
	s.preparing.stop()
	return s.preparing.done
}

// prepareRing makes the send pools to the neighbours of a ring to come, beside
// everything that runs.
func (s *Session) prepareRing(e fsm.PrepareRing) {
	s.hub.Trust(uuids(e.Peers)...)
	before := s.stopPreparing()
	ctx, stop := context.WithCancel(s.ctx)
	done := make(chan struct{})
	s.preparing = preparing{stop, done}
	s.spawn(func() {
		defer close(done)
		defer stop()
		<-before
		failed := s.mesh.Prepare(ctx, e.Peers)
		if ctx.Err() == nil {
			s.box.post(fsm.RingPrepared{Change: e.Change, Failed: failed})
		}
	})
}

// previous returns the peer before this one in the ring, zero if it is alone.
func previous(v fsm.View) (u wire.UUID) {
	if n := len(v.Ring); n > 1 && v.Rank >= 0 {
		u = v.Ring[(v.Rank+n-1)%n]
	}
	return u
}

func uuids(peers []wire.PeerEndpoint) (us []wire.UUID) {
	for _, p := range peers {
		us = append(us, p.UUID)
	}
	return us
}
