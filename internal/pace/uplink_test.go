package pace

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// way is a line of the model.
type way struct {
	mbit   float64
	base   int // ms
	buffer time.Duration
	conns  int
	loss   float64
	acks   float64 // acknowledgements that are lost
	lag    int     // ms by which samples come late
}

func (c way) String() string {
	return fmt.Sprintf("%v Mbit/s, %d ms, buffer %v, %d connections, loss %v, acks %v, late %d ms", c.mbit, c.base, c.buffer, c.conns, c.loss, c.acks, c.lag)
}

func (c way) fluid(seed uint64) *fluid {
	var flows []*flow
	for i := range c.conns {
		w := newFlow(uint64(i+1), 1, c.base)
		w.loss, w.ackLoss = c.loss, c.acks
		flows = append(flows, w)
	}
	f := newFluid(seed, c.mbit, c.buffer, flows...)
	f.lag = c.lag
	return f
}

// settles is two seconds, and ten round trips for the windows to open.
func (c way) settles() time.Duration {
	return 2*time.Second + 10*time.Duration(c.base)*time.Millisecond
}

var ways = []way{
	{mbit: 100, base: 30, buffer: 50 * time.Millisecond, conns: 1},
	{mbit: 100, base: 30, buffer: 50 * time.Millisecond, conns: 4},
	{mbit: 100, base: 30, buffer: 50 * time.Millisecond, conns: 16},
	{mbit: 100, base: 30, buffer: 50 * time.Millisecond, conns: 4, acks: 0.3},
	{mbit: 100, base: 30, buffer: 50 * time.Millisecond, conns: 4, lag: 20},
	{mbit: 50, base: 100, buffer: 100 * time.Millisecond, conns: 4},
	{mbit: 50, base: 100, buffer: 100 * time.Millisecond, conns: 8, loss: 0.0001},
	{mbit: 50, base: 100, buffer: 100 * time.Millisecond, conns: 16, acks: 0.3, lag: 20},
	{mbit: 20, base: 40, buffer: time.Second, conns: 1},
	{mbit: 20, base: 40, buffer: time.Second, conns: 4},
	{mbit: 5, base: 40, buffer: 500 * time.Millisecond, conns: 2},
	{mbit: 1000, base: 10, buffer: 50 * time.Millisecond, conns: 4},
	{mbit: 400, base: 20, buffer: 30 * time.Millisecond, conns: 16},
}

// good says what is wrong with an outcome.
func good(o outcome) (wrong string) {
	switch {
	case o.part < 0.85 || o.part > 1.001:
		return fmt.Sprintf("%.2f of the rate", o.part)
	case o.long > 0.05:
		return fmt.Sprintf("a queue above two limits %.0f %% of the time", 100*o.long)
	}
	return ""
}

// What slow start leaves is settled in two seconds, and stays so.
func TestSettles(t *testing.T) {
	for _, c := range ways {
		for seed := range uint64(3) {
			f := c.fluid(seed)
			f.run(c.settles())
			for range 3 {
				o := f.run(4 * time.Second)
				assert.Empty(t, good(o), "%v: %+v", c, o)
			}
		}
	}
}

// The rate of the line changes: to a fifth, and five times.
func TestRateChanges(t *testing.T) {
	for _, c := range ways {
		for _, by := range []float64{0.2, 5} {
			if c.mbit*by < 2 || c.mbit*by > 1000 {
				continue
			}
			f := c.fluid(1)
			f.run(5 * time.Second)
			f.rate *= by
			f.run(500 * time.Millisecond)
			// What stands in the queue meanwhile has to leave, at half the rate.
			f.run(time.Second + c.settles() + 4*time.Duration(f.delay())*time.Millisecond)
			o := f.run(4 * time.Second)
			if by > 1 && f.up.Rate()/1000 > o.part*f.rate/theLaw.used {
				continue // the windows are what is too small now, and grow by cubic's law
			}
			assert.Empty(t, good(o), "%v, times %v: %+v", c, by, o)
		}
	}
}

// Others come, take a part of the line, and go: at no time is less left to us than
// half of what is fair, and a queue of ours does not stay.
func TestForeignTraffic(t *testing.T) {
	for _, c := range ways {
		for _, part := range []float64{0.3, 0.5, 0.6} {
			f := c.fluid(1)
			f.run(5 * time.Second)
			f.foreign = part * f.rate
			f.run(time.Second)
			for range 10 {
				o := f.run(time.Second)
				assert.GreaterOrEqual(t, o.part, (1-part)/2, "%v, %v foreign: %+v", c, part, o)
			}
			o := f.run(10 * time.Second)
			if part > 0.5 {
				continue
			}
			assert.GreaterOrEqual(t, o.part, 0.85*(1-part), "%v, %v foreign: %+v", c, part, o)
			assert.LessOrEqual(t, o.long, 0.4, "%v, %v foreign: %+v", c, part, o)
			f.foreign = 0
			f.run(time.Second + c.settles() + 4*time.Duration(f.delay())*time.Millisecond)
			o = f.run(4 * time.Second)
			assert.Empty(t, good(o), "%v, %v foreign: %+v", c, part, o)
		}
	}
}

