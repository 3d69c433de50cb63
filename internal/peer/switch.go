package peer

import (
	"context"
	"errors"
	"sync"

	"github.com/gopccl/gopccl/core/errs"
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
// whatever runs.
func (s *Session) prepareRing(e fsm.PrepareRing) {
	s.engine.Trust(uuids(e.Peers)...)
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

func uuids(peers []wire.PeerEndpoint) (us []wire.UUID) {
	for _, p := range peers {
		us = append(us, p.UUID)
	}
	return us
}

// prepareLink makes the pool to p. If an operation of an older ring sends to it,
// the pool stays as it is: what that operation uses is neither asked nor made
// anew. One that has a gap then makes this attempt fail, and the ring in force
// stays.
func (s *Session) prepareLink(ctx context.Context, p wire.PeerEndpoint) error {
	if s.engine.Sends(p.UUID) {
		if s.engine.LiveSenders(p.UUID) >= s.opt.PoolSize {
			return nil
		}
		return errors.New("an operation uses the connections that are left")
	}
	probing, stop := context.WithTimeout(ctx, min(probeTime, s.opt.HandshakeTimeout))
	defer stop()
	if s.engine.PingSenders(probing, p.UUID) >= s.poolSize(p.UUID) {
		return nil
	}
	err := s.dialPool(ctx, p)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot reach a neighbour of a better ring", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
	}
	return err
}
