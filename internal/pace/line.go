package pace

import (
	"slices"
	"time"
)

// Shown is what is known of one peer that has data, at one moment.
type Shown struct {
	Peer    uint64        // names it
	Base    time.Duration // the round trip over empty queues
	Queue   time.Duration // on the way to it, the shortest of its connections; below 0: not known
	Sent    uint64        // bytes, without those that were sent again, counted from any beginning
	Resent  uint64        // ... these
	Arrived uint64        // bytes there, counted from any beginning
	Told    time.Duration // when these had arrived, by the clock there; 0: it has said nothing of late
	Waiting bool          // there is more to send than was let go
}

const (
	// Deep is the queue of one's own from which on the line is bounded. Below it, windows
	// do no harm to others, and a bound only costs.
	Deep = 50 * time.Millisecond
	// A queue stands that has this length on average, or that of a burst: a connection sends no
	// less at once. One of half the length is about to.
	standing = 40 * time.Millisecond
	burst    = 24 << 10
	// An interval has at least this length. After a pause without a step, during which nothing was
	// sent, the next step begins another one. Steps come every 10 ms, and later on a busy machine:
	// a pause is longer than that.
	interval, pause = 400 * time.Millisecond, 200 * time.Millisecond
	// Where a queue stands, what arrives is what the line carries, and kept of it is sent.
	kept = 0.98
	// A queue is let out at this part of what arrives, and no longer than twice what it must
	// take. One that does not become shorter by that, misses times in a row, is somebody
	// else's: nothing is bounded then for as long as others says, or we would get nothing of
	// the line.
	outPart = 0.4
	others  = 10 * time.Second
	misses  = 2
	// silence is after how many intervals without words a queue is not bounded any more.
	silence = 10
	// Steps upwards double from leastStep to mostStep while no queue comes.
	leastStep, mostStep = 0.01, 0.08
	farStep, farAfter   = 0.5, 10 // after so many of them in a row
	// tryStep is the one with which more connections are tried.
	tryStep = 0.25
	// No interval leaves less of a rate.
	mostCut = 0.8
	// If more by this is sent than arrives, and there is a queue, the line carries no more.
	over = 1.05
	// Bytes per second that are always allowed: nothing stands still.
	leastRate = 64 << 10
	// A host of which less than stir bytes leave in gap pauses. One that is bounded writes leastRate
	// at least, 4 KiB at once.
	gap, stir = 80 * time.Millisecond, 2 << 10
	// A rate of which less was used is not raised. In an interval with less waiting the rate is
	// used for a part of the time, and what arrives tells nothing of the line.
	usedPart, mostlyWaiting = 0.85, 0.8
)

// Line bounds what a host sends to all distant peers together where a deep queue of its
// own was seen. In front of a home's uplink, with a second of buffer, windows fill it, and
// votes, heartbeats and everybody else on the line wait behind megabytes. What arrives
// while such a queue stands is what the line carries, and is the bound. It is measured by
// the clock of the other end, since acknowledgements wait in queues of their own. It belongs
// to one goroutine. The zero value bounds nothing.
type Line struct {
	rate      float64       // bytes per second; 0: not bounded
	came      float64       // bytes per second that arrived in the last interval
	step      float64       // the last one upwards, as a part of the rate
	out       time.Duration // when a queue began to be let out; 0: none is
	from      time.Duration // the longest since then
	missed    int           // times in a row that it did not go
	untold    int           // intervals in a row in which too little was told
	raised    int           // ... and after which the rate was raised
	begun     time.Duration // when data began to flow
	deaf      time.Duration // until then the queue that stands is not ours
	since     time.Duration // when the interval began; 0: there is none
	last      time.Duration // the last step
	waiting   bool          // something was, then
	paused    time.Duration // when little had left for gap, the last time
	moved     [4]uint64     // bytes that left in the quarters of a gap
	marked    time.Duration // when the last of them began
	stretch   stretch
	stretches findings
	tried     time.Duration // when it was raised for more connections
	before    float64       // what it was then

	// Of the interval.
	ticks, waited int           // steps, and those in which something was waiting
	held          held          // what left in these
	queue         time.Duration // the sum over steps
	now           time.Duration // the queue at the last step
	sides         []side
}

// side is a peer in an interval.
type side struct {
	peer        uint64
	seen        time.Duration
	first, last Shown
	told        told
}

// held is what left while there was more to send.
type held struct {
	bytes uint64
	time  time.Duration
}

// leastHeld is the shortest time that shows at what rate bytes leave: they are written in gulps.
const leastHeld = 40 * time.Millisecond

// rate returns the bytes per second; 0: it says nothing.
func (h held) rate() float64 {
	if h.time < leastHeld {
		return 0
	}
	return float64(h.bytes) / h.time.Seconds()
}

