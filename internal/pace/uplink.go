package pace

import (
	"slices"
	"time"
)

// Sample is what the system says of one connection that has data, at one moment.
type Sample struct {
	Conn    uint64 // names the connection, never used again
	Pair    uint64 // names the peer at its other end
	RTT     time.Duration
	Arrived uint64 // bytes at the other end, since the connection began
	Sent    uint64 // bytes since then, with those that were sent again
	Resent  uint64
	Segment int  // bytes of payload
	Waiting bool // there is more to send than the system has let go
	Timeout bool // the oldest byte on its way has run into a timeout
}

// Rate is what a connection may send, in bytes of payload per second; 0: as much
// as it can.
type Rate struct {
	Conn           uint64
	BytesPerSecond float64
}

type phase uint8

const (
	resting phase = iota
	settling
	measuring
	draining
)

const (
	// A gap between two steps after which a new interval begins.
	rest = 250 * time.Millisecond
	// A rate is trusted less after that long without data: it may be far too low.
	memory = 10 * time.Minute
	// A connection gets at least a segment in that time, or its equal part.
	crawl = 10 * time.Millisecond
	// Rates that differ by less are not told.
	notable = 0.02
	// What arrives differs from what is sent by less, or the queue moves.
	drainSlack   = 0.1
	longestDrain = 2 * time.Second
	// Ticks that an interval has at least, however late they come.
	enoughTicks = 6
	// Pairs that are remembered.
	maxPairs = 1024
	// The longest round trip that an interval waits for.
	longest = 3 * time.Second
)

// Uplink divides what an uplink carries over its connections. It belongs to one
// goroutine.
type Uplink struct {
	law   law
	whole governor
	pairs []pair
	conns []conn
	rates []Rate

	phase    phase
	measured time.Duration // from when on the interval counts: what was sent since it began is answered
	end      time.Duration
	seen     time.Duration // the last step
	ticks    int           // that count
	full     int           // of them, those with something waiting
	crowd    bool          // most pairs had a queue at the last step
	opened   float64       // what arrived in the interval before, while there is no rate
	changed  bool          // parts are to be divided anew

	drainFrom  time.Duration // when the draining shows
	drainRate  float64
	drainQueue time.Duration // the queue then
	drainHalf  time.Duration // from then on, what is seen is the empty way
	calm       time.Duration // no draining before that
	rebased    time.Duration // when a queue did not go; 0: never
}

// pair is a peer, with the connections to it.
type pair struct {
	id     uint64
	base   time.Duration // the empty way's round trip; 0: not known
	cap    governor
	queue  time.Duration // at the last step, the least of its connections; <0: nothing has arrived
	least  time.Duration // round trip since the last reset; 0: none
	ticks  int
	queued int // ticks with a queue above the limit
	lossy  bool
	conns  int
	// The base was measured again: what stood then may have been a queue, and losses
	// count without one.
	rebased bool
}

// conn is a connection.
type conn struct {
	id, pair    uint64
	seen        time.Duration
	first, last Sample  // of the interval
	waited      int     // ticks in which something was waiting
	used        float64 // bytes per second, of the interval before; <0: not known
	part, told  float64
	// While parts are divided.
	weight, bound float64
	fixed         bool
}

// NewUplink returns an uplink that does not know its rate, so that nothing is
// paced until a queue shows what it is.
func NewUplink() *Uplink { return &Uplink{law: theLaw} }

// Seed tells what the uplink has carried at another time, in bytes per second.
// An uplink that has a rate ignores it.
func (u *Uplink) Seed(rate float64) {
	if u.whole.rate == 0 && rate > 0 {
		u.whole.begin(0.93*rate, rate)
	}
}

// Near reports whether a way with this round trip is too short to be sampled.
func Near(rtt time.Duration) bool { return rtt < theLaw.near }

// Rate returns what the uplink may send in bytes per second; 0: not known.
func (u *Uplink) Rate() float64 { return u.whole.rate }

// Base returns the round trip to a peer over empty queues; 0: not known.
func (u *Uplink) Base(id uint64) time.Duration {
	if p := u.find(id); p != nil {
		return p.base
	}
	return 0
}

// Cap returns what a peer may be sent alone; 0: nothing but the uplink bounds it.
func (u *Uplink) Cap(id uint64) float64 {
	if p := u.find(id); p != nil {
		return p.cap.rate
	}
	return 0
}

// Step takes samples of all connections that have data, of one moment; now is the
// time since any beginning. It returns the rates that have changed, for use until
// the next step.
func (u *Uplink) Step(now time.Duration, samples []Sample) []Rate {
	u.rates = u.rates[:0]
	u.note(now, samples)
	if u.phase == resting || now-u.seen > rest {
		if u.phase != resting && now-u.seen > memory {
			u.whole.wall = 0
		}
		u.begin(now)
	}
	u.seen = now
	switch u.phase {
	case settling:
		if now >= u.measured {
			u.measured = now
			u.phase = measuring
			u.reset()
		}
	case measuring:
		u.count(now)
		if u.phase == measuring && now >= u.end && u.ticks >= enoughTicks {
			u.judge(now)
		}
	case draining:
		u.drain(now)
	}
	if u.changed {
		u.changed = false
		u.share()
	}
	return u.rates
}

