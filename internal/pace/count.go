package pace

import (
	"math"
	"time"
)

const (
	// FirstCount is how many connections a peer far away gets from the start (First).
	FirstCount = 8
	// firstTrip is the part of a round trip for which a distant peer gets one of them, firstLeast
	// how many it gets at least.
	firstTrip, firstLeast = 4 * time.Millisecond, 2
	// MostCount is how many one peer gets at most.
	MostCount = 32

	// A span that is judged has at least this length, and so many round trips.
	judged, judgedTrips = time.Second, 10
	// More connections stay if they brought this part of what they promised; on a way with
	// a queue, where they have to show that it is not one before all of them, the second.
	brought, broughtFull = 0.2, 0.5
	// A trial that brought nothing is repeated after firstPause, and each time after
	// twice as long, up to lastPause.
	firstPause, lastPause = time.Minute, time.Hour
	// A queue that is there for that part of the time says that the way is full.
	fullWay = 0.2
	// The application was the limit unless it waited for the system that often.
	starved = 0.5
	// Operations begin and end with less than the way carries, and wait for others amid. A span shows
	// what arrives in full swing if that took this part of it.
	swung = 0.6
	// What arrives at another peer varies by this part of it without a reason, and at n of them by a part of all that
	// is less by the root of n. A peer at which less than that part of their average arrives is slower than they are.
	varies, slower = 0.05, 0.75
	// New windows may lose much at first, and others may be what is waited for. So a trial has brought
	// nothing when its spans, all together, say so with a weight of enough: each in full swing has that of
	// firm, others have 1. Rests between them change nothing.
	firm, enough = 3, 5
	// Spans are left out after the number has changed, for windows to open.
	settles = 1
	// Connections that lose and carry fewer segments than crowded in a round trip each are a
	// crowd: a window cannot be halved below two, and what is lost then is found out by
	// timeouts, which double until one is longer than what is taken for a dead peer. So many
	// stay that each carries uncrowded, fewest at least, and no more are tried. It is looked for
	// every crowdTrips, and has to be there twice in a row: where a way that was gone is used
	// again, it is there once. Where nothing arrives, the way is gone.
	crowded, uncrowded, fewest = 2, 3, 2
	crowdTrips                 = 3
)

// First returns how many connections a distant peer with this round trip gets from the start. Each
// brings a first window of its own, and makes good what a loss takes from another: both are worth
// round trips. Where these are short, windows grow and losses are made good soon, and a thin way has
// no room for many first windows.
func First(rtt time.Duration) int {
	return max(firstLeast, min(FirstCount, int((rtt+firstTrip-1)/firstTrip)))
}

// Count decides how many connections to one peer an operation uses. Connections are
// for losses and for limits of single flows: where a way is full, no more of them help. A
// queue may be one before each flow, so that there more are tried, too, and have to bring
// more to stay. It belongs to one goroutine.
//
// A cubic connection that loses a part p of its segments carries about
// max(1.05 (rtt/p)^0.75, 1.22/sqrt(p)) of them in a round trip (RFC 9438, section
// 5.1; RFC 3649, section 3). One that carries no more than that is bound by its
// losses, and then the number doubles. Else it grows by half, because a limit of
// single flows, or one of windows, cannot be told from others but by a trial. What a trial takes from
// other peers is not gained.
//
// A thin way has no room for many: connections that carry fewer than two segments in a
// round trip each, and lose, are a crowd, and most of them go within some round trips.
type Count struct {
	n int

	// The span.
	since          time.Duration // 0: none
	last           time.Duration // the last tick
	rests          bool          // nothing was under way since then
	more           time.Duration // since when there has been more to send; 0: there is not
	ticks          int
	queued, wanted int
	arrived        uint64
	swing          held // what arrived of what left while there was more to send
	elsewhere      elsewhere
	sent, resent   uint64
	rtt            time.Duration // the sum over ticks
	skip           int
	look           look

	// The trial under way, and when the next may be.
	was    int  // connections before it; 0: none is under way
	full   bool // there was a queue
	rate   rates
	weight int     // the weight of its spans so far
	gain   float64 // by how much they were above what had to be brought, as parts of the rate before, with their weights
	again  time.Duration
	pause  time.Duration
}

// rates are the bytes per second that arrived in a span.
type rates struct {
	all   float64
	swing float64 // in full swing; 0: that was too little of the span to tell
	// At other peers meanwhile, how many these were, and which; 0: they say nothing.
	others float64
	peers  int
	who    uint64
	trying bool // more connections to one of them were being tried
}

