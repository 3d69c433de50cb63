package link

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/platform"
)

// Bytes are counted by segments, of which a system may have merged several: on average of what was
// delivered. What lies behind a gap counts when it comes, and not again when the gap is filled.
func TestArrivals(t *testing.T) {
	const full = 1000
	for name, c := range map[string]struct {
		merged, segments uint64 // segments a look
		known            platform.Fields
	}{
		"as they are": {1, 10, 0}, "three as one": {3, 10, 0}, "fast": {1, 3000, 0}, "fast, three as one": {3, 3000, 0},
		"told apart": {1, 10, platform.HasAside}, "three as one, told apart": {3, 10, platform.HasAside},
	} {
		t.Run(name, func(t *testing.T) {
			var k arrivals
			info := platform.Info{Known: c.known, CameMSS: full, Came: math.MaxUint32 - 50, Aside: math.MaxUint32 - 20, Received: 1 << 40}
			k.since(&info, 0)
			sum, sent, held := uint64(0), uint64(0), uint64(0)
			came := c.segments * c.merged * full
			for look := range 1000 {
				info.Came += uint32(c.segments)
				if look%50 >= 10 {
					info.Received += came + held
					held = 0
				} else { // behind a gap
					info.Aside += uint32(c.segments)
					held += came
				}
				got := k.since(&info, time.Duration(look+1)*sampling)
				if look >= 100 {
					sum += got
					sent += came
					require.InEpsilon(t, came, got, 0.05, "look %d", look)
				}
			}
			require.InEpsilon(t, sent, sum, 0.01)
		})
	}
}

// Pulses of 21 bytes are no segments that say how long others are, nor as long as those. Where nothing
// is lost what comes is what was received, however many are merged by then.
func TestArrivalsBehindPulses(t *testing.T) {
	k, info := arrivals{}, platform.Info{Known: platform.HasAside, CameMSS: 1448}
	k.since(&info, 0)
	now := time.Duration(0)
	look := func(segments uint32, each uint64) {
		now += sampling
		info.Came += segments
		info.Received += uint64(segments) * each
		require.Equal(t, uint64(segments)*each, k.since(&info, now))
	}
	for _, each := range []uint64{3 * 1448, 1448, 2 * 1448} {
		for range 100 {
			look(20, each)
		}
		for range 1000 {
			look(1, 21)
		}
	}
	info.Came += 20
	info.Aside += 20
	held := k.since(&info, now)
	require.InEpsilon(t, 20*2*1448, held, 0.01, "behind a gap they are as long as the last that were not")
	info.Came++
	info.Received += 21 * 2 * 1448
	require.EqualValues(t, 21*2*1448-held, k.since(&info, now), "what was counted is not again")
}

// Long segments behind many small ones: no less is counted than was delivered.
func TestArrivalsThatBecomeLonger(t *testing.T) {
	var k arrivals
	info := platform.Info{CameMSS: 200}
	sum := uint64(0)
	look := func(n int, bytes uint64) {
		for range n {
			info.Came++
			info.Received += bytes
			sum += k.since(&info, time.Duration(info.Came)*sampling)
		}
	}
	look(5000, 200)
	look(100, 40_000)
	require.EqualValues(t, info.Received, sum)
}

// arriving is a connection on which segments are lost, as its receiver's system counts it.
type arriving struct {
	info  platform.Info
	size  uint64
	next  int          // the first segment that has not been received
	aside map[int]bool // those behind it that have come
	bytes uint64       // that have come
}

func (a *arriving) take(segment int) {
	a.info.Came++
	if segment < a.next || a.aside[segment] {
		return
	}
	a.bytes += a.size
	if segment > a.next {
		a.info.Aside++
		a.aside[segment] = true
		return
	}
	for ok := true; ok; ok = a.aside[a.next] {
		delete(a.aside, a.next)
		a.next++
		a.info.Received += a.size
	}
}

// A system keeps many gaps at once, which are filled one after the other, in looks in which nothing
// comes aside. What was held behind them is counted once, and when it came.
func TestArrivalsBetweenGaps(t *testing.T) {
	const (
		trip = 8  // looks until a lost segment is sent again
		many = 30 // segments a look
	)
	for name, c := range map[string]struct {
		lost   float64
		every  int // looks between two overflows; 0: none
		merged uint64
	}{
		"by chance": {0.003, 0, 1}, "many by chance": {0.03, 0, 1}, "an overflow": {0, 150, 1}, "both, two as one": {0.001, 150, 2},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			a := arriving{size: 1448 * c.merged, aside: map[int]bool{}}
			a.info.Known, a.info.CameMSS = platform.HasAside, 1448
			var k arrivals
			k.since(&a.info, 0)
			again := map[int][]int{} // by look
			told, was, oldTold := uint64(0), uint64(0), uint64(0)
			sent := 0
			for look := 1; look <= 3000; look++ {
				fresh := many
				lost := c.lost
				if c.every > 0 && look > c.every {
					switch at := look % c.every; {
					case at < trip: // every other segment is lost, and as many are sent again a round trip later
						lost = 0.5
					case at < 2*trip:
						fresh = 0
					}
				}
				for _, segment := range again[look] {
					a.take(segment)
				}
				delete(again, look)
				for range fresh {
					if rng.Float64() < lost {
						again[look+trip] = append(again[look+trip], sent)
					} else {
						a.take(sent)
					}
					sent++
				}
				told += k.since(&a.info, time.Duration(look)*sampling)
				if look > 200 {
					require.InDelta(t, a.bytes, told, float64(many*trip*a.size)/4, "look %d", look)
				}
				if look%40 == 0 {
					if look > 200 {
						require.InEpsilon(t, a.bytes-was, told-oldTold, 0.1, "looks until %d", look)
					}
					was, oldTold = a.bytes, told
				}
			}
		})
	}
}
