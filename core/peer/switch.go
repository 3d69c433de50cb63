package peer

import (
	"context"
	"sync"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/peer/fsm"
	"github.com/gopccl/gopccl/core/wire"
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
// whatever runs.
func (s *Session) prepareRing(e fsm.PrepareRing) {
	before := s.stopPreparing()
	ctx, stop := context.WithCancel(s.ctx)
	done := make(chan struct{})
	s.preparing = preparing{stop, done}
	s.spawn(func() {
		defer close(done)
		defer stop()
		<-before
		failed := make([]bool, len(e.Peers))
		var wg sync.WaitGroup
		for i, p := range e.Peers {
			wg.Go(func() {
				defer errs.Catch("connect to a peer", s.crash)
				failed[i] = s.prepareLink(ctx, p) != nil
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			return
		}
		ev := fsm.RingPrepared{Change: e.Change}
		for i, bad := range failed {
			if bad {
				ev.Failed = append(ev.Failed, e.Peers[i].UUID)
			}
		}
		s.box.post(ev)
	})
}

func (s *Session) prepareLink(ctx context.Context, p wire.PeerEndpoint) error {
	probing, stop := context.WithTimeout(ctx, min(probeTime, s.opt.HandshakeTimeout))
	defer stop()
	if s.engine.ProbeSenders(probing, p.UUID) >= s.opt.PoolSize {
		return nil
	}
	err := s.dialPool(ctx, p)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot reach a neighbour of a better ring", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
	}
	return err
}
