package plan

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Problem is what the choice between the plans of an all-reduce depends on.
type Problem struct {
	N     int
	Ring  []int           // the members in its order
	Delay []time.Duration // one way, from by to, N squared; below 0: not known
	// Mbps is what the slowest member can send; 0: not known.
	Mbps float64
	// Rates are what was measured, Mbit/s from by to; 0: not known, below 0: nothing can be
	// sent there.
	Rates []float64
	// Up and Down are the most that each member was seen to send and receive, Seen is
	// that of pairs as Rates, all in Mbit/s, 0: not seen. Each is a lower bound of what
	// could be had. Nil: nothing was seen.
	Up, Down, Seen []float64
	// Shown is what Up and Down are the most of, by all-reduce, the latest first. Nil: not known.
	Shown []Shown
	// Hopeful says that members may receive more than they were seen to: what came to them
	// was most often what the others could send.
	Hopeful bool
	// Timed is what all-reduces have taken, the latest last: that of the ring is its prediction, and what
	// plans took more than was predicted of them is predicted of others of their kind.
	Timed []Timed
	// Stopped reports whether nobody wants the plans any more: the search ends soon, and
	// what it returns means nothing. Nil: it goes on to its end.
	Stopped func() bool
}

func (p *Problem) stopped() bool { return p.Stopped != nil && p.Stopped() }

// Shown is the most that each member sent and received in one all-reduce, in Mbit/s; 0: nothing was seen.
type Shown struct{ Up, Down []float64 }

// Timed is how long all-reduces of so many bytes took, without the votes: the least that is likely
// of two.
type Timed struct {
	Scheme *Scheme // nil: the ring
	Bytes  uint64
	Took   time.Duration
	Often  bool // more than once
}

// firstOver is how much longer the first all-reduce with a plan takes, which opens connections and
// their windows, than those behind it.
const firstOver = 1.2

// settled returns what it takes once windows are open. The ring's first time is not waited for.
func (t *Timed) settled() time.Duration {
	if t.Scheme == nil || t.Often {
		return t.Took
	}
	return time.Duration(float64(t.Took) / firstOver)
}

// Choice says which all-reduces take the direct exchange: those of at most Most
// bytes. It is the same on all members, who are told it.
type Choice struct {
	Most     uint64        // 0: none
	Ring     time.Duration // the longest way of a chunk along the ring
	Exchange time.Duration // ... and in the exchange
	Mbps     float64       // what was taken for the rate
}

const (
	// assumedMbps is taken for a rate that is not known.
	assumedMbps = 100
	// leastGain is what the exchange must spare: beside near peers the ring is faster.
	leastGain = 4 * time.Millisecond
	// Time on the wire is longer than the bytes need: with a ring by ringExcess, and
	// with an exchange, in which all send to one at a time, by exchangeExcess for
	// each other member (measured without pacing: 1.3; 1.6 with four, 2.4 with eight).
	ringExcess     = 0.3
	exchangeExcess = 0.2
	// caution is the part of the bytes at which both would take the same time that
	// is used: rates are often not known, and small errors cost little there.
	caution = 0.5
	// mostDirect bounds what the exchange keeps of others while it waits for its turn, and what
	// each of two members copies.
	mostDirect = 4 << 20
)

// Choose compares the ring and the direct exchange. With a delay that is not known, or where
// the exchange spares nothing, all all-reduces use the ring. Two members exchange in one hop
// what takes two along the ring, for the same bytes.
func Choose(p Problem) Choice {
	c := Choice{Mbps: p.Mbps}
	if !(c.Mbps > 0) || math.IsInf(c.Mbps, 0) {
		c.Mbps = assumedMbps
	}
	if p.N < 2 || len(p.Ring) != p.N || len(p.Delay) != p.N*p.N {
		return c
	}
	for i := range p.N {
		for j := range p.N {
			if i != j && p.Delay[i*p.N+j] < 0 {
				return c
			}
		}
	}
	c.Ring, c.Exchange = p.alongRing(), p.exchanged()
	gain := c.Ring - c.Exchange
	if gain < leastGain {
		return c
	}
	if p.N == 2 {
		c.Most = mostDirect
		return c
	}
	excess := exchangeExcess*float64(p.N-1) - ringExcess
	perByte := 2 * float64(p.N-1) / float64(p.N) * 8 / (c.Mbps * 1e6) // seconds
	most := caution * gain.Seconds() / (excess * perByte)
	c.Most = uint64(min(most, mostDirect))
	return c
}

// alongRing returns the longest way of a chunk: around the ring, and around again
// without the last two links.
func (p *Problem) alongRing() (longest time.Duration) {
	link := make([]time.Duration, p.N)
	var around time.Duration
	for i, from := range p.Ring {
		link[i] = p.Delay[from*p.N+p.Ring[(i+1)%p.N]]
		around += link[i]
	}
	for i := range link {
		longest = max(longest, 2*around-link[i]-link[(i+1)%p.N])
	}
	return longest
}

// exchanged returns the longest way of a chunk to its owner and from there; of two members, who
// both own all of it, there.
func (p *Problem) exchanged() (longest time.Duration) {
	if p.N == 2 {
		return max(p.Delay[1], p.Delay[2])
	}
	for o := range p.N {
		var to, from time.Duration
		for i := range p.N {
			if i != o {
				to, from = max(to, p.Delay[i*p.N+o]), max(from, p.Delay[o*p.N+i])
			}
		}
		longest = max(longest, to+from)
	}
	return longest
}

// Why says what decides, for people.
func (c Choice) Why() string {
	spares := c.Ring - c.Exchange
	switch {
	case c.Ring == 0:
		return "a delay that is not known"
	case c.Most == 0 && spares <= 0:
		return fmt.Sprintf("delays add up to %v, to %v along the ring: nothing is spared", c.Exchange, c.Ring)
	case c.Most == 0:
		return fmt.Sprintf("delays add up to %v, to %v along the ring: less than %v are spared", c.Exchange, c.Ring, leastGain)
	default:
		return fmt.Sprintf("delays add up to %v, to %v along the ring", c.Exchange, c.Ring)
	}
}

// Predict returns how long an all-reduce of so many bytes takes with each plan,
// without the votes, of n members.
func (c Choice) Predict(bytes uint64, n int) (ring, exchange time.Duration) {
	if n < 2 || !(c.Mbps > 0) {
		return 0, 0
	}
	wire := 2 * float64(n-1) / float64(n) * float64(bytes) * 8 / (c.Mbps * 1e6) * float64(time.Second)
	ring = c.Ring + time.Duration(wire*(1+ringExcess))
	return ring, c.Exchange + time.Duration(wire*(1+exchangeExcess*float64(n-1)))
}

// Slowest returns what the slowest member can send, of rates by from and to of n: that
// of a member is its best link's, as far as one is known.
func Slowest(mbps []float64, n int) (least float64) {
	if len(mbps) != n*n {
		return 0
	}
	for row := range slices.Chunk(mbps, max(n, 1)) {
		best := 0.0
		for _, v := range row {
			if v > best && !math.IsInf(v, 0) {
				best = v
			}
		}
		if best > 0 && (least == 0 || best < least) {
			least = best
		}
	}
	return least
}
