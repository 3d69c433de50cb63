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
	}{
		"as they are": {1, 10}, "three as one": {3, 10}, "fast": {1, 3000}, "fast, three as one": {3, 3000},
	} {
		t.Run(name, func(t *testing.T) {
			var k arrivals
			info := platform.Info{CameMSS: full, Came: math.MaxUint32 - 50, Received: 1 << 40}
			k.since(&info)
			sum, sent, held := uint64(0), uint64(0), uint64(0)
			came := c.segments * c.merged * full
			for look := range 1000 {
				info.Came += uint32(c.segments)
				if look%50 >= 10 {
					info.Received += came + held
					held = 0
				} else { // behind a gap
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
