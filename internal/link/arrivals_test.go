package link

import (
	"math"
	"testing"

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
			k.since(&info)
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
				got := k.since(&info)
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
	k.since(&info)
	look := func(segments uint32, each uint64) {
		info.Came += segments
		info.Received += uint64(segments) * each
		require.Equal(t, uint64(segments)*each, k.since(&info))
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
	held := k.since(&info)
	require.InEpsilon(t, 20*2*1448, held, 0.01, "behind a gap they are as long as the last that were not")
	info.Came++
	info.Received += 21 * 2 * 1448
	require.EqualValues(t, 21*2*1448-held, k.since(&info), "what was counted is not again")
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
			sum += k.since(&info)
		}
	}
	look(5000, 200)
	look(100, 40_000)
	require.EqualValues(t, info.Received, sum)
}
