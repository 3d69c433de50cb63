package pace

import "time"

const (
	// A stretch has ended when no connection counted as one with data for rested, and one that goes
	// on is judged after longStretch.
	rested, longStretch = 60 * time.Millisecond, time.Second
	// What arrives is measured over at least leastWindow by the clocks of the other ends, and
	// at most over mostWindow. A word older than staleWord says nothing of now.
	leastWindow, mostWindow, staleWord = 100 * time.Millisecond, 200 * time.Millisecond, 100 * time.Millisecond
	// A stretch overflowed if there was a queue of one's own, and this part of it, and so many
	// bytes, had to be sent again. Chance loses less, or does so without a queue.
	overflowed, leastOverflow = 0.015, 16 * 1448
	// A rate that is above what has arrived at most by more than the part slack holds nothing up. It is
	// too high if slackLost, as a part of what was sent, is lost behind a queue of at least shortQueue.
	slack, slackLost = tryStep / 2, 0.005
	shortQueue       = standing / 4
	// One that is over sooner than in so many windows, at the rate that was measured, shows less
	// than the line carries.
	leastWindows = 2
	// If as much is lost mostTries times while what is sent arrives, it is lost by chance: no
	// stretch is bounded for byChance.
	mostTries, byChance = 3, time.Minute
	// words are kept of each peer.
	words = 6
	// What arrived at most is forgotten by this part with each stretch.
	fades = 0.02
	// A rate below this part of it was found beside something that is not a line, such as a machine
	// that had no time: it is doubled until then. Where that was wrong it is not for noLeap.
	farBelow = 0.5
	noLeap   = time.Minute
)

// stretch is what leaves between two rests: of a short operation it is over before intervals could
// say anything.
type stretch struct {
	began, last time.Duration // 0: none
	ticks       int
	queue       time.Duration // the sum over steps
	longest     time.Duration
	sent, again uint64 // bytes
	held        held
	peak        float64 // bytes per second that arrived
	judged      bool    // an interval of it says more
}

// findings is what stretches have shown.
type findings struct {
	set    bool          // the rate is that of one
	tries  int           // of those that lost much while what was sent arrived
	chance time.Duration // until then losses are by chance
	best   float64       // bytes per second that arrived
	leapt  bool          // the rate was raised to a part of it
	wrong  time.Duration // when that was wrong; 0: never
	doubt  bool          // a queue stood, and much less arrived
}

// told are the last words of a peer.
type told struct {
	words [words]struct {
		at    time.Duration // by its clock
		bytes uint64        // that had arrived by then
	}
	n     int           // words so far
	heard time.Duration // when the last one came
}

// take takes a word, unless one came that is hardly older.
func (w *told) take(now time.Duration, s *Shown) {
	if s.Told == 0 || w.n > 0 && s.Told < w.words[(w.n-1)%words].at+leastWindow/words {
		return
	}
	next := &w.words[w.n%words]
	next.at, next.bytes = s.Told, s.Arrived
	w.n++
	w.heard = now
}

// arrives returns the bytes per second that came of late; false: too little was told for that.
func (w *told) arrives(now time.Duration) (rate float64, ok bool) {
	if w.n < 2 || now-w.heard > staleWord {
		return 0, false
	}
	last := w.words[(w.n-1)%words]
	for k := 2; k <= min(w.n, words); k++ {
		first := w.words[(w.n-k)%words]
		if took := last.at - first.at; took > mostWindow {
			return 0, false
		} else if took >= leastWindow {
			return float64(since(last.bytes, first.bytes)) / took.Seconds(), true
		}
	}
	return 0, false
}

// overflows reports whether more left than the queue before the line had room for.
func (f *stretch) overflows() bool {
	return f.longest >= standing/2 && f.again >= leastOverflow && float64(f.again) >= overflowed*float64(f.sent)
}

// tooHigh reports whether a rate that holds nothing up let more leave than a short queue has room for.
// One that was just raised for more connections has to show first what it brings.
func (l *Line) tooHigh(now time.Duration) bool {
	f, x := &l.stretch, &l.stretches
	tries := l.tried > 0 && now-l.tried < 2*interval
	return l.rate > (1+slack)*x.best && !tries && now >= x.chance && f.peak > 0 && f.longest >= shortQueue && l.fills() &&
		f.again >= leastOverflow && float64(f.again) >= slackLost*float64(f.sent)
}

// fills reports whether the stretch was long enough to show what the line carries.
func (l *Line) fills() bool {
	return float64(l.stretch.sent) >= leastWindows*leastWindow.Seconds()*l.stretches.best
}

// endStretch judges a stretch that is over, or goes on for long.
func (l *Line) endStretch(now time.Duration) {
	f, x := &l.stretch, &l.stretches
	// One that lost much is followed by others with small windows, and what was lost is sent again
	// in these: what they arrive with is less than the line carries.
	held := f.held.rate()
	if held > 0 { // what is small says nothing
		x.best *= 1 - fades
	}
	x.best = max(x.best, f.peak)
	switch {
	case f.ticks == 0:
	case l.tooHigh(now):
		l.rate, l.step, l.raised, x.set = max(x.best, leastRate), 0, 0, x.set || !f.judged
	case !f.overflows():
		if held > 0 {
			x.tries = max(x.tries-1, 0)
		}
		bar := l.bar() / 2
		if x.set { // half a queue may be how much round trips vary
			bar = l.bar()
		}
		if !f.judged && f.queue/time.Duration(f.ticks) < bar && held > usedPart*l.rate {
			l.raise()
		}
	case now < x.chance || now < l.deaf || f.peak == 0 || !l.fills():
	case l.rate == 0:
		l.rate, l.step, l.raised, x.set = max(kept*x.best, leastRate), 0, 0, true
	case f.judged && !x.set:
	case f.peak < usedPart*l.rate && held > over*f.peak: // the line carries less than that
		l.rate, l.step, l.raised, x.set = max(kept*f.peak, mostCut*l.rate, leastRate), 0, 0, true
	case f.peak >= usedPart*l.rate:
		if x.tries++; x.tries > mostTries {
			l.rate, x.set, x.tries, x.chance = 0, false, 0, now+byChance
			break
		}
		l.rate, l.step, l.raised, x.set = max(kept*min(f.peak, l.rate), leastRate), 0, 0, true
	}
	*f = stretch{began: now}
}

// leap raises a rate that is far below what stretches have arrived with.
func (l *Line) leap() {
	x := &l.stretches
	if x.leapt = l.rate < farBelow*x.best && (x.wrong == 0 || l.last-x.wrong > noLeap); x.leapt {
		l.rate = min(2*l.rate, farBelow*x.best)
	}
}

// refute says that there is a queue: if the rate was raised to a part of what had arrived, the line
// carries no more than what arrives now.
func (l *Line) refute() {
	if x := &l.stretches; x.leapt {
		x.best, x.leapt, x.wrong = l.came, false, l.last
	}
}

// doubts reports whether a queue that stands does not set a first bound yet, since much less
// arrives than stretches have arrived with: time that a machine does not have looks like a queue.
func (l *Line) doubts(arrived float64, stands bool) bool {
	x := &l.stretches
	was := x.doubt
	x.doubt = l.rate == 0 && stands && arrived < farBelow*x.best
	return x.doubt && !was
}