// taken returns how much of what arrives more than before, in bytes per second, arrives less at others. Where all
// share a line, more connections to one peer get more of it, and the host sends no more than before. One
// that was slower than the others may catch up, unless it was so for the time of a trial of theirs. Beside other
// peers than before nothing is known.
func (r rates) taken(before rates) float64 {
	if r.peers == 0 || r.who != before.who {
		return 0
	}
	rate, was := r.beside(before)
	lost, n := before.others-r.others, float64(before.peers)
	if lost < varies*before.others/math.Sqrt(n) || !before.trying && was < slower*before.others/n {
		return 0
	}
	return max(min(lost, rate-was), 0)
}

// elsewhere is what has arrived at other peers in full swing, while there was more to send to each of them, since
// these have been the same.
type elsewhere struct {
	held
	peers  int
	who    uint64
	trying bool
}

func (o *elsewhere) add(s *Others, took time.Duration) {
	if s.Peers == 0 || !s.Waiting {
		return
	}
	if o.who != s.Who {
		*o = elsewhere{peers: s.Peers, who: s.Who}
	}
	o.trying = o.trying || s.Trying
	o.bytes, o.time = o.bytes+s.Arrived, o.time+took
}

// beside returns what r and before say of the same kind, in bytes per second: in full swing if both know that,
// else all.
func (r rates) beside(before rates) (now, then float64) {
	if r.swing > 0 && before.swing > 0 {
		return r.swing, before.swing
	}
	return r.all, before.all
}

// Span is what the connections to a peer have shown in a tick, all together.
type Span struct {
	RTT, Base             time.Duration // the least round trip of them, and over empty queues
	Arrived, Sent, Resent uint64        // bytes since the tick before
	Segment               int           // bytes of payload
	Used                  int           // connections that have data
	Waiting               bool          // one of them has more to send than was let go
	Bounded               bool          // a Line bounds what is sent, so that no queue shows whether the way is full
	Others                Others
}

// Others is what other distant peers that have data have shown in a tick, all together.
type Others struct {
	Arrived uint64 // bytes since the tick before
	Peers   int
	Who     uint64 // of the names of all of them, in any order
	Waiting bool   // there is more to send to each of them than was let go
	Trying  bool   // more connections to one of them are being tried
}

// NewCount returns a count that begins with n connections.
func NewCount(n int) *Count { return &Count{n: n, pause: firstPause} }

// N returns how many connections to use.
func (c *Count) N() int { return c.n }

// Trying reports whether more connections are being tried.
func (c *Count) Trying() bool { return c.was > 0 }

// Follow says that n connections are in use, and that it had no part in that.
func (c *Count) Follow(n int) {
	if c.was == 0 {
		c.n = max(1, n)
	}
}

// Refused says that the peer takes no more than n connections for now.
func (c *Count) Refused(now time.Duration, n int) {
	c.n, c.was = max(1, min(c.n, n)), 0
	c.postpone(now)
}

func (c *Count) postpone(now time.Duration) {
	c.again = now + c.pause
	c.pause = min(2*c.pause, lastPause)
}

// Step takes a tick in which there was data. It returns true if N has changed.
func (c *Count) Step(now time.Duration, s Span) bool {
	took := now - c.last
	if c.rests {
		c.rests, c.more = false, 0
		if c.since > 0 {
			c.since += took
		}
	}
	if !s.Waiting {
		c.more = 0
	} else if c.more == 0 {
		c.more = max(now, 1)
	}
	c.last = now
	if c.since == 0 {
		*c = Count{n: c.n, was: c.was, full: c.full, rate: c.rate, weight: c.weight, gain: c.gain, again: c.again, pause: c.pause, skip: c.skip, look: c.look, since: max(now, 1), more: c.more, last: now}
	} else if c.more > 0 && now > c.more+s.RTT {
		c.swing.bytes, c.swing.time = c.swing.bytes+s.Arrived, c.swing.time+took
		c.elsewhere.add(&s.Others, took)
	}
	c.ticks++
	c.arrived += s.Arrived
	c.sent += s.Sent
	c.resent += s.Resent
	c.rtt += s.RTT
	if s.RTT-s.Base > queueOf(s.Base) {
		c.queued++
	}
	if s.Waiting {
		c.wanted++
	}
	if most, crowd := c.look.step(now, s, c.n); crowd {
		*c = Count{n: most, skip: settles, again: c.again, pause: c.pause, last: now}
		c.postpone(now)
		return true
	}
	span := now - c.since
	if span < max(judged, judgedTrips*s.RTT) {
		return false
	}
	c.since = 0
	if c.skip > 0 {
		c.skip--
		return false
	}
	if float64(c.wanted) < starved*float64(c.ticks) {
		return false
	}
	r := rates{all: float64(c.arrived) / span.Seconds()}
	if c.swing.time >= time.Duration(swung*float64(span)) {
		r.swing = c.swing.rate()
	}
	if o := &c.elsewhere; o.time >= time.Duration(swung*float64(span)) {
		r.others, r.peers, r.who, r.trying = o.rate(), o.peers, o.who, o.trying
	}
	return c.judge(now, r, c.rtt/time.Duration(c.ticks), s)
}

