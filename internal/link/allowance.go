package link

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// allowance is what connections to distant peers may write, all together (pace.Line). Which
// of them have something to send changes all the time, so none has a part of its own. They
// queue: each takes a place behind the bytes of those before it, and writes when these
// have been let go. What is let go follows the rate of the moment.
type allowance struct {
	rate atomic.Uint64 // bits of a float64, bytes per second; 0: not bounded

	mu      sync.Mutex
	taken   float64 // bytes so far
	gone    float64 // of them, let go
	last    time.Time
	waiting int // places that have not been left
}

const (
	// slack is of how much time what was not used may be made up for.
	slack = 5 * time.Millisecond
	// nap is after how long a wait looks whether the rate has changed, or it is for nothing.
	nap = 10 * time.Millisecond
	// longestWait bounds the wait of a write: that bytes move is what says that a connection
	// lives. All that wait get their turn within it, if leastGulp allows.
	longestWait = time.Second
	// gulp is how much time's bytes one write takes, leastGulp the least of it in bytes.
	gulp, leastGulp = 20 * time.Millisecond, 4 << 10
	// unbounded is the size in bytes up to which a batch goes at once, on a connection that does
	// not wait already: pings, answers to messages, the ends of operations.
	unbounded = 1 << 10
)

func (a *allowance) set(rate float64) { a.rate.Store(math.Float64bits(rate)) }

func (a *allowance) get() float64 { return math.Float64frombits(a.rate.Load()) }

// take takes a place for at most n bytes: so many of them, behind others.
func (a *allowance) take(n int, now time.Time) (bytes int, place float64) {
	rate := a.get()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flow(rate, now)
	a.waiting++
	turn := min(gulp, longestWait/4/time.Duration(a.waiting))
	bytes = min(n, max(int(rate*turn.Seconds()), leastGulp))
	place = a.taken
	a.taken += float64(bytes)
	return bytes, place
}

// leave leaves a place. late: it was not its turn, so that the bytes before it count as let go,
// or the lag would be everybody's from then on.
func (a *allowance) leave(place float64, late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting--
	if late {
		a.gone = max(a.gone, place)
	}
}

// until returns for how long the place has to wait still, at the rate of the moment.
func (a *allowance) until(place float64, now time.Time) time.Duration {
	rate := a.get()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flow(rate, now)
	if rate <= 0 || place <= a.gone {
		return 0
	}
	return time.Duration(min((place-a.gone)/rate, longestWait.Seconds()) * float64(time.Second))
}

// flow lets bytes go. mu is held.
func (a *allowance) flow(rate float64, now time.Time) {
	if rate <= 0 {
		a.gone = a.taken
	}
	if d := now.Sub(a.last); d > 0 {
		a.gone += rate * d.Seconds()
		a.last = now
	}
	a.gone = min(a.gone, a.taken+rate*slack.Seconds())
}

// refund gives back what was taken and not written: who waits already may write so much sooner.
func (a *allowance) refund(bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone += float64(bytes)
}

// bounded reports whether a write of so many bytes takes of the allowance.
func (s *Sender) bounded(n int) bool {
	f := s.gauge.flow
	return f != nil && n > unbounded && s.h.allowance.get() > 0 && !f.near.Load()
}

// await waits until some of the batch may be written, and returns how many bytes. 0: an
// operation of it is over, or the connection has ended. The caller holds busy, on the
// sender's goroutine.
func (s *Sender) await() int {
	n := 0
	for i := range s.batch {
		n += s.batch[i].size() - s.batch[i].sent
	}
	a, began := &s.h.allowance, time.Now()
	bytes, place := a.take(n, began)
	timer := s.gauge.flow.timer
	for now := began; now.Sub(began) < longestWait; now = time.Now() {
		wait := a.until(place, now)
		if wait <= 0 {
			a.leave(place, false)
			return bytes
		}
		if timer == nil {
			timer = time.NewTimer(min(wait, nap))
			s.gauge.flow.timer = timer
		} else {
			timer.Reset(min(wait, nap))
		}
		over := false
		select {
		case <-timer.C:
		case <-s.gone:
			over = true
		}
		for i := range s.batch {
			f := &s.batch[i]
			over = over || f.of != nil && f.of.Stopped()
		}
		if over {
			a.refund(bytes)
			a.leave(place, false)
			return 0
		}
	}
	a.leave(place, true)
	return bytes
}
