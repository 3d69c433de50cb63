package pace

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// burst lets each connection send so many bytes at once, and returns how long all of it took, in
// ms, and what part was lost. Between bursts nothing is sent.
func (f *fluid) burst(each float64) (took int, lost float64) {
	_, sent, resent := f.sums()
	for _, w := range f.flows {
		w.bursts, w.left = true, each
	}
	began := f.now
	for under := true; under && f.now < began+60_000; {
		f.tick()
		under = false
		for _, w := range f.flows {
			under = under || w.left > 0 || w.flying >= 1
		}
	}
	took = f.now - began
	f.run(time.Second)
	_, sentAfter, resentAfter := f.sums()
	return took, (resentAfter - resent) / (sentAfter - sent)
}

// Windows that together hold more than the queue before the line has room for overflow it at once:
// an operation to all others is over before a queue has stood for long. After some of them they
// leave no faster than the line carries them, and are no slower for it.
func TestStretchesThatOverflow(t *testing.T) {
	for name, o := range map[string]struct {
		mbit   float64
		buffer time.Duration
		base   int
		each   float64
	}{
		"50 Mbit/s, 100 ms":  {50, 100 * time.Millisecond, 100, 64 << 10},
		"100 Mbit/s, 30 ms":  {100, 60 * time.Millisecond, 30, 64 << 10},
		"500 Mbit/s, 150 ms": {500, 100 * time.Millisecond, 150, 512 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			bare, f := newFluid(1, o.mbit, o.buffer, crew(3, 8, o.base)...), newFluid(1, o.mbit, o.buffer, crew(3, 8, o.base)...)
			bare.unbound = true
			var was, is, wasLost, isLost float64
			for k := range 24 {
				for _, w := range slices.Concat(f.flows, bare.flows) {
					w.window = max(w.window, o.each) // windows that stood open
				}
				a, lostA := bare.burst(o.each)
				b, lostB := f.burst(o.each)
				if k >= 8 {
					was, is, wasLost, isLost = was+float64(a), is+float64(b), wasLost+lostA/16, isLost+lostB/16
				}
			}
			t.Logf("lost %.3f, without a bound %.3f; %.2f of the time", isLost, wasLost, is/was)
			require.Greater(t, wasLost, 0.03, "it has to overflow without")
			require.Less(t, isLost, wasLost/10)
			require.Less(t, is, 1.05*was)
		})
	}
}

// A line that has become slower is found by what arrives, also if an interval has found the bound
// before. It is not taken for one that loses by chance.
func TestStretchesOfASlowerLine(t *testing.T) {
	for _, long := range []bool{false, true} {
		f := newFluid(1, 100, 100*time.Millisecond, crew(3, 8, 60)...)
		lost := 0.0
		for k := range 30 {
			if long && k == 4 {
				f.burst(4 << 20)
			}
			if k == 10 {
				f.rate, f.buffer = f.rate/2.5, f.buffer/2.5
			}
			for _, w := range f.flows {
				w.window = max(w.window, 64<<10)
			}
			_, lost = f.burst(64 << 10)
			require.True(t, k < 20 || f.bound > 0 && lost < 0.01, "%v, burst %d: lost %.3f, bound %.0f of %.0f", long, k, lost, f.bound, f.rate)
		}
	}
}

// script is what two peers show in steps of 10 ms.
type script struct {
	l    Line
	k    int
	rate float64
	came uint64
	all  [2]Shown
}

// run shows for so long that each peer is sent, and gets, so many bytes per second, of which a part
// had to be sent again. told: how many of the peers tell what arrives.
func (s *script) run(d time.Duration, sent, arrived, lost float64, queue time.Duration, told int, waiting bool) {
	for range d / (10 * time.Millisecond) {
		s.k++
		at := time.Duration(s.k) * 10 * time.Millisecond
		for i := range s.all {
			p := &s.all[i]
			p.Peer, p.Base, p.Queue, p.Waiting = uint64(i+1), 80*time.Millisecond, queue, waiting
			p.Sent += uint64(sent / 100)
			p.Resent += uint64(lost * sent / 100)
			if s.k%4 == 0 && i < told {
				p.Told, p.Arrived = at, s.came
			}
		}
		s.came += uint64(arrived / 100)
		s.rate = s.l.Step(at, s.all[:])
	}
}

func (s *script) rest(d time.Duration) { s.k += int(d / (10 * time.Millisecond)) }

