package pace

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// path is what connections to a peer are given by a way.
type path struct {
	rate  float64 // bytes per second of all of them
	each  float64 // and of each; 0: no limit
	loss  float64 // of segments
	rtt   time.Duration
	share float64 // of the time the application has something to send; 0: always
	most  int     // the peer takes no more; 0: it does
	stood bool    // what bounds each is a queue
}

// run lets c use the way for a time and returns what the last second carried.
func (p path) run(c *Count, now *time.Duration, d time.Duration) (rate float64) {
	const tick = 10 * time.Millisecond
	var moved float64
	last := *now + d - time.Second
	owed := 0.0
	for end := *now + d; *now < end; *now += tick {
		if p.most > 0 && c.N() > p.most {
			c.Refused(*now, p.most)
		}
		n := float64(c.N())
		each := p.rate
		if p.loss > 0 {
			window := max(1.05*math.Pow(p.rtt.Seconds()/p.loss, 0.75), 1.22/math.Sqrt(p.loss))
			each = window * segment / p.rtt.Seconds()
		}
		if p.each > 0 {
			each = min(each, p.each)
		}
		got := min(p.rate, n*each)
		if p.share > 0 {
			got *= p.share
		}
		s := Span{
			RTT: p.rtt, Base: p.rtt, Arrived: uint64(got * tick.Seconds()), Sent: uint64(got * tick.Seconds()),
			Segment: segment, Used: c.N(), Waiting: p.share == 0,
		}
		if got > 0.95*p.rate {
			s.RTT += 30 * time.Millisecond // what is sent beyond it stands in a queue
		}
		if p.stood {
			s.RTT += 30 * time.Millisecond
		}
		owed += got * tick.Seconds() * p.loss
		if owed >= segment {
			s.Resent, owed = segment, owed-segment
		}
		if *now >= last {
			moved += got * tick.Seconds()
		}
		c.Step(*now, s)
	}
	return moved
}

const mbit = 1e6 / 8

// Where losses or limits of each flow are what bounds the rate, the number grows
// until the way is full; elsewhere it stays.
func TestCount(t *testing.T) {
	for name, tc := range map[string]struct {
		path
		least, most int
		part        float64 // of the rate
	}{
		"clean":          {path{rate: 100 * mbit, rtt: 30 * time.Millisecond}, FirstCount, FirstCount * 3 / 2, 0.99},
		"loss 0.01 %":    {path{rate: 50 * mbit, rtt: 100 * time.Millisecond, loss: 0.0001}, FirstCount, FirstCount * 3 / 2, 0.95},
		"loss 0.3 %":     {path{rate: 50 * mbit, rtt: 80 * time.Millisecond, loss: 0.003}, 12, 32, 0.95},
		"loss 3 %":       {path{rate: 50 * mbit, rtt: 80 * time.Millisecond, loss: 0.03}, 32, 32, 0.5},
		"loss 10 %":      {path{rate: 50 * mbit, rtt: 80 * time.Millisecond, loss: 0.1}, 12, 32, 0.12},
		"limit per flow": {path{rate: 200 * mbit, rtt: 150 * time.Millisecond, each: 10 * mbit}, 20, 32, 0.95},
		"shaped":         {path{rate: 200 * mbit, rtt: 150 * time.Millisecond, each: 10 * mbit, stood: true}, 20, 32, 0.95},
		"little to send": {path{rate: 100 * mbit, rtt: 30 * time.Millisecond, share: 0.3}, FirstCount, FirstCount, 0.29},
		"refused":        {path{rate: 200 * mbit, rtt: 150 * time.Millisecond, each: 10 * mbit, most: 7}, 7, 7, 0.3},
	} {
		c, now := NewCount(FirstCount), time.Second
		rate := tc.run(c, &now, 40*time.Second)
		assert.GreaterOrEqual(t, c.N(), tc.least, name)
		assert.LessOrEqual(t, c.N(), tc.most, name)
		assert.GreaterOrEqual(t, rate, tc.part*tc.rate, name)
	}
}

// A short way gets few connections: its windows open soon, and a thin one has no room for many.
func TestFirst(t *testing.T) {
	for rtt, want := range map[time.Duration]int{
		0: 2, 2 * time.Millisecond: 2, 8 * time.Millisecond: 2, 13 * time.Millisecond: 4, 16 * time.Millisecond: 4,
		25 * time.Millisecond: 7, 30 * time.Millisecond: FirstCount, 100 * time.Millisecond: FirstCount, time.Hour: FirstCount,
	} {
		assert.Equal(t, want, First(rtt), rtt)
	}
}

