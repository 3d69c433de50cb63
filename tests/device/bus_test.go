package device

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
)

// traffic is what crosses the bus of one peer, in wire forms of a chunk.
type traffic struct{ toHost, toDevice int }

func (b traffic) sum() int { return b.toHost + b.toDevice }

// busOf returns what one of n peers moves of float32 as uint8, whose chunk is four
// times its wire form: before the device decoded results, now, and if it also
// combined what comes, which would make it send the result of each step to the host.
func busOf(n int, inPlace bool) (before, now, combined traffic) {
	originals := 0 // of what came encoded
	if inPlace {
		originals = 4
	}
	now = traffic{1 + 4*(n-1) + originals, n}
	before = traffic{now.toHost, 4 * n}
	combined = traffic{n, 2 * (n - 1)}
	if inPlace {
		combined.toHost += 4 * n
	}
	return before, now, combined
}

// Results of a quantized operation cross the bus in wire form, and have the bits of
// the host. What is received is combined on the host: in place, which is the usual
// case, more would cross the bus if the device did it. The log has the numbers.
func TestResultsCrossTheBusEncoded(t *testing.T) {
	for _, peers := range []int{2, 4} {
		for _, inPlace := range []bool{false, true} {
			before, now, combined := busOf(peers, inPlace)
			measured := quantizedBus(t, peers, inPlace, now)
			t.Logf("%d peers, in place %v, to the host + to the device, in wire forms of a chunk: the host decodes %d + %d = %d; now %d + %d = %d; the device combines %d + %d = %d",
				peers, inPlace, before.toHost, before.toDevice, before.sum(),
				measured.toHost, measured.toDevice, measured.sum(), combined.toHost, combined.toDevice, combined.sum())
			require.Less(t, measured.sum(), before.sum())
			require.Equal(t, inPlace, combined.sum() > measured.sum())
		}
	}
}

// quantizedBus returns what a peer moves once the kernels are compiled, which is
// expected to be want.
func quantizedBus(t *testing.T, peers int, inPlace bool, want traffic) traffic {
	const chunk, bounds = 8192, 24
	count := chunk * peers
	how := core.Sum
	if inPlace {
		how = core.Avg
	}
	c := newCard(t, peers, device.Settings{})
	comms := world(t, peers, func(o *core.Options) { o.PoolSize = peers - 1 })
	rng := rand.New(rand.NewPCG(uint64(peers), 11))
	src, result := make([][]byte, peers), make([][]byte, peers)
	from, to := make([]core.DeviceBuffer, peers), make([]core.DeviceBuffer, peers)
	reduce := func(call func(i int) core.Reduce) {
		each(t, peers, func(i int) error {
			r := call(i)
			r.Tag, r.Quantize = 1, core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}
			_, err := comms[i].AllReduce(t.Context(), r)
			return err
		})
	}
	for i := range peers {
		src[i], result[i] = floats(rng, count), make([]byte, 4*count)
	}
	reduce(func(i int) core.Reduce {
		return core.Reduce{Src: src[i], Dst: result[i], DType: dtype.Float32, Op: how}
	})
	var toHost, toDevice int
	for began := time.Now(); ; {
		for i := range peers {
			from[i] = c.put(i, src[i])
			if to[i] = from[i]; !inPlace {
				to[i] = c.put(i, make([]byte, 4*count))
			}
		}
		hostBefore, deviceBefore := c.d.Copied()
		reduce(func(i int) core.Reduce { return core.ReduceDevice(to[i], from[i], dtype.Float32, how) })
		hostAfter, deviceAfter := c.d.Copied()
		for i := range peers {
			require.True(t, bytes.Equal(result[i], c.get(to[i])))
			if c.free(to[i]); !inPlace {
				c.free(from[i])
			}
		}
		toHost, toDevice = hostAfter-hostBefore-peers*bounds, deviceAfter-deviceBefore
		if toHost == want.toHost*chunk*peers && toDevice == want.toDevice*chunk*peers {
			break
		}
		require.Less(t, time.Since(began), patience, "to the host %d, to the device %d bytes", toHost, toDevice)
	}
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.close()
	return traffic{toHost / chunk / peers, toDevice / chunk / peers}
}
