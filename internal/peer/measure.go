package peer

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/probe"
	"github.com/gopccl/gopccl/internal/wire"
)

// A target of a scheduled probe is only busy while a peer that is not
// scheduled measures it, or until the end of the probe before is known there.
const (
	busyTries = 20
	busyWait  = 50 * time.Millisecond
)

// probeOptions are those of measurements whose targets who names by their addresses.
func (s *Session) probeOptions(who func(netip.AddrPort) wire.UUID) probe.Options {
	return probe.Options{
		Duration: s.opt.Probe.Duration, Connections: s.opt.Probe.Connections, EarlyStop: true,
		HandshakeTimeout: s.opt.HandshakeTimeout, Dial: s.names.probing(s.mesh.Dial, who),
	}
}

// stoppable returns a context for work of a call, which stopWork ends.
func (s *Session) stoppable(id fsm.CallID) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[id]; c != nil {
		c.stop = stop
	}
	return ctx, stop
}

// startProbe works off a list of probes in its own time, as PCCL does.
func (s *Session) startProbe(e fsm.Probe) {
	ctx, stop := s.stoppable(e.Call)
	self := s.m.View().UUID
	s.spawn(func() {
		defer stop()
		targets := make(map[netip.AddrPort]wire.UUID, len(e.Requests))
		for _, r := range e.Requests {
			targets[r.Addr] = r.To
		}
		who := func(addr netip.AddrPort) wire.UUID { return targets[addr] }
		err := probe.Run(ctx, self, e.Requests, s.probeOptions(who), func(r probe.Result) {
			if r.Err != nil {
				s.log.Warn("no bandwidth measured", "peer", r.To.Short(), "error", r.Err)
				return
			}
			s.box.post(fsm.Measured{Call: e.Call, To: r.To, Mbps: r.Mbps})
		})
		if err != nil {
			s.log.Warn("bandwidth measurements ended early", "error", err)
		}
		s.box.post(fsm.ProbesDone{Call: e.Call})
	})
}

// prepareProbe connects for one probe that the master called for, and measures
// when SendProbe says so.
func (s *Session) prepareProbe(e fsm.PrepareProbe) {
	ctx, stop := s.stoppable(e.Call)
	begin := make(chan time.Time, 1)
	s.startSending = begin
	self := s.m.View().UUID
	s.spawn(func() {
		defer stop()
		p, err := s.connectProbe(ctx, e, self)
		if err != nil {
			s.log.Warn("no bandwidth measured", "peer", e.To.Short(), "error", err)
		}
		s.box.post(fsm.ProbeReady{Round: e.Round, Busy: errors.Is(err, probe.ErrBusy), Err: err})
		if err != nil {
			return
		}
		done := fsm.Probed{Round: e.Round}
		select {
		case at := <-begin:
			var r probe.Estimate
			r, done.Err = p.Go(ctx, at)
			done.Mbps, done.Deviation, done.Late = r.Mbps, r.Deviation, r.Late
			if s.rate != nil && done.Err == nil {
				done.Mbps, done.Deviation = s.rate(e.To), 0
			}
			s.log.Debug("bandwidth measured", "peer", e.To.Short(), "mbps", r.Mbps, "deviation", r.Deviation, "took", r.Took, "late", r.Late)
		case <-ctx.Done():
			p.Close()
			done.Err = ctx.Err()
		}
		if done.Err != nil {
			s.log.Warn("no bandwidth measured", "peer", e.To.Short(), "error", done.Err)
		}
		s.box.post(done)
	})
}

// connectProbe takes the target, which may be busy for a moment.
func (s *Session) connectProbe(ctx context.Context, e fsm.PrepareProbe, self wire.UUID) (*probe.Probe, error) {
	for try := 1; ; try++ {
		p, err := probe.Prepare(ctx, e.Addr, self, s.probeOptions(func(netip.AddrPort) wire.UUID { return e.To }))
		if err == nil || !errors.Is(err, probe.ErrBusy) || try == busyTries {
			return p, err
		}
		select {
		case <-time.After(busyWait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
