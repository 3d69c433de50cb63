package link

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// allowance is what connections to distant peers may write, all together (pace.Line). Which
// of them have something to send changes all the time, so none has a part of its own.
type allowance struct {
	rate atomic.Uint64 // bits of a float64, bytes per second; 0: not bounded
	mu   sync.Mutex
	free time.Time // from when on more may be written
}

const (
	// slack is of how much time what was not used may be made up for.
	slack = 5 * time.Millisecond
	// nap is after how long a wait looks whether it is for nothing.
	nap = 10 * time.Millisecond
	// longestWait bounds a wait: who asks whether the connection lives waits behind it.
	longestWait = time.Second
	// unbounded is up to how many bytes go at once: votes of collectives, pings, the ends of
	// operations.
	unbounded = 1 << 10
)

func (a *allowance) set(rate float64) { a.rate.Store(math.Float64bits(rate)) }

func (a *allowance) get() float64 { return math.Float64frombits(a.rate.Load()) }

// take takes n bytes and returns for how long to wait before they are written. Who takes
// first writes first.
func (a *allowance) take(n int, now time.Time) time.Duration {
	rate := a.get()
	if rate <= 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if least := now.Add(-slack); a.free.Before(least) {
		a.free = least
	}
	wait := a.free.Sub(now)
	a.free = a.free.Add(time.Duration(min(float64(n)/rate, longestWait.Seconds()) * float64(time.Second)))
	if most := now.Add(longestWait); a.free.After(most) {
		a.free = most
	}
	return max(wait, 0)
}

// bounded reports whether a write of so many bytes takes of the allowance.
func (s *Sender) bounded(n int) bool {
	f := s.gauge.flow
	return f != nil && n > unbounded && s.h.allowance.get() > 0 && !f.near.Load()
}

// await waits until the batch may be written, an operation of it is over or the connection
// has ended. The caller holds busy, on the sender's goroutine.
func (s *Sender) await() {
	n := 0
	for i := range s.batch {
		n += s.batch[i].size() - s.batch[i].sent
	}
	timer := s.gauge.flow.timer
	for wait := s.h.allowance.take(n, time.Now()); wait > 0; wait -= nap {
		if timer == nil {
			timer = time.NewTimer(min(wait, nap))
			s.gauge.flow.timer = timer
		} else {
			timer.Reset(min(wait, nap))
		}
		select {
		case <-timer.C:
		case <-s.gone:
			return
		}
		for i := range s.batch {
			if f := &s.batch[i]; f.of != nil && f.of.Stopped() {
				return
			}
		}
	}
}