// A way of a few segments in a round trip has room for few connections: the others go before
// their timeouts have doubled to what is taken for a dead peer, and are not tried again soon.
// Losses alone do not make a crowd, nor does a lack of data.
func TestACrowdGoes(t *testing.T) {
	const rtt, tick = 120 * time.Millisecond, 10 * time.Millisecond
	thin := Span{RTT: rtt, Base: rtt - 20*time.Millisecond, Arrived: 7 * segment / 12, Sent: segment, Resent: segment / 2, Segment: segment, Waiting: true}
	now := time.Second
	run := func(c *Count, s Span, d time.Duration) {
		for end := now + d; now < end; now += tick {
			s.Used = c.N()
			c.Step(now, s)
		}
	}
	c := NewCount(FirstCount)
	run(c, thin, 4*rtt)
	require.Equal(t, FirstCount, c.N(), "a way that was gone for a moment looks like this")
	run(c, thin, 4*rtt)
	require.Equal(t, fewest, c.N())
	run(c, thin, 10*time.Minute)
	require.Equal(t, fewest, c.N(), "each carries three")
	c, few := NewCount(FirstCount), thin // all that an operation of this size needs
	few.Used = 5
	for range 100 {
		c.Step(now, few)
		now += tick
	}
	require.Equal(t, fewest, c.N())
	c, few.Arrived = NewCount(FirstCount), 2*thin.Arrived
	for range 100 {
		c.Step(now, few)
		now += tick
	}
	require.Equal(t, FirstCount, c.N(), "those carry enough")

	c = NewCount(FirstCount) // the way is gone for seconds, and then each begins with a segment
	gone, back := thin, thin
	gone.Arrived = 0
	for range 500 {
		gone.Used = c.N()
		c.Step(now, gone)
		now += tick
	}
	run(c, back, 4*rtt)
	back.Arrived *= 8
	run(c, back, 20*rtt)
	require.GreaterOrEqual(t, c.N(), FirstCount)
	for name, change := range map[string]func(*Span){
		"no losses":     func(s *Span) { s.Resent = 0 },
		"nothing waits": func(s *Span) { s.Waiting = false },
		"enough each":   func(s *Span) { s.Arrived *= 3 },
	} {
		s := thin
		change(&s)
		c := NewCount(FirstCount)
		run(c, s, 8*rtt)
		require.Equal(t, FirstCount, c.N(), name)
	}
	c = NewCount(1)
	run(c, thin, time.Minute)
	require.Equal(t, 1, c.N())
}

// Connections that came after the first are what it begins with.
func TestCountFollows(t *testing.T) {
	c, now := NewCount(1), time.Second
	c.Follow(FirstCount)
	path{rate: 100 * mbit, rtt: 30 * time.Millisecond, share: 0.3}.run(c, &now, 10*time.Second)
	require.Equal(t, FirstCount, c.N())
}

// Connections that bring nothing go again, and are tried less and less often.
func TestTrialsBecomeRare(t *testing.T) {
	// Something bounds the sum without a queue: a policer.
	p := path{rate: 50 * mbit, rtt: 50 * time.Millisecond}
	c, now := NewCount(FirstCount), time.Second
	trials, was := 0, c.N()
	for range 3600 {
		for range 10 {
			n := c.N()
			c.Step(now, Span{
				RTT: p.rtt, Base: p.rtt, Arrived: uint64(p.rate / 10), Sent: uint64(p.rate / 10), Segment: segment, Used: n, Waiting: true,
			})
			now += 100 * time.Millisecond
		}
		if n := c.N(); n > was {
			trials++
		}
		was = c.N()
	}
	require.Positive(t, trials)
	require.LessOrEqual(t, trials, 8, "in an hour")
	require.Equal(t, FirstCount, c.N())
}

// Operations too short to be judged alone are judged
// together, whatever lies between them.
func TestCountRests(t *testing.T) {
	p := path{rate: 50 * mbit, rtt: 80 * time.Millisecond, loss: 0.003}
	for _, rest := range []time.Duration{0, time.Minute} {
		c, now := NewCount(FirstCount), time.Second
		for range 60 {
			p.run(c, &now, 400*time.Millisecond)
			if rest > 0 {
				for range 3 {
					c.Rest()
				}
				now += rest
			}
		}
		assert.Greater(t, c.N(), 12, "%v", rest)
	}
}