// A neighbour that sends until the buffer is full keeps a queue that is not ours,
// and takes what we leave. Where the buffer is as long as it should be, a quarter of
// a fair part remains at least; when the neighbour has gone, all is ours again. (A
// neighbour that fills a buffer of a second leaves nobody much, paced or not.)
func TestGreedyNeighbour(t *testing.T) {
	for _, c := range ways {
		f := c.fluid(1)
		f.run(5 * time.Second)
		f.elastic = newFlow(1000, 1000, c.base)
		f.run(c.settles())
		o := f.run(30 * time.Second)
		if c.buffer <= 100*time.Millisecond {
			assert.GreaterOrEqual(t, o.part, 0.125, "%v: %+v", c, o)
		}
		f.elastic = nil
		f.run(c.settles() + theLaw.again)
		o = f.run(4 * time.Second)
		assert.Empty(t, good(o), "%v: %+v", c, o)
	}
}

// The way becomes longer without a queue: after a draining that changes nothing
// the longer one is the empty way. When it is short again, that counts at once.
func TestLongerWay(t *testing.T) {
	c := way{mbit: 100, base: 30, buffer: 100 * time.Millisecond, conns: 2}
	f := c.fluid(1)
	f.run(12 * time.Second)
	for _, w := range f.flows {
		w.base = 90
	}
	f.run(5 * time.Second)
	require.InDelta(t, 90, f.up.Base(1).Milliseconds(), 9)
	require.Empty(t, good(f.run(4*time.Second)))
	for _, w := range f.flows {
		w.base = 30
	}
	f.run(4 * time.Second)
	require.InDelta(t, 30, f.up.Base(1).Milliseconds(), 4)
	require.Empty(t, good(f.run(4*time.Second)))
}

// Random losses are not a queue: they never take the rate down.
func TestRandomLosses(t *testing.T) {
	for _, loss := range []float64{0.0001, 0.001, 0.003, 0.01} {
		c := way{mbit: 50, base: 80, buffer: 80 * time.Millisecond, conns: 16, loss: loss}
		f := c.fluid(1)
		f.run(6 * time.Second)
		require.Greater(t, f.up.Rate()/1000, 0.85*f.rate, "%v", c)
		paced := f.run(20 * time.Second)
		f = c.fluid(1)
		f.unpaced = true
		f.run(6 * time.Second)
		unpaced := f.run(20 * time.Second)
		require.Greater(t, paced.part, 0.9*unpaced.part, "%v: %+v, %+v", c, paced, unpaced)
	}
}

// Where no queue can be felt nothing is paced: on this host and in one room, and
// where no queue has been longer than the limit.
func TestNothingIsPacedWithoutAQueue(t *testing.T) {
	silent := func(c way, scale float64) {
		f := c.fluid(1)
		f.measured = func(s *Sample) { s.RTT = time.Duration(float64(s.RTT) * scale) }
		f.run(10 * time.Second)
		require.Zero(t, f.up.Rate(), "%v", c)
		require.Zero(t, f.up.Cap(1))
		for _, w := range f.flows {
			require.Zero(t, w.pace, "%v", c)
		}
	}
	// Round trips of 0.05 to 1.9 ms, with queues that are as many times longer.
	for _, base := range []float64{0.05, 0.5, 1, 1.9} {
		silent(way{mbit: 1000, base: 10, buffer: 500 * time.Millisecond, conns: 4}, base/10)
		silent(way{mbit: 1000, base: 10, buffer: 500 * time.Millisecond, conns: 1, lag: 50}, base/10)
	}
	// A far way with more room than there is to send.
	silent(way{mbit: 1000, base: 20, buffer: 7 * time.Millisecond, conns: 4}, 1)
	f := way{mbit: 1000, base: 20, buffer: 50 * time.Millisecond, conns: 4}.fluid(1)
	for _, w := range f.flows {
		w.share = f.rate / 10
	}
	f.run(10 * time.Second)
	require.Zero(t, f.up.Rate())
	require.True(t, Near(time.Millisecond))
	require.False(t, Near(2*time.Millisecond))
}
