package reduce

import (
	"math"
	"sync/atomic"
	"time"
)

// Speed of a connection: the bytes that went between two writes which both had
// to wait, per second. A connection that never makes a writer wait has none, and
// counts as the fastest.
const (
	waited = time.Millisecond
	// What was measured so long ago counts no more.
	recent = 200 * time.Millisecond
	// A speed is forgotten after that many bytes without a wait.
	forget = 8 << 20
	// One write takes what the connection sends in atOnceTime, at least a piece;
	// before anything is known of it and at most atOnceUnknown bytes.
	atOnceTime    = 5 * time.Millisecond
	atOnceUnknown = 256 << 10
	// backlog is what the system holds of a connection that makes writers wait:
	// unsent bytes are bounded where it can be (platform.LimitUnsent).
	backlog = 192 << 10
)

// gauge measures the speed of one connection. Owned by the holder of busy.
type gauge struct {
	rate  atomic.Uint64 // bits of a float64, bytes per second; 0: not known; read by all
	use   linkUse
	since time.Time // a write that had to wait ended then; zero: none, or idle since
	bytes int       // that went since then
	quick int       // bytes without a wait
}

func (s *sender) speed() float64 {
	if v := s.gauge.rate.Load(); v != 0 {
		return math.Float64frombits(v)
	}
	return math.Inf(1)
}

// atOnce returns how many bytes one write may take.
func (s *sender) atOnce() int {
	return int(min(s.speed()*atOnceTime.Seconds(), atOnceUnknown))
}

// observe takes the measure of a write of n bytes.
func (s *sender) observe(start, now time.Time, n int) {
	p := &s.gauge
	p.bytes += n
	if now.Sub(start) < waited {
		if p.quick += n; p.quick >= forget {
			s.gauge.rate.Store(0)
		}
		return
	}
	p.quick = 0
	if p.bytes == 0 {
		return // an abort: the next write tells how slow it is
	}
	if !p.since.IsZero() {
		rate := float64(p.bytes) / now.Sub(p.since).Seconds()
		if v := s.gauge.rate.Load(); v != 0 {
			w := min(1, now.Sub(p.since).Seconds()/recent.Seconds())
			rate = w*rate + (1-w)*math.Float64frombits(v)
		}
		s.gauge.rate.Store(math.Float64bits(rate))
	}
	p.since, p.bytes = now, 0
}

// rouse kicks the connection if nobody works on it; false: somebody does, and
// will look for work before it stops.
func (s *sender) rouse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || s.pending || s.cause != nil {
		return false
	}
	s.pending = true
	s.bell.Signal()
	return true
}
