package link

import (
	"fmt"
	"slices"
	"sync/atomic"
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
	// that (before Linux 6.15). So many times without an answer, nobody is there.
	unanswered = 3
	// Where something is heard, of this connection or of another one to the peer, and nothing is acknowledged, it
	// takes so many times the bound.
	mostTimes = 2
)

// finding is what a look has found.
type finding uint8

const (
	goesOn  finding = iota
	overdue         // nothing was heard for the bound: the peer has gone, unless another connection hears it
	over            // nothing was heard, or acknowledged, for mostTimes the bound
)

// vigil is the look of a sender for an end that is heard no more. Each of its looks arms the timer for the next.
type vigil struct {
	bound time.Duration
	read  func(*platform.Info) bool
	timer *time.Timer
	info  platform.Info
	last  time.Time // the last look; zero: there was none
	acked uint64    // Info.Acked then
	// Of looks in a row that have found something to acknowledge: for how long nothing was heard, and nothing
	// acknowledged. A look that comes late counts for two: the machine, or this process, stood still.
	quiet, stuck time.Duration
	// The last look has found that something was heard within the bound; others read it.
	lately atomic.Bool
}

// keepVigil takes the bound of the system off the connection, and has looks begin in its place. Close waits for
// them: the caller has added them to Hub.wg.
func (s *Sender) keepVigil() {
	ours := false
	if s.h.cfg.Tuning.UserTimeout > 0 {
		var err error
		ours, err = platform.WithoutUserTimeout(s.conn, s.h.cfg.Tuning, mostTimes*s.h.cfg.Tuning.UserTimeout)
		if err != nil && !s.Broken() {
			s.h.cfg.Logger.Warn("the system's own bound of what is not acknowledged stays", "peer", s.peer.Short(), "error", err)
		}
	}
	if ours && s.features.Native && s.h.cfg.Watched != nil && s.h.cfg.Watched() {
		// While there is nothing to acknowledge, looks find nothing, and a silence ends the connection by itself.
		if err := platform.KeepAlive(s.conn, s.h.cfg.Tuning.Patient()); err != nil && !s.Broken() {
			s.h.cfg.Logger.Warn("a silent connection ends early", "peer", s.peer.Short(), "error", err)
		}
	}
	if !ours || !s.armVigil(s.h.cfg.Tuning.UserTimeout) {
		s.h.wg.Done()
	}
}

// armVigil arms the timer of the first look; false: the connection has ended.
func (s *Sender) armVigil(bound time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return false
	}
	v := &s.gauge.vigil
	v.bound, v.read = bound, platform.Sampler(s.conn)
	v.lately.Store(true) // in the handshake
	v.timer = time.AfterFunc(v.every(), s.lookForWords)
	return true
}

func (v *vigil) every() time.Duration { return max(min(v.bound/lookPart, mostLook), time.Millisecond) }

// lookForWords ends the connection if it has waited too long for a word of the other end.
func (s *Sender) lookForWords() {
	again := false
	defer func() {
		if !again {
			s.h.wg.Done()
		}
	}()
	defer errs.Catch(OpName, func(err *errs.Error) { s.close(s.h.Caught(err, s.peer)) })
	v := &s.gauge.vigil
	if !v.read(&v.info) {
		v.lately.Store(false)
	} else {
		found, bound := v.step(time.Now()), v.bound
		if found == over {
			bound *= mostTimes
		}
		if found == over || found == overdue && !s.heardBeside() {
			s.close(fmt.Errorf("nothing was acknowledged for %v: %w", bound, syscall.ETIMEDOUT))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if again = s.cause == nil; again {
		v.timer.Reset(v.every())
	}
}

// heardBeside reports whether the peer is heard over another one of the connections to it. Where many fill a thin way,
// single ones lose all that they send for longer than the bound.
func (s *Sender) heardBeside() bool {
	return slices.ContainsFunc(s.h.Senders(s.peer), func(o *Sender) bool {
		return o != s && !o.Broken() && o.gauge.vigil.lately.Load()
	})
}

// endVigil has no look begin any more. s.mu is held.
func (s *Sender) endVigil() {
	if t := s.gauge.vigil.timer; t != nil && t.Stop() {
		s.h.wg.Done()
	}
}

// step takes what the system says now.
func (v *vigil) step(now time.Time) finding {
	i := &v.info
	v.lately.Store(i.Heard < v.bound)
	took := now.Sub(v.last)
	if v.last.IsZero() || i.InFlight == 0 && i.Unsent == 0 {
		v.last, v.acked, v.quiet, v.stuck = now, i.Acked, 0, 0
		return goesOn
	}
	counts := min(took, 2*v.every())
	v.quiet, v.stuck = v.quiet+counts, v.stuck+counts
	if i.Heard < took {
		v.quiet = 0
	}
	if i.Acked != v.acked || i.InFlight == 0 {
		v.stuck = 0
	}
	v.last, v.acked = now, i.Acked
	switch {
	case i.InFlight == 0 && i.Probes < unanswered, i.InFlight > 0 && i.Retries == 0:
		return goesOn
	case v.quiet >= mostTimes*v.bound, v.stuck >= mostTimes*v.bound && i.Known.Has(platform.HasAcked):
		return over
	case v.quiet >= v.bound:
		return overdue
	}
	return goesOn
}