// look is for a crowd.
type look struct {
	since           time.Duration
	ticks, wanted   int
	arrived, resent uint64
	rtt             time.Duration // the sum over ticks
	crowd           bool          // there was one at the last look
}

// step takes a tick, and returns how many of n connections there is room for if they are a
// crowd.
func (l *look) step(now time.Duration, s Span, n int) (most int, crowd bool) {
	if l.ticks == 0 {
		*l = look{since: now, crowd: l.crowd}
	}
	l.ticks++
	l.arrived += s.Arrived
	l.resent += s.Resent
	l.rtt += s.RTT
	if s.Waiting {
		l.wanted++
	}
	rtt := l.rtt / time.Duration(l.ticks)
	if now-l.since < crowdTrips*rtt {
		return 0, false
	}
	was := *l
	*l = look{}
	n = min(n, s.Used) // those that the operation is spread over
	if n <= fewest || s.Segment <= 0 || float64(was.wanted) < starved*float64(was.ticks) || was.resent < uint64(n*s.Segment) {
		return 0, false
	}
	segments := float64(was.arrived) / float64(s.Segment) * float64(rtt) / float64(now-was.since)
	if segments < 1 || segments >= float64(crowded*n) {
		return 0, false
	}
	l.crowd = true
	return max(fewest, int(segments/uncrowded)), was.crowd
}

// Rest says that no data is under way any more: what was idle is not counted.
func (c *Count) Rest() { c.rests, c.look = true, look{} }

// judge ends a span that could have sent more.
func (c *Count) judge(now time.Duration, r rates, rtt time.Duration, s Span) bool {
	if c.was > 0 && s.Used >= c.n {
		rate, before := r.beside(c.rate)
		rate -= r.taken(c.rate)
		promised := before * (float64(c.n)/float64(c.was) - 1)
		was := c.was
		c.was = 0
		bar := brought
		if c.full {
			bar = broughtFull
		}
		weight := 1
		if r.swing > 0 && c.rate.swing > 0 {
			weight = firm
		}
		c.weight += weight
		// One span that is above the others by chance does not make a success.
		if c.gain += float64(weight) * (rate - before - bar*promised) / before; c.gain < 0 {
			if c.weight < enough {
				c.was = was
				return false
			}
			c.n = max(was, min(c.n, int(math.Round(float64(was)*rate/before)))) // as many as carry what all of them brought
			c.postpone(now)
			return true
		}
		c.pause = firstPause
	}
	if c.n >= MostCount || c.was > 0 || now < c.again {
		return false
	}
	c.full = float64(c.queued) > fullWay*float64(c.ticks) || s.Bounded
	c.was, c.rate, c.weight, c.gain, c.skip = c.n, r, 0, 0, settles
	c.n = min(c.n+(c.n+1)/2, MostCount)
	if !c.full && s.Segment > 0 && r.all < 1.5*float64(c.was)*lossBound(c.resent, c.sent, rtt, s.Segment) {
		c.n = min(2*c.was, MostCount)
	}
	if s.Segment > 0 && c.resent > 0 {
		c.n = min(c.n, max(int(r.all*rtt.Seconds()/float64(s.Segment*uncrowded)), c.was))
	}
	if c.n == c.was {
		c.was, c.skip = 0, 0
		return false
	}
	return true
}

// lossBound returns the bytes per second that one connection carries with such
// losses; 0: they are too few to tell.
func lossBound(resent, sent uint64, rtt time.Duration, segment int) float64 {
	if resent < uint64(4*segment) || sent == 0 || rtt <= 0 {
		return 0
	}
	p := float64(resent) / float64(sent)
	window := max(1.05*math.Pow(rtt.Seconds()/p, 0.75), 1.22/math.Sqrt(p))
	return window * float64(segment) / rtt.Seconds()
}
