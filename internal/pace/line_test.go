package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crew returns so many connections to each of some peers.
func crew(pairs, each, base int) (all []*flow) {
	for p := range pairs {
		for range each {
			all = append(all, newFlow(uint64(len(all)+1), uint64(p+1), base))
		}
	}
	return all
}

// Where a queue of one's own became deep it stays short from then on, and the line is used;
// without the bound it does not.
func TestLine(t *testing.T) {
	for name, o := range map[string]struct {
		mbit        float64
		buffer      time.Duration
		pairs, each int
		base        int
		part, long  float64 // of the rate arrives at least; of the time with a long queue at most
	}{
		"a home, to one peer":         {20, time.Second, 1, 8, 40, 0.93, 0.02},
		"a home, to three peers":      {20, time.Second, 3, 8, 40, 0.93, 0.02},
		"a slow home":                 {2, time.Second, 1, 8, 60, 0.9, 0.15},
		"a home with a deep buffer":   {10, 4 * time.Second, 3, 8, 30, 0.93, 0.15},
		"a data center far from here": {500, 300 * time.Millisecond, 1, 8, 150, 0.9, 0.02},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5) {
				bare := newFluid(seed, o.mbit, o.buffer, crew(o.pairs, o.each, o.base)...)
				bare.unbound = true
				bare.run(10 * time.Second)
				f := newFluid(seed, o.mbit, o.buffer, crew(o.pairs, o.each, o.base)...)
				f.lag = 10
				f.run(10*time.Second + 3*o.buffer) // the first queue, and its end
				was, is := bare.run(20*time.Second), f.run(20*time.Second)
				assert.Greater(t, is.part, o.part, "seed %d: of %.3f without", seed, was.part)
				t.Logf("seed %d: %.3f %.3f, queue %.0f, worst %.0f ms", seed, is.part, is.long, is.queue, is.worst)
				assert.Less(t, is.long, o.long, "seed %d", seed)
				assert.Greater(t, was.queue, 3*is.queue, "seed %d", seed)
				assert.Zero(t, is.lost, "seed %d", seed)
			}
		})
	}
}

// A way whose queues are short is not bounded below what it carries.
func TestShortQueues(t *testing.T) {
	f := newFluid(1, 100, 40*time.Millisecond, crew(3, 8, 30)...)
	f.run(2 * time.Second)
	for range 20 {
		require.Greater(t, f.run(time.Second).part, 0.9, f.bound)
	}
}

// More connections to several peers that are tried together raise the bound once.
func TestTryTogether(t *testing.T) {
	l := Line{rate: 1e6, last: time.Second}
	for range 7 {
		l.Try()
	}
	require.InDelta(t, 1.25e6, l.rate, 1)
	l.last += interval
	l.Try()
	require.InDelta(t, 1.25*1.25e6, l.rate, 1)
}

// A bound that is far above what has arrived at most is not raised for more connections: it holds nothing up.
func TestTryAboveWhatArrives(t *testing.T) {
	for _, l := range []Line{
		{rate: 4e6, last: time.Second, came: 1e6, stretches: findings{best: 2e6}},
		{rate: 4e6, last: time.Second, came: 2e6},
	} {
		l.Try()
		require.Equal(t, 4e6, l.rate)
		l.rate, l.last = 2.2e6, 2*time.Second
		l.Try()
		require.Equal(t, 2.5e6, l.rate)
	}
}

// A bound that was raised for more connections goes back when they brought nothing, but not below
// what arrives: those to another peer may have brought that.
func TestFallenTrial(t *testing.T) {
	for name, c := range map[string]struct{ came, is float64 }{
		"nothing more arrives":   {0.9e6, 1e6},
		"some of it does":        {1.1e6, 1.1e6},
		"more than it let go":    {2e6, 1.25e6},
		"nothing is known of it": {0, 1e6},
	} {
		t.Run(name, func(t *testing.T) {
			l := Line{rate: 1e6, last: time.Second, came: c.came}
			before := l.Try()
			l.Fell(before)
			require.InDelta(t, c.is, l.rate, 1)
			l.rate = 5e5
			l.Fell(before)
			require.InDelta(t, 5e5, l.rate, 1, "never up")
		})
	}
	var unbounded Line
	unbounded.Fell(unbounded.Try())
	require.Zero(t, unbounded.rate)
}

