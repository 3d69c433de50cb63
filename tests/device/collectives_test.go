package device

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// window is a part of a member's memory: its first byte and its size; none: no such buffer.
type window struct{ at, n int }

func (w window) of(b []byte) []byte {
	if w.n == 0 {
		return nil
	}
	return b[w.at : w.at+w.n]
}

func (w window) on(b core.DeviceBuffer) core.DeviceBuffer {
	if w.n == 0 {
		return core.DeviceBuffer{}
	}
	b.Ptr, b.Bytes = b.Ptr+uint64(w.at), w.n
	return b
}

// shape is what one collective does with the memory of one member.
type shape struct {
	call     core.Collective
	src, dst window
	memory   int // bytes
}

// host and card are the call on memory of that kind.
func (s shape) host(b []byte) core.Collective {
	c := s.call
	c.Src, c.Dst = s.src.of(b), s.dst.of(b)
	return c
}

func (s shape) card(b core.DeviceBuffer) core.Collective {
	c := s.call
	c.DeviceSrc, c.DeviceDst = s.src.on(b), s.dst.on(b)
	return c
}

var names = map[core.Kind]string{
	core.KindAllGather: "all-gather", core.KindReduceScatter: "reduce-scatter", core.KindBroadcast: "broadcast", core.KindReduce: "reduce",
	core.KindGather: "gather", core.KindScatter: "scatter", core.KindAllToAll: "all-to-all",
}

// shapeOf describes a collective of float32 for member me: counts are the elements of the
// blocks, by member.
func shapeOf(kind core.Kind, me, root int, counts []int, inPlace bool) shape {
	total, before := 0, 0
	for i, n := range counts {
		total += 4 * n
		if i < me {
			before += 4 * n
		}
	}
	own := 4 * counts[me]
	s := shape{call: core.Collective{Kind: kind, DType: dtype.Float32, Op: core.Sum, Root: root}}
	varied := false
	for _, n := range counts {
		varied = varied || n != counts[0]
	}
	all, mine := window{0, total}, window{total, own}
	if inPlace {
		mine.at = before
	}
	switch kind {
	case core.KindAllGather:
		s.src, s.dst = mine, all
	case core.KindReduceScatter:
		s.src, s.dst = all, mine
	case core.KindBroadcast:
		s.src, s.dst = all, all
		if !inPlace {
			s.dst.at = total
		}
		if !inPlace && me == root {
			s.dst = window{}
		}
	case core.KindReduce:
		s.src, s.dst = all, all
		if !inPlace {
			s.dst.at = total
		}
	case core.KindGather:
		s.src, s.dst = mine, all
	case core.KindScatter:
		s.src, s.dst = all, mine
	case core.KindAllToAll:
		s.src = window{0, total}
		s.dst = window{total, total}
		if varied {
			s.call.SendCounts = counts
			for range counts {
				s.call.RecvCounts = append(s.call.RecvCounts, counts[me])
			}
			s.dst.n = len(counts) * own
		}
	}
	if varied && kind != core.KindAllToAll && kind != core.KindBroadcast && kind != core.KindReduce {
		s.call.Counts = counts
	}
	s.memory = max(s.src.at+s.src.n, s.dst.at+s.dst.n)
	return s
}

// members connects n peers, in the order of their indices.
func members(t *testing.T, n int, change func(*core.Options)) []*core.Communicator {
	t.Helper()
	comms := world(t, n, change)
	list := make([]*core.Communicator, n)
	for _, c := range comms {
		list[c.Attributes().Index] = c
	}
	return list
}

// every calls f for every kind and form of collective of n members.
func every(n int, f func(what string, of func(me int) shape)) {
	blocks := map[bool][]int{false: make([]int, n), true: make([]int, n)}
	for i := range n {
		blocks[false][i], blocks[true][i] = 5001, 3000*i+7*(i%2)
	}
	for kind := core.KindAllGather; kind <= core.KindAllToAll; kind++ {
		for _, varied := range []bool{false, true} {
			for _, inPlace := range []bool{false, true} {
				for root := range 2 {
					rooted := kind != core.KindAllGather && kind != core.KindReduceScatter && kind != core.KindAllToAll
					if root > 0 && !rooted || inPlace && kind == core.KindAllToAll || varied && (kind == core.KindBroadcast || kind == core.KindReduce) {
						continue
					}
					f(fmt.Sprintf("%s, root %d, varied %v, in place %v", names[kind], root, varied, inPlace), func(me int) shape {
						return shapeOf(kind, me, root, blocks[varied], inPlace)
					})
				}
			}
		}
	}
}