func (u *Uplink) find(id uint64) *pair {
	for i := range u.pairs {
		if u.pairs[i].id == id {
			return &u.pairs[i]
		}
	}
	return nil
}

// note brings the tables up to date. What is near is left out.
func (u *Uplink) note(now time.Duration, samples []Sample) {
	for i := range u.pairs {
		u.pairs[i].queue = -1
	}
	for i := range samples {
		s := &samples[i]
		if s.RTT <= 0 {
			continue
		}
		p := u.find(s.Pair)
		if p == nil {
			u.pairs = append(u.pairs, pair{id: s.Pair, queue: -1})
			p = &u.pairs[len(u.pairs)-1]
		}
		if p.base == 0 || s.RTT < p.base {
			p.base = s.RTT
		}
		if p.base < u.law.near {
			continue
		}
		p.lossy = p.lossy || s.Timeout
		c := u.conn(s)
		fresh := s.Arrived != c.last.Arrived
		if now-c.seen > rest {
			fresh, c.first = false, *s
		}
		c.seen, c.last = now, *s
		if q := s.RTT - p.base; fresh && (p.queue < 0 || q < p.queue) {
			p.queue = q
		}
		if fresh && (p.least == 0 || s.RTT < p.least) {
			p.least = s.RTT
		}
		if s.Waiting {
			c.waited++
		}
	}
	if len(u.pairs) > maxPairs/2 {
		u.forget()
	}
	before := len(u.conns)
	u.conns = slices.DeleteFunc(u.conns, func(c conn) bool { return now-c.seen > rest })
	u.changed = u.changed || len(u.conns) < before
}

// forget drops pairs without data, the oldest first.
func (u *Uplink) forget() {
	for i := 0; i < len(u.pairs) && len(u.pairs) > maxPairs/2; {
		if u.pairs[i].queue < 0 {
			u.pairs = slices.Delete(u.pairs, i, i+1)
			continue
		}
		i++
	}
}

// conn returns the connection of a sample, a new one if it is not known.
func (u *Uplink) conn(s *Sample) *conn {
	for i := range u.conns {
		if u.conns[i].id == s.Conn {
			return &u.conns[i]
		}
	}
	u.conns = append(u.conns, conn{id: s.Conn, pair: s.Pair, seen: -2 * rest, first: *s, last: *s, used: -1})
	u.changed = true
	return &u.conns[len(u.conns)-1]
}

// paced reports whether there is any rate yet.
func (u *Uplink) paced() bool {
	return u.whole.rate > 0 || slices.ContainsFunc(u.pairs, func(p pair) bool { return p.cap.rate > 0 })
}

// begin starts an interval. What arrives first still answers to the rates before
// it; where there is none, nothing has to settle.
func (u *Uplink) begin(now time.Duration) {
	rtt := u.farthest()
	u.phase, u.crowd = settling, false
	u.measured = now + rtt
	u.end = max(now+u.law.interval, u.measured+max(rtt, u.law.interval/2))
	if !u.paced() {
		u.phase, u.measured = measuring, now
		u.end = now + max(rtt, u.law.interval/3)
	}
	u.reset()
}

// farthest returns the round trip of the farthest peer in use, with its queues.
func (u *Uplink) farthest() (rtt time.Duration) {
	for i := range u.conns {
		rtt = max(rtt, u.conns[i].last.RTT)
	}
	return min(rtt, longest)
}

// reset begins to count anew.
func (u *Uplink) reset() {
	u.ticks, u.full = 0, 0
	for i := range u.conns {
		c := &u.conns[i]
		c.first, c.waited = c.last, 0
	}
	for i := range u.pairs {
		p := &u.pairs[i]
		p.ticks, p.queued, p.lossy, p.least = 0, 0, false, 0
	}
}

// count takes the tick that was noted into the interval. While there is no rate,
// an interval begins with the queue: what arrives before it is slow start.
func (u *Uplink) count(now time.Duration) {
	active, queued := 0, 0
	for i := range u.pairs {
		if p := &u.pairs[i]; p.queue >= 0 {
			active++
			if p.queue > u.law.limit(p.base) {
				queued++
			}
		}
	}
	crowd := 2*queued > active
	if crowd && !u.crowd && !u.paced() {
		u.begin(now)
	}
	u.crowd = crowd
	u.ticks++
	if slices.ContainsFunc(u.conns, func(c conn) bool { return c.seen == now && c.last.Waiting }) {
		u.full++
	}
	for i := range u.pairs {
		p := &u.pairs[i]
		if p.queue >= 0 {
			p.ticks++
		}
		if p.queue > u.law.limit(p.base) {
			p.queued++
		}
	}
}
