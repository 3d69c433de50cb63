package peer

import (
	"context"
	"slices"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// preparing is the work of a PrepareRing or PrepareMesh effect. It belongs to the
// holder of the box.
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

// end ends the work; the channel is closed when it has ended: two may not make the
// pool to one peer.
func (w *preparing) end() <-chan struct{} {
	if w.stop == nil {
		return ended
	}
	w.stop()
	return w.done
}

// connectBeside has connect work beside everything that runs, as the only one that
// does, and brings what it makes of those it could not reach.
func (s *Session) connectBeside(w *preparing, connect func(context.Context) []wire.UUID, report func(failed []wire.UUID) fsm.Event) {
	before := w.end()
	ctx, stop := context.WithCancel(s.ctx)
	done := make(chan struct{})
	*w = preparing{stop, done}
	s.spawn(func() {
		defer close(done)
		defer stop()
		<-before
		select {
		case s.dialling <- struct{}{}:
		case <-ctx.Done():
			return
		}
		failed := connect(ctx)
		<-s.dialling
		if ctx.Err() == nil {
			s.box.post(report(failed))
		}
	})
}

// prepareRing makes the send pools to the neighbours of a ring to come, and to those whom
// plans need, beside everything that runs.
func (s *Session) prepareRing(e fsm.PrepareRing) {
	s.hub.Trust(uuids(slices.Concat(e.Peers, e.Ways))...)
	s.connectBeside(&s.preparing, func(ctx context.Context) []wire.UUID {
		return append(s.mesh.Prepare(ctx, e.Peers), s.mesh.Connect(ctx, e.Ways)...)
	}, func(failed []wire.UUID) fsm.Event { return fsm.RingPrepared{Change: e.Change, Failed: failed} })
}

// switchRing makes a ring the one in force whose connections stand.
func (s *Session) switchRing(e fsm.SwitchRing) {
	s.hub.Trust(e.Neighbours...)
	s.hub.EndRound(previous(s.m.View()))
	s.publishView()
	s.beginEpoch(e.Epoch)
}

// prepareMesh makes a connection to each member that is not a neighbour, beside
// everything that runs.
func (s *Session) prepareMesh(e fsm.PrepareMesh) {
	s.hub.Trust(uuids(e.Peers)...)
	s.connectBeside(&s.meshing, func(ctx context.Context) []wire.UUID { return s.mesh.Connect(ctx, e.Peers) },
		func(failed []wire.UUID) fsm.Event {
			return fsm.MeshPrepared{Change: e.Change, Failed: failed, Ways: s.ways(e.Ways)}
		})
}

// ways are the round trips to peers over the connections that stand, as far as the
// system tells them.
func (s *Session) ways(peers []wire.UUID) (ways []wire.Way) {
	for _, u := range peers {
		if rtt, ok := s.roundTrip(u); ok {
			ways = append(ways, wire.Way{To: u, RTT: uint32(min(rtt.Microseconds(), 1<<32-1))})
		}
	}
	return ways
}

// far reports whether one of peers is distant.
func (s *Session) far(peers []wire.PeerEndpoint) bool {
	return slices.ContainsFunc(peers, func(p wire.PeerEndpoint) bool {
		rtt, ok := s.roundTrip(p.UUID)
		return ok && !link.NearBy(rtt)
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