// operate has c use the way in operations that send for so long each, wait for others at their end, and are
// at rest in between. What arrives does so a round trip later, and by half in the first one.
func (p path) operate(c *Count, now *time.Duration, sends time.Duration, times int) {
	const tick, waits, rest = 10 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond
	for range times {
		for began := *now; *now < began+sends+p.rtt+waits; *now += tick {
			s := Span{RTT: p.rtt, Base: p.rtt, Segment: segment, Used: c.N(), Bounded: true, Waiting: *now < began+sends}
			if arrives := *now - p.rtt - began; arrives >= 0 && arrives < sends {
				s.Arrived = uint64(min(p.rate, float64(c.N())*p.each) * tick.Seconds())
				if arrives < p.rtt {
					s.Arrived /= 2
				}
			}
			s.Sent = s.Arrived
			c.Step(*now, s)
		}
		c.Rest()
		*now += rest
	}
}

// More connections that bring something stay, wherever operations begin and end amid the spans in which
// they show it.
func TestTrialsSpanOperations(t *testing.T) {
	p := path{rate: 200 * mbit, rtt: 150 * time.Millisecond, each: 10 * mbit}
	for sends := 2 * time.Second; sends < 8*time.Second; sends += 50 * time.Millisecond {
		c, now := NewCount(FirstCount), time.Second
		p.operate(c, &now, sends, int(40*time.Second/sends))
		assert.GreaterOrEqual(t, c.N(), 18, sends)
		assert.LessOrEqual(t, c.N(), 22, sends)
	}
}

// New connections may lose much of what they send at first. That they bring nothing has to be seen twice.
func TestTrialsAreJudgedTwice(t *testing.T) {
	const rtt, tick = 150 * time.Millisecond, 10 * time.Millisecond
	for spoilt, want := range map[int]int{1: 18, 2: FirstCount} { // spans behind the one in which windows open
		c, now := NewCount(FirstCount), time.Second
		run := func(rate float64, over func() bool) {
			for ; !over(); now += tick {
				got := uint64(rate * tick.Seconds())
				c.Step(now, Span{RTT: rtt, Base: rtt, Segment: segment, Used: c.N(), Waiting: true, Arrived: got, Sent: got})
			}
		}
		run(80*mbit, c.Trying)
		require.Equal(t, 12, c.N())
		begun := now
		run(80*mbit, func() bool { return now-begun > time.Duration(1+spoilt)*(judgedTrips*rtt+tick) })
		begun = now
		run(120*mbit, func() bool { return now-begun > 2*time.Second })
		require.Equal(t, want, c.N(), "%d spans", spoilt)
	}
}

// Where a way gives now more and now less, a trial that brings nothing succeeds by chance now and then. A
// single span above the others is not enough for it.
func TestTrialsInNoise(t *testing.T) {
	const rtt, tick, runs = 150 * time.Millisecond, 10 * time.Millisecond, 200
	many := 0
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, now, rate := NewCount(FirstCount), time.Second, 0.0
		for i := 0; now < 5*time.Minute; now, i = now+tick, i+1 {
			if i%150 == 0 {
				rate = 100 * mbit * (1 + 0.1*r.NormFloat64())
			}
			got := uint64(rate * tick.Seconds())
			c.Step(now, Span{RTT: rtt, Base: rtt, Segment: segment, Used: c.N(), Waiting: r.IntN(10) > 0, Arrived: got, Sent: got})
		}
		if c.N() >= 18 {
			many++
		}
	}
	require.LessOrEqual(t, many, runs/2)
}

// More connections are not judged by what arrives while the application waits for others: along a ring a
// member passes on what comes, and the one before it may still be trying how many it needs.
func TestTrialsWaitForOthers(t *testing.T) {
	const tick = 10 * time.Millisecond
	p := path{rate: 200 * mbit, rtt: 150 * time.Millisecond, each: 10 * mbit}
	c, now := NewCount(FirstCount), time.Second
	run := func(comes float64, d time.Duration) { // bytes per second
		for i, end := 0, now+d; now < end; now, i = now+tick, i+1 {
			carries := min(p.rate, float64(c.N())*p.each)
			got := uint64(min(carries, comes) * tick.Seconds())
			c.Step(now, Span{RTT: p.rtt, Base: p.rtt, Segment: segment, Used: c.N(), Bounded: true, Waiting: comes >= carries || i%3 > 0, Arrived: got, Sent: got})
		}
	}
	for c.N() < 18 {
		run(p.rate, 100*time.Millisecond)
	}
	run(100*mbit, 4*time.Second)
	require.Equal(t, 18, c.N())
	require.True(t, c.Trying())
	run(p.rate, 2*time.Second)
	require.Equal(t, 27, c.N(), "it stays, and more are tried")

	run(100*mbit, time.Minute)
	require.Equal(t, 18, c.N(), "not for ever")
}

