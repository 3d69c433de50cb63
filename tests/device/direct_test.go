package device

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/peer"
	"github.com/gopccl/gopccl/internal/wire"
)

// apart connects n peers that take each other for distant, until their small
// all-reduces go directly from each to each other.
func apart(t *testing.T, ctx context.Context, n, eager int) []*peer.Session {
	t.Helper()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	over := make(chan error, 1)
	running, stop := context.WithCancel(context.Background())
	go func() { over <- m.Run(running) }()
	all := make([]*peer.Session, n)
	t.Cleanup(func() {
		for _, s := range all {
			if s != nil {
				s.Close()
			}
		}
		stop()
		<-over
		m.Close()
	})
	each(t, n, func(i int) (err error) {
		all[i], err = peer.Connect(ctx, peer.Options{
			Master: m.Addr().String(), PortBase: -1, EagerBytes: eager,
			Network: peer.Network{RoundTrip: func(wire.UUID) (time.Duration, bool) { return 80 * time.Millisecond, true }},
		})
		return err
	}, func(i int) error {
		for all[i].View().LocalWorldSize < n {
			pending, err := all[i].PeersPending(ctx)
			if err == nil && pending {
				err = all[i].UpdateTopology(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, func(i int) error { return untilDirect(ctx, all[i]) })
	return all
}

// untilDirect repeats small all-reduces until one goes directly.
func untilDirect(ctx context.Context, s *peer.Session) error {
	for {
		b := make([]byte, 64)
		info, err := s.AllReduce(ctx, peer.Reduce{Tag: 1, Src: b, Dst: b, DType: dtype.Float32, Op: dtype.Sum})
		if err != nil || info.Plan == "direct" {
			return err
		}
	}
}

// Tensors on a device and those of the host take part in one direct exchange, with
// the bits that the host alone gives, on the host and on the device.
func TestDirectAllReduce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, where := range []string{"host", "device"} {
		c := newCard(t, 2, device.Settings{Reduce: where})
		all := apart(t, ctx, 4, 0)
		for _, count := range []int{0, 1, 5, 50_001} {
			for _, inPlace := range []bool{true, false} {
				rng := rand.New(rand.NewPCG(uint64(count), 7))
				src, want := make([][]byte, 4), make([][]byte, 4)
				for i := range src {
					src[i] = floats(rng, count)
					want[i] = make([]byte, len(src[i]))
				}
				r := func(i int) peer.Reduce {
					return peer.Reduce{Tag: 1, Src: src[i], Dst: want[i], DType: dtype.Float32, Op: dtype.Avg}
				}
				each(t, 4, func(i int) error {
					_, err := all[i].AllReduce(ctx, r(i))
					return err
				})
				if count == 0 {
					continue
				}
				var from, to [2]core.DeviceBuffer
				for i := range from {
					from[i] = c.put(i, src[i])
					if to[i] = from[i]; !inPlace {
						to[i] = c.put(i, make([]byte, len(src[i])))
					}
				}
				each(t, 4, func(i int) error {
					o := r(i)
					if i < 2 {
						o.Src, o.Dst, o.DeviceSrc, o.DeviceDst = nil, nil, from[i], to[i]
					}
					info, err := all[i].AllReduce(ctx, o)
					if err == nil && info.Plan != "direct" {
						err = fmt.Errorf("it took the plan %q", info.Plan)
					}
					return err
				})
				for i := range from {
					require.True(t, bytes.Equal(want[2], c.get(to[i])), "%s, %d elements, in place %v", where, count, inPlace)
					c.free(from[i])
					if !inPlace {
						c.free(to[i])
					}
				}
			}
		}
		for _, s := range all {
			require.NoError(t, s.Close())
		}
		c.close()
	}
}

// An exchange that a member gives up, at any time, leaves tensors in place as before,
// or has the result on all.
func TestDirectAllReduceIsRestored(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := newCard(t, 2, device.Settings{})
	all := apart(t, ctx, 4, 0)
	rng := rand.New(rand.NewPCG(3, 3))
	for round := range 30 {
		src := floats(rng, 20_000)
		bufs := [2]core.DeviceBuffer{c.put(0, src), c.put(1, src)}
		var failed [4]bool
		each(t, 4, func(i int) error { return untilDirect(ctx, all[i]) }, func(i int) error {
			o := peer.Reduce{Tag: 1, Src: bytes.Clone(src), DType: dtype.Float32, Op: dtype.Sum}
			o.Dst = o.Src
			if i < 2 {
				o.Src, o.Dst, o.DeviceSrc, o.DeviceDst = nil, nil, bufs[i], bufs[i]
			}
			op, err := all[i].AllReduceAsync(ctx, o)
			if err != nil {
				return err
			}
			if i == round%4 {
				time.Sleep(time.Duration(round) * 100 * time.Microsecond) // spreads the aborts over the operation
				op.Cancel()
			}
			_, err = op.Wait(ctx)
			failed[i] = err != nil
			if code := errs.CodeOf(err); err != nil && code != errs.RankConnectionLost && code != errs.Canceled {
				return err
			}
			return nil
		})
		require.Equal(t, [4]bool{failed[0], failed[0], failed[0], failed[0]}, failed)
		for i, b := range bufs {
			require.Equal(t, failed[0], bytes.Equal(src, c.get(b)), "round %d, member %d", round, i)
			c.free(b)
		}
	}
	for _, s := range all {
		require.NoError(t, s.Close())
	}
	c.close()
}

// A direct exchange whose source is late on one member is not disturbed by those that
// begin and end meanwhile.
func TestDirectAllReduceOfALateDevice(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := newCard(t, 1, device.Settings{})
	only := cudatest.Interpreter(t, c.d)
	all := apart(t, ctx, 3, 8) // what is longer does not begin before its number is known
	src := floats(rand.New(rand.NewPCG(5, 5)), 300)
	x := c.put(0, src)
	release := only.Hold(driver.Stream(x.Stream))
	ops := make([]*peer.Operation, len(all))
	bufs := make([][]byte, len(all))
	each(t, len(all), func(i int) (err error) {
		bufs[i] = bytes.Clone(src)
		o := peer.Reduce{Tag: 1, Src: bufs[i], Dst: bufs[i], DType: dtype.Float32, Op: dtype.Max}
		if i == 0 {
			o.Src, o.Dst, o.DeviceSrc, o.DeviceDst = nil, nil, x, x
		}
		ops[i], err = all[i].AllReduceAsync(ctx, o)
		return err
	})
	later := make([]*peer.Operation, len(all))
	each(t, len(all), func(i int) (err error) {
		b := make([]byte, 64)
		later[i], err = all[i].AllReduceAsync(ctx, peer.Reduce{Tag: 2, Src: b, Dst: b, DType: dtype.Float32, Op: dtype.Sum})
		return err
	})
	require.Eventually(t, func() bool { // it has begun on the late one
		for _, o := range all[0].State().Ops {
			if o.Tag == 2 {
				return o.Phase == "running"
			}
		}
		return false
	}, patience, time.Millisecond)
	release()
	each(t, len(all), func(i int) error {
		info, err := ops[i].Wait(ctx)
		if err == nil && info.Plan != "direct" {
			err = fmt.Errorf("it took the plan %q", info.Plan)
		}
		return err
	}, func(i int) error {
		_, err := later[i].Wait(ctx)
		return err
	})
	require.True(t, bytes.Equal(src, c.get(x)))
	for _, s := range all {
		require.NoError(t, s.Close())
	}
	c.free(x)
	c.close()
}
