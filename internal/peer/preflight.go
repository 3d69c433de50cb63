package peer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// preflight tries whether peers can be reached, beside whatever runs
// (docs/spec/extensions.md, "Preflight").
func (s *Session) preflight(e fsm.Preflight, self wire.UUID) {
	s.spawn(func() {
		ctx, cancel := context.WithTimeout(s.ctx, preflightTime)
		defer cancel()
		failed := make([]bool, len(e.Peers))
		var wg sync.WaitGroup
		for i, p := range e.Peers {
			wg.Go(func() {
				failed[i] = true
				defer errs.Catch("try a peer", s.crash)
				if err := s.tryPeer(ctx, p, self); err != nil {
					s.log.Warn("cannot reach a peer", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
					return
				}
				failed[i] = false
			})
		}
		wg.Wait()
		ev := fsm.Preflighted{Number: e.Number}
		for i, bad := range failed {
			if bad {
				ev.Failed = append(ev.Failed, e.Peers[i].UUID)
			}
		}
		s.box.post(ev)
	})
}

// tryPeer connects to p and exchanges hellos that leave nothing behind.
func (s *Session) tryPeer(ctx context.Context, p wire.PeerEndpoint, self wire.UUID) error {
	conn, err := s.dialPeer(ctx, p.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	hello := wire.P2PHello{UUID: self, Ext: wire.Ext{Native: true, Preflight: true}}
	if _, err := conn.Write(wire.Append(nil, hello)); err != nil {
		return err
	}
	answer, err := wire.Read(conn, wire.P2P, 64<<10)
	if err != nil {
		return err
	}
	if _, ok := answer.(wire.P2PHelloAck); !ok {
		return fmt.Errorf("answered a hello with %T", answer)
	}
	return nil
}