// What some of the peers tell says nothing of the line, and neither do losses without a queue, or a
// stretch that is over before anything could be measured.
func TestStretchesThatSayNothing(t *testing.T) {
	for name, o := range map[string]struct {
		told  int
		lost  float64
		queue time.Duration
		long  time.Duration
	}{
		"one tells nothing":    {1, 0.1, 30 * time.Millisecond, 300 * time.Millisecond},
		"there is no queue":    {2, 0.1, 5 * time.Millisecond, 300 * time.Millisecond},
		"little is lost":       {2, 0.003, 30 * time.Millisecond, 300 * time.Millisecond},
		"neither tells at all": {0, 0.1, 30 * time.Millisecond, 300 * time.Millisecond},
		"it is over soon":      {2, 0.1, 30 * time.Millisecond, 180 * time.Millisecond},
	} {
		var s script
		for range 20 {
			s.run(o.long, 3e6, 3e6, o.lost, o.queue, o.told, true)
			require.Zero(t, s.rate, name)
			s.rest(time.Second)
		}
	}
}

// A rate is raised when what waited for it left at that rate. What left at other times does not
// count.
func TestOnlyWhatWaitsRaises(t *testing.T) {
	for _, held := range []float64{0.3, 1} {
		var s script
		s.run(time.Second, 2e6, 1e6, 0, 60*time.Millisecond, 2, true)
		require.Positive(t, s.rate)
		for s.l.out > 0 {
			s.run(10*time.Millisecond, s.rate/2, s.rate/2, 0, 0, 2, false)
		}
		was := s.rate
		for range 10 {
			s.run(300*time.Millisecond, was/2, was/2, 0, 0, 2, false)
			s.run(100*time.Millisecond, held*was/2, held*was/2, 0, 0, 2, true)
		}
		if held < 1 {
			require.Equal(t, was, s.rate)
		} else {
			require.Greater(t, s.rate, 1.1*was)
		}
	}
}

// A rate of a stretch is not cut by half a queue, which may be somebody else's or how much round
// trips vary, and rises beside one.
func TestHalfAQueueBesideAStretch(t *testing.T) {
	var s script
	for range 2 {
		s.run(300*time.Millisecond, 3e6, 3e6, 0.1, 30*time.Millisecond, 2, true)
		s.rest(time.Second)
	}
	require.Positive(t, s.rate)
	was := s.rate
	s.run(4*time.Second, was/2, 0.9*was/2, 0, 30*time.Millisecond, 2, true)
	require.Greater(t, s.rate, was)
}

// A short operation that overflows also lowers a bound that an interval has found.
func TestStretchesBehindAnInterval(t *testing.T) {
	var s script
	s.run(time.Second, 2e6, 1e6, 0, 60*time.Millisecond, 2, true)
	for s.l.out > 0 {
		s.run(10*time.Millisecond, s.rate/2, s.rate/2, 0, 0, 2, true)
	}
	require.False(t, s.l.stretches.set)
	was := s.rate
	for range 6 {
		s.rest(time.Second)
		s.run(300*time.Millisecond, was/2, 0.2e6, 0.1, 30*time.Millisecond, 2, true)
	}
	require.Less(t, s.rate, was/2)
}

// A bound is not lowered by what could not be measured, or was not held up: of one peer that tells
// nothing, or where little is to be sent.
func TestStretchesLowerNothingByChance(t *testing.T) {
	for name, o := range map[string]struct {
		told    int
		waiting bool
	}{"one tells nothing": {0, true}, "there was no more to send": {2, false}} {
		var s script
		for range 2 {
			s.run(300*time.Millisecond, 3e6, 3e6, 0.1, 30*time.Millisecond, 2, true)
			s.rest(time.Second)
		}
		was := s.rate
		require.Positive(t, was)
		s.rest(time.Minute)
		for range 10 {
			s.run(300*time.Millisecond, 3e6, 1e6, 0.1, 30*time.Millisecond, o.told, o.waiting)
			s.rest(time.Second)
		}
		require.GreaterOrEqual(t, s.rate, 0.95*was, name)
	}
}