// Every collective of device memory gives the bits of one of host memory: with blocks of
// equal sizes and not, in place and not, quantized, on two devices, and beside a member
// whose memory is the host's.
func TestCollectives(t *testing.T) {
	const n = 3
	for _, eager := range []int{0, -1} {
		c := newCard(t, 2, device.Settings{})
		comms := members(t, n, func(o *core.Options) { o.EagerBytes = eager })
		rng := rand.New(rand.NewPCG(1, 7))
		try := func(what string, of func(me int) shape) {
			var want, given [n][]byte
			for i := range n {
				given[i] = floats(rng, of(i).memory/4)
				want[i] = bytes.Clone(given[i])
			}
			each(t, n, func(i int) error {
				_, err := comms[i].Collect(t.Context(), of(i).host(want[i]))
				return err
			})
			var on [2]core.DeviceBuffer
			for i := range on {
				on[i] = c.put(i, given[i])
			}
			each(t, n, func(i int) error {
				call := of(i).host(given[i])
				if i < len(on) {
					call = of(i).card(on[i])
				}
				h, err := comms[i].CollectAsync(t.Context(), call)
				if err == nil {
					_, err = h.Wait(t.Context())
				}
				return err
			})
			for i := range on {
				require.True(t, bytes.Equal(want[i], c.get(on[i])), "%s, member %d", what, i)
			}
			require.True(t, bytes.Equal(want[2], given[2]), "%s, member 2", what)
			c.free(on[:]...)
		}
		every(n, try)
		for _, kind := range []core.Kind{core.KindAllGather, core.KindReduceScatter} {
			for _, inPlace := range []bool{false, true} {
				try(names[kind]+", quantized", func(me int) shape {
					s := shapeOf(kind, me, 0, []int{4000, 4000, 4000}, inPlace)
					s.call.Quantize = core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}
					return s
				})
			}
		}
		for _, comm := range comms {
			require.NoError(t, comm.Close())
		}
		c.close()
	}
}

// A collective that a member gives up, at any time, leaves what was input as it was, and
// what is to be preserved; or all members have the result.
func TestCollectivesAreRestored(t *testing.T) {
	const n = 2
	c := newCard(t, 2, device.Settings{})
	comms := members(t, n, nil)
	rng := rand.New(rand.NewPCG(3, 3))
	aborted, round := 0, 0
	every(n, func(what string, of func(me int) shape) {
		for _, preserve := range []bool{false, true} {
			round++
			var given [n][]byte
			var on [n]core.DeviceBuffer
			handles, fail := make([]*core.Handle, n), make([]error, n)
			each(t, n, func(i int) (err error) {
				if i == 0 {
					for k := range n {
						given[k] = floats(rng, of(k).memory/4)
						on[k] = c.put(k, given[k])
					}
				}
				return nil
			})
			each(t, n, func(i int) (err error) {
				call := of(i).card(on[i])
				call.Preserve = preserve
				handles[i], err = comms[i].CollectAsync(t.Context(), call)
				return err
			})
			for range round % 7 * 60 { // some way into it
				runtime.Gosched()
			}
			each(t, n, func(i int) error {
				if i == round%n {
					handles[i].Cancel()
				}
				_, fail[i] = handles[i].Wait(t.Context())
				return nil
			})
			if fail[1-round%n] == nil { // it was too late
				c.free(on[:]...)
				continue
			}
			require.Error(t, fail[round%n], what)
			for i := range n {
				s, now := of(i), c.get(on[i])
				switch {
				case preserve:
					require.True(t, bytes.Equal(given[i], now), "%s, member %d", what, i)
				case s.call.Kind == core.KindBroadcast && i != s.call.Root, s.call.Kind == core.KindScatter && i != s.call.Root: // it has no input
				default:
					require.True(t, bytes.Equal(s.src.of(given[i]), s.src.of(now)), "%s, member %d", what, i)
				}
			}
			aborted++
			c.free(on[:]...)
		}
	})
	require.Positive(t, aborted)
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.close()
}