// A bound that has been raised since a trial began, since the line carries more, is not cut to what it
// was in old times. What is tried behind a trial that fell is tried with more.
func TestTrialsOfOld(t *testing.T) {
	l := Line{rate: 1e6, last: time.Second, came: 0.1e6, stretches: findings{best: 10e6}}
	before := l.Try()
	l.rate = 10e6
	l.Fell(before)
	require.InDelta(t, 6.4e6, l.rate, 1)
	l.Fell(l.Try())
	require.InDelta(t, 6.4e6, l.rate, 1)
	l.Try()
	require.InDelta(t, 8e6, l.rate, 1)
}

// Over a long way windows leave in flights, one in a round trip, which are queues of their own
// with nothing between them. What arrives in a moment with both is less than the line carries,
// and a flight that leaves is not more than what arrives of the one before: nothing is bounded.
func TestFlightsAreNoStandingQueue(t *testing.T) {
	const (
		line  = 2.5e6 // bytes per second
		ms    = time.Millisecond
		words = 20e3 // bytes per second that come all the time
	)
	for _, trip := range []time.Duration{250 * ms, 300 * ms, 600 * ms, 1500 * ms} {
		for _, flight := range []float64{150e3, 250e3, 350e3} {
			took := time.Duration(flight / line * float64(time.Second)) // through the line
			sent := func(at time.Duration) uint64 {
				return uint64(flight*(float64(at/trip)+min(1, float64(at%trip)/float64(took))) + words*at.Seconds())
			}
			arrived := func(at time.Duration) uint64 {
				return sent(max(0, at-trip/2))
			}
			var l Line
			for at := 10 * ms; at < 20*time.Second; at += 10 * ms {
				told := (at - trip/2) / (40 * ms) * (40 * ms)
				s := Shown{Base: trip, Waiting: true, Sent: sent(at), Arrived: arrived(told), Told: max(told, 0)}
				// What is acknowledged has waited behind all of its flight that left before.
				s.Queue = min(at%trip, took) * 9 / 10
				rate := l.Step(at, []Shown{s})
				require.True(t, rate == 0 || rate > 0.9*line, "%v, %.0f bytes: %.0f after %v", trip, flight, rate, at)
			}
		}
	}
}

// What is sent first behind a pause arrives a round trip later: until then it is not more than the
// line carries, though a little queue seems to be left.
func TestPauseOnALongWay(t *testing.T) {
	const line, trip, step = 2.5e6, 600 * time.Millisecond, 10 * time.Millisecond
	var l Line
	var rate float64
	var sent [2000]uint64
	at := 100 * step
	run := func(d time.Duration, speed float64, queue time.Duration) {
		for end := at + d; at < end; at += step {
			k := int(at / step)
			sent[k] = sent[k-1] + uint64(speed*step.Seconds())
			told := (at - trip/2) / (40 * time.Millisecond) * (40 * time.Millisecond)
			rate = l.Step(at, []Shown{{
				Base: trip, Queue: queue, Waiting: true, Sent: sent[k], Arrived: sent[(told-trip/2)/step], Told: told,
			}})
		}
	}
	run(2500*time.Millisecond, line, Deep)
	run(500*time.Millisecond, line, standing*3/4) // it is let out
	require.InDelta(t, line, rate, 0.05*line)
	for range 3 {
		run(2*time.Second, 1000, standing*3/4)
		run(2*time.Second, line, standing*3/4)
		require.InDelta(t, line, rate, 0.1*line)
	}
}

// A line that has become slower, or faster, is found.
func TestLineThatChanges(t *testing.T) {
	for seed := range uint64(5) {
		f := newFluid(seed, 20, time.Second, crew(1, 8, 40)...)
		f.run(10 * time.Second)
		f.rate, f.buffer = f.rate/4, f.buffer/4
		f.run(20 * time.Second)
		o := f.run(10 * time.Second)
		assert.Greater(t, o.part, 0.9, "slower, seed %d", seed)
		assert.Less(t, o.long, 0.1, "slower, seed %d", seed)
		f.rate, f.buffer = f.rate*8, f.buffer*8
		f.run(20 * time.Second)
		o = f.run(10 * time.Second)
		assert.Greater(t, o.part, 0.85, "faster, seed %d", seed)
		assert.Less(t, o.long, 0.1, "faster, seed %d", seed)
	}
}

