package pace

import "time"

// law holds the numbers of the controller. BenchmarkConstants of the tests prints
// what others do to a model of queues.
type law struct {
	// A peer with a shorter way is neither sampled nor paced: there is no queue
	// there that anybody could feel, and a pacer only costs.
	near time.Duration
	// A queue is too long beyond a part of the empty way's round trip, within bounds.
	limitPart          float64
	limitMin, limitMax time.Duration
	// An interval has at least this length, and two round trips.
	interval time.Duration
	// It is congestion if it is there in this part of an interval.
	standing float64
	// The first rate is what a saturated interval carried, times first. It is one if
	// it did not carry grows times what the one before did.
	first, grows float64
	// A congested interval makes the rate cut of what arrived, but not below floor
	// of the best that the way has carried. best forgets by fade an interval. While
	// the queue gets shorter by itself (by gone an interval) the rate stays.
	cut, floor, fade, gone float64
	// A queue of enough limits says that the rate is right.
	enough float64
	// An interval without a queue that used at least used of the rate is followed
	// by a step upwards: catch while it carried less than what the way did at its
	// last congestion (by hold), slow near that. Above it, and before any congestion,
	// the step begins with open and doubles each time, up to leap: the way has more
	// than it had.
	used, hold, slow, catch, open, leap float64
	// After so many slow steps they double too.
	patience int
	// A queue, and less than broken of the rate arrives: the way has lost rate, and
	// the best is what arrives. No interval takes more than down to fall.
	broken, fall float64
	// Losses above this share, or a timeout, count as congestion, if there was a
	// queue of lossQueue limits at some time.
	losses, lossQueue float64
	emptying
	// A queue that has not become shorter in stuck intervals at the floor lowers the
	// floor, once. If that does not help either it is somebody else's: the rate goes
	// up by back, to no more than it was, and for bear intervals only losses reduce it.
	stuck, bear int
	back        float64
}

// emptying are the numbers for a queue that is let out.
type emptying struct {
	// A queue of drain limits is let out at a part of the rate: at once after a loss
	// of rate, else not within again of one that did not go; never twice in pause.
	drain, drainPart float64
	again, pause     time.Duration
}

var theLaw = law{
	near:      2 * time.Millisecond,
	limitPart: 0.25, limitMin: 8 * time.Millisecond, limitMax: 25 * time.Millisecond,
	interval: 100 * time.Millisecond,
	standing: 0.9,
	first:    0.98, grows: 1.25, cut: 0.96, floor: 0.75, fade: 0.005, gone: 0.15,
	enough: 0.5, used: 0.85, hold: 0.04, slow: 1.015, catch: 1.05, open: 1.1, leap: 1.25, patience: 10,
	broken: 0.75, fall: 0.35,
	losses: 0.02, lossQueue: 1,
	emptying: emptying{drain: 2, drainPart: 0.4, again: 10 * time.Second, pause: time.Second},
	stuck:    4, bear: 30, back: 1.8,
}

// limit returns how long a queue may be on a way with that round trip.
func (l *law) limit(base time.Duration) time.Duration {
	return min(max(time.Duration(float64(base)*l.limitPart), l.limitMin), l.limitMax)
}

// reading is what an interval has shown of a way.
type reading struct {
	rate      float64       // bytes per second that arrived
	queue     time.Duration // beyond the empty way's round trip, at the end
	over      float64       // the queue in limits
	congested bool
	limited   bool // there was not enough to send
	partly    bool // for some of the time: the rate says little
	lossy     bool
}

// governor holds the rate of an uplink, or the cap of a pair, in bytes per second.
type governor struct {
	rate  float64       // 0: none
	best  float64       // that was carried
	wall  float64       // that was carried at the last congestion; 0: there was none
	raise float64       // the last step beyond the wall, less 1
	calm  int           // slow steps since then
	queue time.Duration // of the last interval, if it was congested
	// Of the congested intervals in a row: the rate before them, and how many had no
	// shorter queue than the one before although the rate was at the floor.
	before  float64
	stuck   int
	lowered bool // the floor, for that
	bear    int  // intervals in which a queue does not count
}

// begin sets the first rate.
func (g *governor) begin(rate, best float64) { *g = governor{rate: rate, best: best} }

// step takes what an interval has shown. A rate has begun before.
func (g *governor) step(l *law, m reading) {
	if m.limited {
		return
	}
	g.bear = max(g.bear-1, 0)
	switch {
	case m.congested && g.bear > 0 && !m.lossy:
		g.raise = 0
	case m.congested:
		g.reduce(l, m)
	case m.over > l.enough:
		g.raise, g.queue, g.stuck = 0, 0, 0
	case m.rate > l.used*g.rate:
		g.rate *= g.climb(l, m.rate)
		g.queue, g.stuck = 0, 0
	default:
		g.raise, g.queue, g.stuck = 0, 0, 0
	}
	if m.rate > g.best || !m.partly {
		g.best = max(m.rate, (1-l.fade)*g.best+l.fade*m.rate)
	}
}

// reduce answers a congested interval.
func (g *governor) reduce(l *law, m reading) {
	was := g.queue
	if m.partly {
		m.rate = max(m.rate, g.rate)
	}
	g.wall, g.raise, g.queue, g.calm = m.rate, 0, m.queue, 0
	if m.rate < l.broken*g.rate && m.over > l.drain {
		g.fall(l, m.rate)
		g.stuck = 0
		return
	}
	if was == 0 {
		g.before, g.stuck, g.lowered = min(g.rate, m.rate), 0, false
	}
	if float64(m.queue) >= 0.95*float64(was) && g.rate <= 1.01*l.floor*g.best {
		g.stuck++
	}
	switch {
	case g.stuck < l.stuck:
	case !g.lowered:
		g.best, g.stuck, g.lowered = l.floor*g.best, 0, true
	case !m.lossy:
		g.rate = min(l.back*g.rate, g.before)
		g.stuck, g.bear, g.lowered = 0, l.bear, false
		return
	}
	if ebbs := was > 0 && g.rate < m.rate && float64(m.queue) < (1-l.gone)*float64(was); !ebbs {
		g.rate = max(l.cut*min(g.rate, m.rate), l.floor*g.best)
	}
}

// fall takes the rate down to what arrives, but by no more than fall at once.
func (g *governor) fall(l *law, rate float64) {
	g.best = max(rate, l.fall*g.best)
	g.rate = max(l.cut*rate, l.fall*g.rate)
}

// climb returns the step after an interval that used the rate and had no queue.
func (g *governor) climb(l *law, rate float64) float64 {
	switch {
	case rate < (1-l.hold)*g.wall:
		return l.catch
	case rate < (1+l.hold)*g.wall && g.calm < l.patience:
		g.calm++
		return l.slow
	}
	g.raise = min(max(2*g.raise, l.open-1), l.leap-1)
	return 1 + g.raise
}