// Where peers share a line, more connections to one of them take from the others, whether they are tried together or
// one after the other. Only limits of single flows make more connections to each worth while.
func TestMoreForOneTakesFromOthers(t *testing.T) {
	const tick, rtt, line = 10 * time.Millisecond, 150 * time.Millisecond, 200 * mbit
	run := func(peers, n int, apart time.Duration, limit float64) (counts []*Count) {
		for range peers {
			counts = append(counts, NewCount(n))
		}
		got := make([]uint64, peers)
		for at := time.Duration(0); at < 5*time.Minute; at += tick {
			flows, trials, all := 0, 0, uint64(0)
			for _, k := range counts {
				flows += k.N()
				if k.Trying() {
					trials++
				}
			}
			for i, k := range counts {
				got[i] = uint64(min(limit, line/float64(flows)) * float64(k.N()) * tick.Seconds())
				all += got[i]
			}
			for i, k := range counts {
				if at < time.Duration(i)*apart {
					continue
				}
				k.Step(at, Span{
					RTT: rtt, Base: rtt, Segment: segment, Used: k.N(), Waiting: true, Arrived: got[i], Sent: got[i],
					Others: Others{Arrived: all - got[i], Peers: peers - 1, Who: uint64(i + 1), Waiting: true, Trying: trials > 1 || trials == 1 && !k.Trying()},
				})
			}
		}
		return counts
	}
	for _, peers := range []int{2, 3, 12} {
		for _, apart := range []time.Duration{0, 750 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second, 6 * time.Second} {
			n := max(FirstCount*3/peers, 2)
			for _, k := range run(peers, n, apart, line) {
				assert.Equal(t, n, k.N(), "%d peers, %v apart, the line is full", peers, apart)
			}
			least := line / float64(peers*MostCount)
			for _, k := range run(peers, n, apart, least) {
				assert.Equal(t, MostCount, k.N(), "%d peers, %v apart, each flow is limited", peers, apart)
			}
		}
	}
}

func TestTaken(t *testing.T) {
	before := rates{all: 90, swing: 100, others: 200, peers: 2, who: 7}
	for name, c := range map[string]struct {
		now    rates
		before rates
		want   float64
	}{
		"all of it":               {rates{swing: 140, others: 160, peers: 2, who: 7}, before, 40},
		"a part":                  {rates{swing: 140, others: 185, peers: 2, who: 7}, before, 15},
		"others lost more":        {rates{swing: 140, others: 100, peers: 2, who: 7}, before, 40},
		"it lost, too":            {rates{swing: 90, others: 100, peers: 2, who: 7}, before, 0},
		"they vary":               {rates{swing: 140, others: 193, peers: 2, who: 7}, before, 0},
		"others than before":      {rates{swing: 140, others: 160, peers: 2, who: 8}, before, 0},
		"nobody else, or unknown": {rates{swing: 140}, rates{swing: 100}, 0},
		"it catches up":           {rates{swing: 140, others: 160, peers: 2, who: 7}, rates{swing: 70, others: 200, peers: 2, who: 7}, 0},
		"without full swing":      {rates{all: 100, others: 188, peers: 2, who: 7}, before, 10},
		"others were trying":      {rates{swing: 140, others: 160, peers: 2, who: 7}, rates{swing: 70, others: 200, peers: 2, who: 7, trying: true}, 40},
	} {
		require.Equal(t, c.want, c.now.taken(c.before), name)
	}
}

// What others show counts as long as they are the same, and have more to send.
func TestElsewhere(t *testing.T) {
	var o elsewhere
	o.add(&Others{Arrived: 5, Peers: 1, Who: 3, Waiting: true}, time.Second)
	o.add(&Others{Arrived: 5, Peers: 1, Who: 3}, time.Second)
	o.add(&Others{Waiting: true}, time.Second)
	require.Equal(t, elsewhere{held: held{bytes: 5, time: time.Second}, peers: 1, who: 3}, o)
	o.add(&Others{Arrived: 7, Peers: 2, Who: 4, Waiting: true, Trying: true}, time.Second)
	o.add(&Others{Arrived: 7, Peers: 2, Who: 4, Waiting: true}, time.Second)
	require.Equal(t, elsewhere{held: held{bytes: 14, time: 2 * time.Second}, peers: 2, who: 4, trying: true}, o)
}
