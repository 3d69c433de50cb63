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
	next  int            // the first segment that has not been received
	aside map[int]uint64 // those behind it that have come, and their bytes
	bytes uint64         // that have come
}

func (a *arriving) take(segment int, size uint64) {
	a.info.Came++
	if segment > a.next {
		a.info.Aside++ // also the second time
	}
	if segment < a.next || a.aside[segment] > 0 {
		return
	}
	a.bytes += size
	for a.aside[segment] = size; a.aside[a.next] > 0; a.next++ {
		a.info.Received += a.aside[a.next]
		delete(a.aside, a.next)
	}
}

// A system keeps many gaps at once, which are filled one after the other, in looks in which nothing
// comes aside. What was held behind them is counted when it came, and not again, however long gaps follow
// each other, segments become shorter meanwhile, and some come twice.
func TestArrivalsBetweenGaps(t *testing.T) {
	const many = 30 // segments a look
	for name, c := range map[string]struct {
		lost        float64
		every       int // looks between two overflows; 0: none
		trip        int // looks until a lost segment is sent again
		quiet, size uint64
		twice       float64
	}{
		"by chance":            {lost: 0.003, trip: 8, quiet: 1448, size: 1448},
		"many by chance":       {lost: 0.03, trip: 8, quiet: 1448, size: 1448},
		"an overflow":          {every: 150, trip: 8, quiet: 1448, size: 1448},
		"far away":             {every: 600, trip: 60, quiet: 1448, size: 1448},
		"both, two as one":     {lost: 0.001, every: 150, trip: 8, quiet: 2896, size: 2896},
		"short ones with gaps": {lost: 0.01, trip: 8, quiet: 1448, size: 1300},
		"some twice":           {lost: 0.01, trip: 8, quiet: 1448, size: 1448, twice: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			a := arriving{aside: map[int]uint64{}}
			a.info = platform.Info{Known: platform.HasAside, CameMSS: 1448, RTT: time.Duration(c.trip) * sampling}
			var k arrivals
			k.since(&a.info, 0)
			type segment struct {
				number int
				size   uint64
			}
			again := map[int][]segment{} // by look
			told, was, oldTold := uint64(0), uint64(0), uint64(0)
			sent := 0
			for look := 1; look <= 8000; look++ {
				fresh, lost, size, twice := many, 0.0, c.quiet, 0.0
				if look > 200 && look < 6000 {
					lost, size, twice = c.lost, c.size, c.twice
					if at := look % max(c.every, 1); c.every > 0 && at < c.trip { // every other one, and all are sent again a round trip later
						lost = 0.5
					} else if c.every > 0 && at < 2*c.trip {
						fresh = 0
					}
				}
				for _, g := range again[look] {
					a.take(g.number, g.size)
				}
				delete(again, look)
				for range fresh {
					if rng.Float64() < lost {
						again[look+c.trip] = append(again[look+c.trip], segment{sent, size})
					} else {
						for range 1 + int(rng.Float64()+twice) {
							a.take(sent, size)
						}
					}
					sent++
				}
				told += k.since(&a.info, time.Duration(look)*sampling)
				if look%40 == 0 {
					require.InEpsilon(t, a.bytes-was, told-oldTold, 0.1, "looks until %d", look)
					was, oldTold = a.bytes, told
				}
			}
			require.InEpsilon(t, a.bytes, told, 0.02)
		})
	}
}
