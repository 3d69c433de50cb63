package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bench feeds an uplink samples by hand.
type bench struct {
	u     *Uplink
	now   time.Duration
	all   []Sample
	rates map[uint64]float64
	each  map[uint64]func(*Sample) // what 5 ms do
}

func newBench(rate float64, pairs ...int) *bench {
	b := &bench{u: NewUplink(), rates: map[uint64]float64{}, each: map[uint64]func(*Sample){}}
	b.u.Seed(rate / 0.93)
	id := uint64(0)
	for p, n := range pairs {
		for range n {
			id++
			b.all = append(b.all, Sample{Conn: id, Pair: uint64(p + 1), RTT: 30 * time.Millisecond, Segment: segment, Waiting: true})
		}
	}
	return b
}

func (b *bench) run(d time.Duration) {
	for end := b.now + d; b.now < end; b.now += 5 * time.Millisecond {
		for i := range b.all {
			s := &b.all[i]
			if f := b.each[s.Conn]; f != nil {
				f(s)
			} else {
				s.Arrived += uint64(b.rates[s.Conn] / 200)
			}
			s.Sent = s.Arrived
		}
		for _, r := range b.u.Step(b.now, b.all) {
			b.rates[r.Conn] = r.BytesPerSecond
		}
	}
}

func (b *bench) sum() (sum float64) {
	for _, r := range b.rates {
		sum += r
	}
	return sum
}

// Pairs get alike, and the connections of a pair alike; all together the rate.
func TestParts(t *testing.T) {
	b := newBench(12e6, 1, 3)
	b.run(5 * time.Millisecond)
	require.InDelta(t, 6e6, b.rates[1], 1)
	require.InDelta(t, 2e6, b.rates[3], 1)
	require.InDelta(t, 12e6, b.sum(), 1)

	// A connection more, at once; and one that has no data any more gives its part back.
	b.all = append(b.all, Sample{Conn: 9, Pair: 3, RTT: 30 * time.Millisecond, Segment: segment, Waiting: true})
	b.run(5 * time.Millisecond)
	require.InDelta(t, 4e6, b.rates[9], 1)
	require.InDelta(t, 4e6, b.rates[1], 1)
	b.all = b.all[:4]
	b.run(time.Second)
	require.Zero(t, b.u.Cap(1))
	require.InDelta(t, b.u.Rate(), b.rates[1]+b.rates[2]+b.rates[3]+b.rates[4], 0.05*b.u.Rate())
}

// What a connection does not use is the others', and it gets it back when it can.
func TestUnusedParts(t *testing.T) {
	b := newBench(12e6, 4)
	b.each[1] = func(s *Sample) { s.Arrived += 100_000 / 200 }
	b.run(500 * time.Millisecond)
	require.Less(t, b.rates[1], 1e6)
	require.GreaterOrEqual(t, b.rates[1], 100_000.0)
	require.Greater(t, b.rates[2], 3.5e6)
	require.LessOrEqual(t, b.sum(), 1.01*b.u.Rate())
	delete(b.each, 1)
	b.run(2 * time.Second)
	require.InDelta(t, b.u.Rate()/4, b.rates[1], 0.1*b.u.Rate()/4)
}

// Most connections are slow: each has a segment in ten milliseconds, or its equal part.
func TestSmallestPart(t *testing.T) {
	b := newBench(12e6, 8)
	for id := uint64(2); id <= 8; id++ {
		b.each[id] = func(*Sample) {}
	}
	b.run(500 * time.Millisecond)
	for id := uint64(2); id <= 8; id++ {
		require.GreaterOrEqual(t, b.rates[id], 0.99*segment*100)
	}
	b = newBench(100_000, 8)
	b.run(5 * time.Millisecond)
	require.InDelta(t, 100_000, b.sum(), 1)
}

// Where there was not enough to send nothing changes.
func TestNotEnoughToSend(t *testing.T) {
	b := newBench(12e6, 2)
	b.run(5 * time.Millisecond)
	for id := range uint64(2) {
		b.each[id+1] = func(s *Sample) {
			s.Waiting = false
			s.Arrived += 1_000
			s.RTT = 80 * time.Millisecond
		}
	}
	b.run(2 * time.Second)
	require.InDelta(t, 12e6, b.u.Rate(), 1)
}