// A member whose own device is late takes part in later operations meanwhile: what comes
// for the one that waits is not lost. Given up while it waits, it ends.
func TestLateDevice(t *testing.T) {
	const n = 2
	for _, eager := range []int{0, -1} {
		c := newCard(t, 2, device.Settings{})
		only := cudatest.Interpreter(t, c.d)
		comms := members(t, n, func(o *core.Options) { o.EagerBytes, o.PoolSize = eager, 2 })
		rng := rand.New(rand.NewPCG(4, 4))
		for _, gives := range []bool{false, true} {
			s := [n]shape{shapeOf(core.KindAllGather, 0, 0, []int{500, 500}, false), shapeOf(core.KindAllGather, 1, 0, []int{500, 500}, false)}
			var given [n][]byte
			var on [n]core.DeviceBuffer
			for i := range n {
				given[i] = floats(rng, s[i].memory/4)
				on[i] = c.put(i, given[i])
			}
			release := only.Hold(driver.Stream(on[0].Stream))
			var handles [n]*core.Handle
			each(t, n, func(i int) (err error) {
				call := s[i].card(on[i])
				call.Tag = 1
				handles[i], err = comms[i].CollectAsync(t.Context(), call)
				return err
			}, func(i int) error {
				for range 3 {
					b := []float32{1, 2, 3}
					if _, err := core.ReduceTo(t.Context(), comms[i], b, b, core.Sum, 1, func(c *core.Collective) { c.Tag = 2 }); err != nil {
						return err
					}
				}
				return nil
			})
			select {
			case <-handles[1].Done():
				t.Fatal("there is a verdict without a source")
			default:
			}
			if gives {
				handles[0].Cancel()
			} else {
				release()
			}
			fail := make([]error, n)
			each(t, n, func(i int) error {
				_, fail[i] = handles[i].Wait(t.Context())
				return nil
			})
			if gives {
				release()
			}
			for i := range n {
				if gives {
					require.Contains(t, []errs.Code{errs.Canceled, errs.RankConnectionLost}, errs.CodeOf(fail[i]))
					require.True(t, bytes.Equal(given[i], c.get(on[i])))
					continue
				}
				require.NoError(t, fail[i])
				all := append(bytes.Clone(s[0].src.of(given[0])), s[1].src.of(given[1])...)
				require.True(t, bytes.Equal(all, s[i].dst.of(c.get(on[i]))), "member %d", i)
			}
			c.free(on[:]...)
		}
		for _, comm := range comms {
			require.NoError(t, comm.Close())
		}
		c.close()
	}
}

