package peer

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/platform"
)

// dialMaster connects to the master at addr.
func dialMaster(ctx context.Context, opt Options, addr string, g *guard.Guard) (*masterConn, error) {
	dctx, cancel := context.WithTimeout(ctx, opt.DialTimeout)
	defer cancel()
	conn, err := opt.dialer()(dctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn = transport.Quiet(conn)
	if err := platform.TuneMaster(conn); err != nil {
		conn.Close()
		return nil, err
	}
	if conn, err = g.Dial(dctx, conn, secure.Want{Purpose: secure.Control}); err != nil {
		return nil, err
	}
	mc := newMasterConn(conn)
	mc.addr = addr
	return mc, nil
}

// dialRenewal connects to the first master that renews certificates: the one that this
// peer is connected to, or else another one.
func (s *Session) dialRenewal(ctx context.Context) (net.Conn, error) {
	var failed []error
	leads := s.master.conn().addr
	others := slices.DeleteFunc(slices.Clone(s.master.masters), func(a string) bool { return a == leads })
	for i, addr := range append([]string{leads}, others...) {
		bound := s.opt.DialTimeout + s.opt.HandshakeTimeout
		if end, ok := ctx.Deadline(); ok { // one that stands still leaves time for the others
			bound = min(bound, time.Until(end)/time.Duration(len(others)+2-i))
		}
		conn, err := s.dialRenewalAt(ctx, addr, bound)
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

func (s *Session) dialRenewalAt(ctx context.Context, addr string, bound time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := s.opt.dialer()(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return s.names.guard.Dial(ctx, transport.Quiet(conn), secure.Want{Purpose: secure.Renewal})
}

// establishTime is how long the connecting of a round may take: the report has
// to be there in time and name the slow ones, or this peer is the slow one.
func (s *Session) establishTime() time.Duration {
	if bound := s.View().RoundBound; bound > 0 {
		return bound / 4 * 3
	}
	return roundTime
}

// establish makes the connections of a round and reports.
func (s *Session) establish(e fsm.Establish) {
	ctx, cancel := context.WithTimeout(s.ctx, s.establishTime())
	defer cancel()
	failed := s.mesh.Establish(ctx, e.Peers, e.Keep)
	s.box.post(fsm.Established{Round: e.Round, Failed: failed, Far: s.far(e.Peers)})
}

// preflight tries whether peers can be reached, beside everything that runs
// (docs/spec/extensions.md, "Preflight").
func (s *Session) preflight(e fsm.Preflight) {
	self := s.m.View().UUID
	s.spawn(func() { s.box.post(fsm.Preflighted{Number: e.Number, Failed: s.mesh.Try(self, e.Peers)}) })
}

// roundOver lets operations and messages of the epoch that a round has begun run.
func (s *Session) roundOver(epoch uint64) {
	s.publishView()
	s.hub.EndRound(previous(s.m.View()))
	s.posted.Begin()
	s.beginEpoch(epoch)
}

// expectEpoch lets frames of an epoch in that has not begun here.
func (s *Session) expectEpoch(epoch uint64) {
	s.engine.ExpectEpoch(epoch)
	s.blocks.ExpectEpoch(epoch)
}

// beginEpoch ends what neighbours have begun eagerly in epochs before; 0: it goes on.
func (s *Session) beginEpoch(epoch uint64) {
	if epoch != 0 {
		s.engine.BeginEpoch(epoch)
		s.blocks.BeginEpoch(epoch)
	}
}
