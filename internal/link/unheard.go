package link

import (
	"fmt"
	"syscall"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/platform"
)

// The system would end a connection whose data nobody acknowledges, and ends healthy ones, too, whose reader waits
// for so long (platform.WithoutUserTimeout), as readers of fast members do for slow ones. So senders look
// themselves, where the system says when it has heard anything last.
const (
	// lookPart is the part of the bound after which it is looked again, mostLook the longest time.
	lookPart, mostLook = 8, time.Second
	// A window that is shut is asked about more and more rarely, every two minutes at last where nothing bounds
	// that (before Linux 6.15): less often than what is sent is sent again.
	shutPart, leastShut = 4, time.Minute
)

// vigil is the look of a sender for an end that is heard no more. Each of its looks arms the timer for the next.
type vigil struct {
	bound time.Duration
	read  func(*platform.Info) bool
	timer *time.Timer
	info  platform.Info
	since time.Time // looks have found something to acknowledge since then; zero: the last one has not
}

// keepVigil takes the bound of the system off the connection, and has looks begin in its place.
func (s *Sender) keepVigil() {
	bound := s.h.cfg.Tuning.UserTimeout
	if bound <= 0 {
		return
	}
	if ours, err := platform.WithoutUserTimeout(s.conn, s.h.cfg.Tuning); err != nil || !ours {
		if err != nil {
			s.h.cfg.Logger.Warn("the system's own bound of what is not acknowledged stays", "peer", s.peer.Short(), "error", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return
	}
	v := &s.gauge.vigil
	v.bound, v.read = bound, platform.Sampler(s.conn)
	v.timer = time.AfterFunc(v.every(), s.lookForWords)
}

func (v *vigil) every() time.Duration { return max(min(v.bound/lookPart, mostLook), time.Millisecond) }

// lookForWords ends the connection if it has waited too long for a word of the other end.
func (s *Sender) lookForWords() {
	defer errs.Catch(OpName, func(err *errs.Error) { s.close(s.h.Caught(err, s.peer)) })
	v := &s.gauge.vigil
	select {
	case <-s.gone:
		return
	default:
	}
	if !v.read(&v.info) {
		return // it is closed, and whoever reads or writes says why
	}
	if v.step(time.Now()) {
		s.close(fmt.Errorf("nothing was acknowledged for %v: %w", v.bound, syscall.ETIMEDOUT))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		v.timer.Reset(v.every())
	}
}

// step takes what the system says now, and reports whether that is the end.
func (v *vigil) step(now time.Time) bool {
	bound := v.bound
	switch i := &v.info; {
	case i.InFlight == 0 && i.Unsent == 0:
		v.since = time.Time{}
		return false
	case i.InFlight == 0:
		bound = max(shutPart*bound, leastShut)
	}
	if v.since.IsZero() {
		v.since = now
	}
	return min(now.Sub(v.since), v.info.Heard) >= bound
}