// A bound far above what has arrived at most bounds too little: where as little as a hundredth is lost
// behind a short queue, it is what has arrived at most.
func TestRateAboveWhatArrived(t *testing.T) {
	const queue = 12 * time.Millisecond
	for name, o := range map[string]struct {
		lost  float64
		queue time.Duration
		long  time.Duration // what is sent in 200 ms at the rate of best is the least that counts
		told  int
		given func(l *Line)
		cut   bool
	}{
		"a hundredth is lost":        {0.01, queue, 300 * time.Millisecond, 2, nil, true},
		"an interval has judged":     {0.01, queue, 500 * time.Millisecond, 2, nil, true},
		"there is no queue":          {0.01, 0, 300 * time.Millisecond, 2, nil, false},
		"hardly anything is lost":    {0.004, queue, 900 * time.Millisecond, 2, nil, false},
		"a few packets are":          {0.008, queue, 300 * time.Millisecond, 2, nil, false},
		"it was over soon":           {0.03, queue, 190 * time.Millisecond, 2, nil, false},
		"nothing is told of it":      {0.01, queue, 300 * time.Millisecond, 0, nil, false},
		"losses were by chance":      {0.01, queue, 300 * time.Millisecond, 2, func(l *Line) { l.stretches.chance = time.Hour }, false},
		"it is hardly above":         {0.01, queue, 300 * time.Millisecond, 2, func(l *Line) { l.rate = 8.9e6 }, false},
		"more connections are tried": {0.01, queue, 300 * time.Millisecond, 2, func(l *Line) { l.tried = time.Second }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var s script
			s.l.rate, s.l.stretches.best = 12e6, 8.1e6
			if o.given != nil {
				o.given(&s.l)
			}
			was := s.l.rate
			s.run(o.long, 4e6, 4e6, o.lost, o.queue, o.told, true)
			s.rest(time.Second)
			s.run(10*time.Millisecond, 0, 0, 0, 0, o.told, false)
			if o.cut {
				require.InDelta(t, 8e6, s.rate, 1e5)
				require.Equal(t, o.long < interval, s.l.stretches.set, "an interval found the bound otherwise")
			} else {
				require.GreaterOrEqual(t, s.rate, was)
			}
		})
	}
}

// Losses by chance are still found as such where what arrives follows a bound that is a little above
// it: it does not sink with what has arrived at most.
func TestRateDoesNotSink(t *testing.T) {
	var s script
	s.rate = 6.06e6
	s.l.rate, s.l.stretches.best, s.l.stretches.set = s.rate, 6e6, true
	for range 2 * mostTries {
		each := s.rate / 2
		if each == 0 {
			each = 3e6
		}
		s.run(300*time.Millisecond, 0.99*each, 0.97*each, 0.02, 25*time.Millisecond, 2, true)
		s.rest(time.Second)
	}
	require.Zero(t, s.rate)
	require.Positive(t, s.l.stretches.chance)
}

// A bound grows over ways that lose by chance, and stays while little is sent.
func TestRateOverWaysThatLose(t *testing.T) {
	for _, loss := range []float64{0.006, 0.012} {
		bounded := func(rate float64) *fluid {
			f := newFluid(1, 400, 100*time.Millisecond, crew(3, 8, 40)...)
			for _, w := range f.flows {
				w.loss, w.window = loss, 30*segment
			}
			f.up.rate, f.up.stretches.best, f.bound = rate, rate, rate/1000
			return f
		}
		f := bounded(2e6)
		f.run(10 * time.Second)
		require.Greater(t, f.up.rate, 5e6, loss)

		f = bounded(16e6)
		for _, w := range f.flows[4:] {
			w.idle = true
		}
		f.run(time.Minute)
		require.Greater(t, f.up.rate, 14e6, loss)
	}
}

// Where a bound does not help, losses are by chance, and nothing is bounded for a while.
func TestStretchesThatLoseByChance(t *testing.T) {
	var s script
	bounded := 0
	for range 40 {
		s.run(300*time.Millisecond, 3e6, 3e6, 0.03, 30*time.Millisecond, 2, true)
		s.rest(time.Second)
		if s.rate > 0 {
			bounded++
		}
	}
	require.NotZero(t, bounded)
	require.LessOrEqual(t, bounded, 2*mostTries)
	require.Zero(t, s.rate)
}

// A bound that was found while much less arrived than the line carries is left soon, without a
// queue, and a queue that stands meanwhile has to be seen twice.
func TestRateFarBelowWhatArrived(t *testing.T) {
	bounded := func() (s script) {
		for range 4 {
			s.run(300*time.Millisecond, 3e6, 3e6, 0, 5*time.Millisecond, 2, false)
			s.rest(time.Second)
		}
		s.run(800*time.Millisecond, 0.5e6, 0.5e6, 0, 60*time.Millisecond, 2, true)
		require.Zero(t, s.rate, "for a moment")
		s.run(800*time.Millisecond, 0.5e6, 0.5e6, 0, 60*time.Millisecond, 2, true)
		require.InDelta(t, 1e6, s.rate, 0.7e6)
		for range 100 {
			if s.l.out == 0 && s.l.stretches.leapt {
				break
			}
			s.run(10*time.Millisecond, s.rate/2, s.rate/2, 0, 0, 2, true)
		}
		require.True(t, s.l.stretches.leapt)
		return s
	}
	s := bounded()
	s.run(1500*time.Millisecond, s.rate/2, s.rate/2, 0, 0, 2, true)
	require.Greater(t, s.rate, 2.5e6)

	s = bounded()
	s.run(450*time.Millisecond, s.rate/2, 0.5e6, 0, 30*time.Millisecond, 2, true)
	require.Less(t, s.l.stretches.best, 1.5e6, "it carries no more, after all")
}