// Beside somebody who fills the queue for ever we get about what we would without a bound,
// beside one who does not fill it what is left, and when it is gone all of it.
func TestLineWithOthers(t *testing.T) {
	for seed := range uint64(5) {
		f := newFluid(seed, 20, time.Second, crew(1, 8, 40)...)
		f.foreign = f.rate / 2
		f.run(20 * time.Second)
		o := f.run(10 * time.Second)
		assert.Greater(t, o.part, 0.42, "half of it is taken, seed %d", seed)
		assert.Less(t, o.long, 0.1, "seed %d", seed)
		share := func(unbound bool) float64 {
			f := newFluid(seed, 20, time.Second, crew(1, 8, 40)...)
			f.unbound = unbound
			f.elastic = newFlow(100, 100, 40)
			f.run(20 * time.Second)
			return f.run(40 * time.Second).part
		}
		assert.Greater(t, share(false), 0.6*share(true), "seed %d", seed)
		f.foreign = 0
		f.run(20 * time.Second)
		o = f.run(10 * time.Second)
		assert.Greater(t, o.part, 0.9, "alone again, seed %d", seed)
	}
}

// What is not sent teaches nothing, and neither does silence.
func TestLineHearsNothing(t *testing.T) {
	shown := func(l *Line, from, ticks int, s func(k int) Shown) (rate float64) {
		for k := from; k < from+ticks; k++ {
			rate = l.Step(time.Duration(k)*10*time.Millisecond, []Shown{s(k)})
		}
		return rate
	}
	full := func(k int) Shown { // a megabyte a second arrives, and two are sent
		at := time.Duration(k) * 10 * time.Millisecond
		return Shown{Peer: 1, Queue: 200 * time.Millisecond, Sent: uint64(k) * 20e3, Arrived: uint64(k) * 10e3, Told: at, Waiting: true}
	}
	var silent, idle, l Line
	require.Zero(t, shown(&silent, 1, 1000, func(k int) Shown {
		s := full(k)
		s.Told, s.Arrived = 0, 0
		return s
	}), "a peer that tells nothing, such as the original library")
	require.Zero(t, shown(&idle, 1, 1000, func(k int) Shown {
		s := full(k)
		s.Waiting = false
		return s
	}), "what is sent is all that there is")
	require.InDelta(t, 1e6, shown(&l, 1, 100, full), 0.65e6, "a queue is let out")
	least := shown(&l, 100, 10000, func(k int) Shown { // next to nothing arrives any more
		s := full(k)
		s.Arrived = uint64(k)
		return s
	})
	require.GreaterOrEqual(t, least, float64(leastRate), "it never becomes a standstill")
}

// One peer that tells nothing holds nobody down: what all are sent rises while there is no queue,
// and where one stands nothing is bounded. A word from before a rest says nothing of now.
func TestLineBesideSilence(t *testing.T) {
	at := func(k int) time.Duration { return time.Duration(k) * 10 * time.Millisecond }
	told := func(k int, queue time.Duration) Shown {
		return Shown{Peer: 1, Queue: queue, Sent: uint64(k) * 20e3, Arrived: uint64(k) * 10e3, Told: at(k), Waiting: true}
	}
	silent := func(k int, queue time.Duration) Shown {
		return Shown{Peer: 2, Queue: queue, Sent: uint64(k) * 20e3, Waiting: true}
	}
	var l Line
	var rate float64
	k := 1
	run := func(ticks int, peers func(k int) []Shown) {
		for range ticks {
			rate = l.Step(at(k), peers(k))
			k++
		}
	}
	run(100, func(k int) []Shown { return []Shown{told(k, 200*time.Millisecond)} })
	run(50, func(k int) []Shown { return []Shown{told(k, 0)} })
	bound := rate
	require.Positive(t, bound)
	run(200, func(k int) []Shown { return []Shown{told(k, 0), silent(k, 0)} })
	require.Greater(t, rate, 1.1*bound)
	run(600, func(k int) []Shown { return []Shown{told(k, 200*time.Millisecond), silent(k, 200*time.Millisecond)} })
	require.Zero(t, rate)

	run(1, func(k int) []Shown { return []Shown{{Peer: 1, Queue: -1, Waiting: true}} })
	require.Zero(t, rate, "nothing is known")
	old := at(k)
	k += 100_000
	run(100, func(k int) []Shown {
		s := told(k, 200*time.Millisecond)
		if k < 100_300 { // the last word is from before the rest
			s.Told, s.Arrived = old, 1
		}
		return []Shown{s}
	})
	require.True(t, rate == 0 || rate > 0.3e6, "%v", rate)
}