// One pair of three has a queue: it alone is bounded, and the others keep theirs.
func TestOnePairIsCapped(t *testing.T) {
	b := newBench(12e6, 1, 1, 1)
	queue := 0.0
	b.each[1] = func(s *Sample) { // a way of 1 MB/s with a queue of its own
		queue = max(0, queue+b.rates[1]/200-1e6/200)
		s.Arrived += uint64(min(1e6/200, b.rates[1]/200))
		s.RTT = 30*time.Millisecond + time.Duration(queue/1e6*float64(time.Second))
		queue = min(queue, 100_000)
	}
	b.run(5 * time.Second)
	require.Greater(t, b.u.Cap(1), 0.7e6)
	require.Less(t, b.u.Cap(1), 1.3e6)
	require.Zero(t, b.u.Cap(2))
	require.Greater(t, b.u.Rate(), 11e6)
	require.Greater(t, b.rates[2], 1.5*b.rates[1])

	// Its way is free again.
	delete(b.each, 1)
	b.all[0].RTT = 30 * time.Millisecond
	b.run(10 * time.Second)
	require.Greater(t, b.rates[1], 3e6)
}

// A seed is used from the first byte, and only where nothing is known.
func TestSeed(t *testing.T) {
	u := NewUplink()
	u.Seed(0)
	require.Zero(t, u.Rate())
	u.Seed(10e6)
	require.InDelta(t, 9.3e6, u.Rate(), 1)
	u.Seed(20e6)
	require.InDelta(t, 9.3e6, u.Rate(), 1)
	require.Zero(t, u.Base(1))
}

// After a long rest the way may be another one: the rate rises as at the beginning.
func TestTrustAfterRest(t *testing.T) {
	for pause, known := range map[time.Duration]bool{time.Minute: true, 11 * time.Minute: false} {
		f := ways[0].fluid(1)
		f.run(5 * time.Second)
		require.Positive(t, f.up.whole.wall)
		rate := f.up.Rate()
		f.up.Step(5*time.Second+pause, []Sample{{Conn: 1, Pair: 1, RTT: 30 * time.Millisecond}})
		require.Equal(t, known, f.up.whole.wall > 0, "%v", pause)
		require.InDelta(t, rate, f.up.Rate(), 1)
	}
}

// A step allocates nothing once its tables are large enough.
func TestStepDoesNotAllocate(t *testing.T) {
	b := newBench(12e6, 8, 8, 8)
	b.run(time.Second)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		b.now += 5 * time.Millisecond
		for i := range b.all {
			b.all[i].Arrived += 2000
		}
		b.u.Step(b.now, b.all)
	}))
}

// Peers come and go, and the tables do not grow for ever.
func TestPairsAreForgotten(t *testing.T) {
	u := NewUplink()
	for i := range uint64(10_000) {
		u.Step(time.Duration(i)*time.Second, []Sample{{Conn: i, Pair: i, RTT: 30 * time.Millisecond}})
	}
	require.LessOrEqual(t, len(u.pairs), maxPairs)
	require.LessOrEqual(t, len(u.conns), 2)
}

// Whatever samples say, rates are numbers.
func TestAnySamples(t *testing.T) {
	f := ways[0].fluid(1)
	u := NewUplink()
	now := time.Duration(0)
	for range 20_000 {
		now += time.Duration(f.rng.IntN(50)) * time.Millisecond
		var all []Sample
		for range f.rng.IntN(5) {
			all = append(all, Sample{
				Conn: f.rng.Uint64N(6), Pair: f.rng.Uint64N(3), RTT: time.Duration(f.rng.Int64N(int64(time.Second))) - 10*time.Millisecond,
				Arrived: f.rng.Uint64(), Sent: f.rng.Uint64(), Resent: f.rng.Uint64(), Segment: f.rng.IntN(9000),
				Waiting: f.rng.IntN(3) > 0, Timeout: f.rng.IntN(10) == 0,
			})
		}
		for _, r := range u.Step(now, all) {
			require.GreaterOrEqual(t, r.BytesPerSecond, 0.0)
			require.Less(t, r.BytesPerSecond, 1e30)
		}
	}
}
