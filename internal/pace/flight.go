package pace

import (
	"slices"
	"time"
)

const (
	// A flight has ended when nothing was under way for rested, and one that goes on is judged
	// after longFlight.
	rested, longFlight = 60 * time.Millisecond, time.Second
	// What arrives is measured over at least leastWindow by the clocks of the other ends, and
	// at most over mostWindow. A word older than staleWord says that nothing arrives.
	leastWindow, mostWindow, staleWord = 100 * time.Millisecond, 200 * time.Millisecond, 100 * time.Millisecond
	// A flight overflowed if there was a queue of one's own, and this part of it, and so many
	// bytes, had to be sent again. Chance loses less, or does so without a queue.
	overflowed, leastOverflow = 0.015, 16 * 1448
	// If as much is lost with a bound mostTries times in a row, it is lost by chance: no flight is
	// bounded for byChance.
	mostTries, byChance = 3, time.Minute
	// words are kept of each peer.
	words = 6
	// What the line carried at most is forgotten by this part with each flight.
	fades = 0.02
	// A rate below this part of it was found beside something that was no line, such as a machine
	// that had no time: it is doubled until then.
	farBelow = 0.5
)

// flight is what leaves between two rests, of an operation that is over before intervals could
// say anything.
type flight struct {
	began, last time.Duration // 0: none
	ticks       int
	queue       time.Duration // the longest
	sent, again uint64        // bytes
	held        held
	peak        float64 // bytes per second that arrived
	judged      bool    // an interval of it says more
	sides       []wing
}

// flights is what they have shown.
type flights struct {
	set    bool          // the rate is that of one
	lost   float64       // part of that one
	tries  int           // in a row that lost as much
	chance time.Duration // until then losses are by chance
	best   float64       // bytes per second that arrived
	leapt  bool          // the rate was raised to a part of it
	doubt  bool          // a queue stood, and much less arrived
}

// wing is a peer that flights go to.
type wing struct {
	peer        uint64
	sent, again uint64 // at the last step
	told        [words]told
	n           int           // words so far
	heard       time.Duration // when the last one came
}

type told struct {
	at    time.Duration
	bytes uint64
}

// step takes what is known of all peers that have data, with the shortest queue.
func (f *flight) step(now, queue time.Duration, peers []Shown) {
	f.last = now
	f.ticks++
	f.queue = max(f.queue, queue)
	rate, all := 0.0, true
	for i := range peers {
		w := f.wing(&peers[i])
		f.sent += since(peers[i].Sent, w.sent)
		f.again += since(peers[i].Resent, w.again)
		w.sent, w.again = peers[i].Sent, peers[i].Resent
		if s := &peers[i]; s.Told > 0 && (w.n == 0 || s.Told >= w.told[(w.n-1)%words].at+leastWindow/words) {
			w.told[w.n%words] = told{s.Told, s.Arrived}
			w.n++
			w.heard = now
		}
		came, ok := w.arrives()
		if all = all && ok; now-w.heard <= staleWord {
			rate += came
		}
	}
	if all { // of some it says nothing of the line
		f.peak = max(f.peak, rate)
	}
}

func (f *flight) wing(s *Shown) *wing {
	i := slices.IndexFunc(f.sides, func(w wing) bool { return w.peer == s.Peer })
	if i < 0 {
		i = len(f.sides)
		f.sides = append(f.sides, wing{peer: s.Peer, sent: s.Sent, again: s.Resent})
	}
	return &f.sides[i]
}

// arrives returns the bytes per second that came of late; false: too little was told yet.
func (w *wing) arrives() (rate float64, ok bool) {
	if w.n < 2 {
		return 0, false
	}
	last := w.told[(w.n-1)%words]
	for k := 2; k <= min(w.n, words); k++ {
		first := w.told[(w.n-k)%words]
		took := last.at - first.at
		if took > mostWindow {
			return 0, true
		}
		if took >= leastWindow {
			return float64(since(last.bytes, first.bytes)) / took.Seconds(), true
		}
	}
	return 0, w.n >= words
}

// lost returns which part of the flight had to be sent again, if more left than the queue before
// the line had room for. 0: no more than by chance.
func (f *flight) lost() float64 {
	if f.queue < standing/2 || f.again < leastOverflow || float64(f.again) < overflowed*float64(f.sent) {
		return 0
	}
	return float64(f.again) / float64(max(f.sent, 1))
}

// endFlight judges a flight that is over, or goes on for long.
func (l *Line) endFlight(now time.Duration) {
	f, x := &l.flight, &l.flights
	// One that lost much is followed by others with small windows, and what was lost is sent again
	// in these: what they arrive with is less than the line carries.
	x.best = max(x.best*(1-fades), f.peak)
	lost := f.lost()
	switch {
	case f.ticks == 0 || now < x.chance:
	case lost == 0:
		if x.tries = 0; !f.judged && l.rate > 0 && f.queue < l.bar()/2 && f.held.rate() > usedPart*l.rate {
			l.raise()
		}
	case x.best == 0 || l.rate > 0 && !x.set:
	case l.rate == 0:
		l.rate, l.step = max(kept*x.best, leastRate), 0
		x.set, x.lost, x.tries = true, lost, 1
	default:
		if x.tries++; x.tries > mostTries && 2*lost > x.lost {
			l.rate, x.set, x.tries, x.chance = 0, false, 0, now+byChance
			break
		}
		l.rate, l.step = max(min(kept*x.best, l.rate), mostCut*l.rate, leastRate), 0
	}
	*f = flight{sides: f.sides, began: now}
	f.sides = slices.DeleteFunc(f.sides, func(w wing) bool { return now-w.heard > time.Minute })
}

// leap raises a rate that is far below what flights have arrived with.
func (l *Line) leap() {
	x := &l.flights
	if x.leapt = l.rate < farBelow*x.best; x.leapt {
		l.rate = min(2*l.rate, farBelow*x.best)
	}
}

// doubts reports whether a queue that stands is no reason for a first bound yet, since much less
// arrives than flights have arrived with: time that a machine does not have looks like a queue.
func (l *Line) doubts(arrived float64, stands bool) bool {
	x := &l.flights
	was := x.doubt
	x.doubt = l.rate == 0 && stands && arrived < farBelow*x.best
	return x.doubt && !was
}