// Step takes what is known of all peers that have data; now is the time since any
// beginning. It returns how many bytes per second may be sent over all of them, 0: as many
// as they can.
func (l *Line) Step(now time.Duration, peers []Shown) float64 {
	queue := time.Duration(-1)
	base, waiting := time.Duration(0), false
	for i := range peers {
		if q := peers[i].Queue; q >= 0 && (queue < 0 || q < queue) {
			queue = q
		}
		base = max(base, peers[i].Base)
		waiting = waiting || peers[i].Waiting
	}
	if now-l.last > pause {
		l.sides = slices.DeleteFunc(l.sides, func(w side) bool { return w.seen < l.last })
		l.since, l.begun, l.out, l.missed = 0, now, 0, 0
		l.marked, l.moved = now, [...]uint64{stir, stir, stir, stir}
	}
	if now-l.stretch.last > rested || now-l.stretch.began > longStretch {
		l.endStretch(now)
	}
	moved := l.note(now, queue, peers)
	l.moved[len(l.moved)-1] += moved
	if d := now - l.last; l.waiting && waiting && d < pause {
		for _, h := range []*held{&l.held, &l.stretch.held} {
			h.bytes, h.time = h.bytes+moved, h.time+d
		}
	}
	l.last, l.waiting = now, waiting
	l.endQuarter(now)
	if queue < 0 || l.out == 0 && now < l.begun+base+queue { // what was sent since then has not arrived
		return l.rate
	}
	if queue < l.bar()/2 {
		l.deaf = 0
	}
	if l.out > 0 {
		l.from = max(l.from, queue) // it is told late
		if queue >= l.bar() && now < l.out+base+time.Duration(2*float64(l.from)/(1-outPart)) {
			return max(outPart*min(l.rate, l.came), leastRate)
		}
		l.out, l.since = 0, 0
		l.missed++
		if queue < l.bar() || 3*queue < 2*l.from {
			l.missed = 0
		}
		if l.missed == misses { // it does not go with what we let out
			l.missed, l.deaf, l.rate = 0, now+others, 0
		}
	}
	if now < l.deaf {
		return 0
	}
	if l.since == 0 && l.rate == 0 && queue < Deep {
		return 0
	}
	if steady := l.steady(base); l.since == 0 || l.since < steady && now >= steady && queue >= l.bar()/2 { // it would say nothing
		l.begin(now)
	}
	l.ticks++
	if waiting {
		l.waited++
	}
	l.now = queue
	l.queue += queue
	if now-l.since >= interval {
		l.judge(now, base)
		l.since = 0
	}
	return l.rate
}

// Try raises the bound at once, because more connections are tried. Where each of them is
// bounded by itself, more can be sent. Where the line bounds them all, a queue says so. For
// several peers that are tried together it is raised once, and to no more than tryStep above
// what has arrived at most: a bound which is higher holds nothing up. It returns the bound before,
// in bytes per second, which Fell takes; 0: nothing was bounded.
func (l *Line) Try() (before float64) {
	if l.tried > 0 && l.last-l.tried < interval {
		return l.before
	}
	l.tried, l.before = l.last, l.rate
	came := max(l.stretches.best, l.came)
	if came == 0 {
		came = l.rate
	}
	l.rate = max(l.rate, (1+tryStep)*min(l.rate, came))
	l.step = mostStep
	return l.before
}

// Fell says that more connections brought nothing, and that no others are being tried: the bound is
// what it was before, or what arrives now if that is more. One that was raised further since then
// loses no more than two trials may have brought it.
func (l *Line) Fell(before float64) {
	l.tried = 0
	if before > 0 {
		l.rate, l.step = min(l.rate, max(before, l.came, l.rate/(1+tryStep)/(1+tryStep))), 0
	}
}

// bar returns from which length on a queue stands.
func (l *Line) bar() time.Duration {
	if l.rate == 0 {
		return standing
	}
	return max(standing, time.Duration(burst/l.rate*float64(time.Second)))
}

// endQuarter ends a quarter of a gap when it is over, and notes a pause.
func (l *Line) endQuarter(now time.Duration) {
	if now-l.marked < gap/time.Duration(len(l.moved)) {
		return
	}
	sum := uint64(0)
	for _, n := range l.moved {
		sum += n
	}
	if sum < stir {
		l.paused = now
	}
	copy(l.moved[:], l.moved[1:])
	l.moved[len(l.moved)-1], l.marked = 0, now
}

// steady returns from when on what arrives is what left behind the last pause. A pause is noticed
// late, and what arrives is told late.
func (l *Line) steady(base time.Duration) time.Duration {
	if l.paused == 0 {
		return 0
	}
	return l.paused + base + 2*gap
}