// What cannot be had is refused at the call, by name.
func TestBadCollectives(t *testing.T) {
	const n = 2
	c := newCard(t, 1, device.Settings{})
	comms := members(t, n, nil)
	x := c.put(0, make([]byte, 64))
	part := func(at, bytes int) core.DeviceBuffer { return window{at, bytes}.on(x) }
	gone := c.put(0, make([]byte, 64))
	host := make([]byte, 64)
	for _, bad := range []struct {
		want string
		call core.Collective
	}{
		{"source (cuda) and destination (host) are not both on a device", core.Collective{Kind: core.KindAllGather, DeviceSrc: part(0, 32), Dst: host}},
		{"source (host) and destination (cuda) are not both on a device", core.Collective{Kind: core.KindReduceScatter, Src: host, DeviceDst: part(0, 32)}},
		{"buffers of host and device are both given", core.Collective{Kind: core.KindAllToAll, Src: host, DeviceSrc: x, DeviceDst: x}},
		{"do not divide into 2 equal blocks", core.Collective{Kind: core.KindReduceScatter, DeviceSrc: part(0, 60), DeviceDst: part(60, 4)}},
		{"overlap other than in place", core.Collective{Kind: core.KindAllGather, DeviceSrc: part(16, 24), DeviceDst: part(0, 48)}},
		{"overlap other than in place", core.Collective{Kind: core.KindAllToAll, DeviceSrc: x, DeviceDst: x}},
		{"not whole elements", core.Collective{Kind: core.KindReduce, DeviceSrc: part(0, 30), DeviceDst: part(30, 30)}},
		{"the allocation ends 64 bytes after the address", core.Collective{Kind: core.KindAllGather, DeviceSrc: window{0, 1 << 20}.on(x), DeviceDst: window{1 << 30, 2 << 20}.on(x)}},
		{`nothing serves "rocm" memory`, core.Collective{Kind: core.KindBroadcast, DeviceSrc: core.DeviceBuffer{Platform: "rocm", Ptr: 8, Bytes: 64}, DeviceDst: core.DeviceBuffer{Platform: "rocm", Ptr: 8, Bytes: 64}}},
		{`the source lies on "cuda", the destination on "rocm"`, core.Collective{Kind: core.KindAllToAll, DeviceSrc: x, DeviceDst: core.DeviceBuffer{Platform: "rocm", Ptr: 8, Bytes: 64}}},
	} {
		bad.call.DType, bad.call.Op, bad.call.Root = dtype.Float32, core.Sum, 0
		_, err := comms[0].Collect(t.Context(), bad.call)
		require.ErrorIs(t, err, errs.InvalidArgument, bad.want)
		require.ErrorContains(t, err, bad.want)
	}
	c.free(gone)
	// A member does not look at what it does not use.
	each(t, n, func(i int) error {
		_, err := comms[i].Collect(t.Context(), core.Collective{
			Kind: core.KindReduce, DType: dtype.Float32, Op: core.Sum, Root: 1,
			DeviceSrc: part(32*i, 16), DeviceDst: [n]core.DeviceBuffer{gone, part(48, 16)}[i],
		})
		return err
	})
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.free(x)
	c.close()
}

// A device that fails for good while it takes a result ends the operation for all members,
// with its own error for its own.
func TestDeviceFailsInACollective(t *testing.T) {
	const n = 2
	for k := range 12 {
		c := newCard(t, 2, device.Settings{})
		only := cudatest.Interpreter(t, c.d)
		comms := members(t, n, nil)
		var given [n][]byte
		var on [n]core.DeviceBuffer
		of := func(i int) shape { return shapeOf(core.KindReduceScatter, i, 0, []int{9000, 9000}, true) }
		for i := range n {
			given[i] = floats(rand.New(rand.NewPCG(uint64(k), 5)), of(i).memory/4)
			on[i] = c.put(i, given[i])
			require.True(t, bytes.Equal(given[i], c.get(on[i])))
		}
		only.Fault(4*k+1, driver.LaunchFailed)
		fail := make([]error, n)
		each(t, n, func(i int) error {
			_, fail[i] = comms[i].Collect(t.Context(), of(i).card(on[i]))
			return nil
		})
		if lost := c.p.Stats().Lost; len(lost) > 0 {
			other := 1 - lost[0]
			require.ErrorIs(t, fail[lost[0]], errs.DeviceFailed)
			require.ErrorContains(t, fail[lost[0]], "reduce-scatter")
			require.ErrorIs(t, fail[other], errs.RankConnectionLost)
			require.True(t, bytes.Equal(given[other], c.get(on[other])), "restored")
		} else {
			require.Equal(t, []error{nil, nil}, fail)
		}
		for _, comm := range comms {
			require.NoError(t, comm.Close())
		}
		require.NoError(t, c.p.Close())
	}
}

// With a context that has ended nothing is touched.
func TestCollectiveOfACanceledContext(t *testing.T) {
	c := newCard(t, 1, device.Settings{})
	comms := members(t, 2, nil)
	x := c.put(0, make([]byte, 64))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := comms[0].Collect(ctx, core.Collective{Kind: core.KindBroadcast, DType: dtype.Float32, DeviceSrc: x, DeviceDst: x})
	require.ErrorIs(t, err, errs.Canceled)
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.free(x)
	c.close()
}
