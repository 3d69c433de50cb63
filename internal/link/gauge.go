package link

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
	// One write takes what the connection sends in atOnceTime or its window, at least a piece;
	// before anything is known of it and at most atOnceUnknown bytes.
	atOnceTime    = 5 * time.Millisecond
	atOnceUnknown = 256 << 10
	// backlog is what the system holds of a connection that makes writers wait:
	// unsent bytes are bounded where it can be (platform.LimitUnsent).
	backlog = 192 << 10
)

// gauge measures one connection. Owned by the holder of busy, but for vigil.
type gauge struct {
	rate  atomic.Uint64 // bits of a float64, bytes per second; 0: not known; read by all
	use   use
	since time.Time // a write that had to wait ended then; zero: none, or idle since
	bytes int       // that went since then
	quick int       // bytes without a wait
	flow  *flow     // constant; nil: the peer is near
	vigil vigil
}

// use counts what a connection took, and for how long writes waited for it. It is
// read by all.
type use struct {
	bytes atomic.Uint64
	nanos atomic.Int64
}

func (u *use) add(n int, took time.Duration) {
	u.bytes.Add(uint64(max(n, 0)))
	u.nanos.Add(int64(took))
}

// Speed returns what is known of the connection, in bytes per second; infinite: it
// never makes a writer wait.
func (s *Sender) Speed() float64 {
	if v := s.gauge.rate.Load(); v != 0 {
		return math.Float64frombits(v)
	}
	return math.Inf(1)
}

// waits returns how many bytes leave before what is written next. A connection that was slow may
// rest by now.
func (s *Sender) waits() int {
	if f := s.gauge.flow; f != nil && !f.near.Load() {
		return int(min(f.unsent.Load(), backlog))
	}
	return backlog
}

// AtOnce returns how many bytes one write may take. To a distant peer that is no more than the
// window.
func (s *Sender) AtOnce() int {
	speed := s.Speed()
	if bound := s.h.allowance.get(); bound > 0 && s.Distant() {
		speed = min(speed, bound)
	}
	most := min(speed*atOnceTime.Seconds(), atOnceUnknown)
	return min(int(most), s.Window()) // no other connection can send what waits behind this one's
}

// observe takes the measure of a write of n bytes.
func (g *gauge) observe(start, now time.Time, n int) {
	g.bytes += n
	if now.Sub(start) < waited {
		if g.quick += n; g.quick >= forget {
			g.rate.Store(0)
		}
		return
	}
	g.quick = 0
	if g.bytes == 0 {
		return // an abort: the next write tells how slow it is
	}
	if !g.since.IsZero() {
		rate := float64(g.bytes) / now.Sub(g.since).Seconds()
		if v := g.rate.Load(); v != 0 {
			w := min(1, now.Sub(g.since).Seconds()/recent.Seconds())
			rate = w*rate + (1-w)*math.Float64frombits(v)
		}
		g.rate.Store(math.Float64bits(rate))
	}
	g.since, g.bytes = now, 0
}