// begin starts an interval.
func (l *Line) begin(now time.Duration) {
	l.since, l.ticks, l.waited, l.queue, l.held = now, 0, 0, 0, held{}
	l.sides = slices.DeleteFunc(l.sides, func(w side) bool { return w.seen < now-interval })
	for i := range l.sides {
		l.sides[i].first = l.sides[i].last
	}
}

// note takes what is known of all peers that have data, with the shortest queue, and returns how
// many bytes have left since the last step.
func (l *Line) note(now, queue time.Duration, peers []Shown) (moved uint64) {
	f := &l.stretch
	f.last = now
	f.ticks++
	f.queue += max(queue, 0)
	f.longest = max(f.longest, queue)
	rate, all := 0.0, true
	for i := range peers {
		s, w := &peers[i], l.side(&peers[i])
		sent, again := since(s.Sent, w.last.Sent), since(s.Resent, w.last.Resent)
		f.sent, f.again, moved = f.sent+sent, f.again+again, moved+sent+again
		if w.first.Told == 0 {
			w.first.Told, w.first.Arrived = s.Told, s.Arrived
		}
		w.told.take(now, s)
		arrives, ok := w.told.arrives(now)
		rate, all = rate+arrives, all && ok
		w.seen, w.last = now, *s
	}
	if all { // what some of them tell says nothing of the line
		f.peak = max(f.peak, rate)
	}
	return moved
}

// side returns what is kept of a peer.
func (l *Line) side(s *Shown) *side {
	i := slices.IndexFunc(l.sides, func(w side) bool { return w.peer == s.Peer })
	if i < 0 {
		i = len(l.sides)
		l.sides = append(l.sides, side{peer: s.Peer, first: *s, last: *s})
	}
	return &l.sides[i]
}

// shown returns how many bytes per second were sent in the interval, and arrived; false:
// the other ends told too little.
func (l *Line) shown(span time.Duration) (sent, arrived float64, ok bool) {
	ok = true
	for i := range l.sides {
		w := &l.sides[i]
		out := since(w.last.Sent, w.first.Sent)
		sent += float64(out) / span.Seconds()
		took := w.last.Told - w.first.Told
		if took >= span/2 && took <= 2*span {
			arrived += float64(since(w.last.Arrived, w.first.Arrived)) / took.Seconds()
		} else if out > 0 {
			ok = false
		}
	}
	return sent, arrived, ok
}

// judge ends an interval. One without enough to send says nothing, and neither does one with
// queues in which the host has paused, or that began within a round trip behind a pause: over
// a long way windows leave in flights with queues of their own, and what arrives is less than
// the line carries, or was sent before the pause. Peers of which one tells too little, as the
// original library does, are not bounded where a queue stands.
func (l *Line) judge(now, base time.Duration) {
	sent, arrived, ok := l.shown(now - l.since)
	queue := l.queue / time.Duration(l.ticks)
	stands, begins := queue >= l.bar(), queue >= l.bar()/2
	// Where the rate is that of a stretch no queue of ours has stood: a part of one may be how much
	// round trips vary, or somebody else's.
	reached := stands || begins && !l.stretches.set
	if float64(l.waited) < mostlyWaiting*float64(l.ticks) {
		if !begins && l.held.rate() > usedPart*l.rate { // it holds up what there is
			l.raise()
		}
		return
	}
	l.stretch.judged = true
	paused := l.since < l.steady(base)
	if l.untold++; ok && arrived > 0 {
		if l.untold = 0; !paused {
			l.came = arrived
		}
	}
	if reached && l.untold == 0 && !paused {
		l.refute()
	}
	if l.doubts(arrived, stands) {
		return
	}
	switch {
	case l.untold > 0 && begins:
		if l.untold >= silence { // nothing says what the line carries
			l.rate, l.untold = 0, 0
		}
		return
	case paused && begins:
		l.raised = 0
		return
	case l.untold == 0 && (sent > over*arrived && reached || l.rate == 0 && stands):
		l.rate, l.step, l.stretches.set = max(kept*arrived, mostCut*l.rate, leastRate), 0, false
	case stands:
		l.step = 0
	case reached:
	case sent > usedPart*l.rate:
		l.raise()
		return
	}
	l.raised = 0
	if stands && l.rate > 0 {
		l.out, l.from = now, l.now
	}
}

// raise takes a step upwards, if there is a rate.
func (l *Line) raise() {
	if l.rate == 0 {
		return
	}
	most := mostStep
	if l.raised++; l.raised > farAfter { // another way may carry much more
		most = farStep
	}
	l.step = min(max(2*l.step, leastStep), most)
	l.rate *= 1 + l.step
	l.leap()
}

// since is what a counter has moved; one that went back has not.
func since(now, before uint64) uint64 { return now - min(now, before) }
