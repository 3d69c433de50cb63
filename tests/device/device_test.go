// Package device runs peers with tensors on a device: the whole way from the
// call to the result, through the engine, the staging and the committed
// kernels, on a driver that needs no GPU.
package device

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/checkpoint"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda"
	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// card is a machine with devices, and the trainers' use of it.
type card struct {
	t        testing.TB
	d        cudatest.Device
	p        *cuda.Platform
	contexts []driver.Context
}

func newCard(t testing.TB, devices int, s device.Settings) *card {
	devices = cudatest.Devices(t, devices)
	d := cudatest.Open(t, ptxtest.Options{Devices: devices, Seed: 3})
	p := cuda.New(cuda.Config{Open: func() (driver.Driver, error) { return d, nil }, Settings: s, PieceBytes: 4096})
	c := &card{t: t, d: d, p: p}
	t.Cleanup(device.Replace(device.CUDA, p))
	for i := range devices {
		ctx, err := d.Retain(i)
		require.NoError(t, err)
		c.contexts = append(c.contexts, ctx)
	}
	return c
}

func (c *card) on(dev int, f func() error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(c.t, c.d.Push(c.contexts[dev]))
	defer func() {
		_, err := c.d.Pop()
		require.NoError(c.t, err)
	}()
	require.NoError(c.t, f())
}

// put makes a tensor of b; its content is on its way, on a stream of its own.
func (c *card) put(dev int, b []byte) core.DeviceBuffer {
	dev %= len(c.contexts) // the machine may have fewer
	out := core.DeviceBuffer{Platform: device.CUDA, Bytes: len(b), Device: dev}
	c.on(dev, func() error {
		p, err := c.d.Alloc(uint64(len(b)))
		if err != nil {
			return err
		}
		s, err := c.d.StreamCreate()
		out.Ptr, out.Stream = uint64(p), uint64(s)
		return errors.Join(err, c.d.CopyToDevice(p, b, s))
	})
	return out
}

func (c *card) get(b core.DeviceBuffer) []byte {
	out := make([]byte, b.Bytes)
	c.on(b.Device, func() error {
		return errors.Join(c.d.CopyToHost(out, driver.Ptr(b.Ptr), driver.Stream(b.Stream)), c.d.StreamSynchronize(driver.Stream(b.Stream)))
	})
	return out
}

func (c *card) free(list ...core.DeviceBuffer) {
	for _, b := range list {
		c.on(b.Device, func() error {
			return errors.Join(c.d.Free(driver.Ptr(b.Ptr)), c.d.StreamDestroy(driver.Stream(b.Stream)))
		})
	}
}

// close gives everything back: then nothing is left on the devices.
func (c *card) close() {
	require.NoError(c.t, c.p.Close())
	for dev := range c.contexts {
		require.NoError(c.t, c.d.Release(dev))
	}
	require.Equal(c.t, ptxtest.Counts{}, c.d.Live())
}

// world connects n peers in this process.
func world(t *testing.T, n int, change func(*core.Options)) []*core.Communicator {
	t.Helper()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(context.Background(), patience)
	over := make(chan error, 1)
	go func() { over <- m.Run(ctx) }()
	comms := make([]*core.Communicator, n)
	t.Cleanup(func() {
		for _, c := range comms {
			if c != nil {
				c.Close()
			}
		}
		stop()
		<-over
		m.Close()
	})
	each(t, n, func(i int) error {
		o := core.Options{Master: m.Addr().String(), PortBase: -1}
		if change != nil {
			change(&o)
		}
		var err error
		comms[i], err = core.Connect(ctx, o)
		return err
	}, func(i int) error {
		for comms[i].Attributes().LocalWorldSize < n {
			pending, err := comms[i].PeersPending(ctx)
			if err == nil && pending {
				err = comms[i].UpdateTopology(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return comms
}

// each runs steps for every peer at once; a step begins when the peer's own
// step before it has ended.
func each(t *testing.T, n int, steps ...func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	fail := make([]error, n)
	for i := range n {
		wg.Go(func() {
			for _, step := range steps {
				if fail[i] = step(i); fail[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for i, err := range fail {
		require.NoError(t, err, "peer %d", i)
	}
}

func floats(rng *rand.Rand, n int) []byte {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return dtype.AsBytes(v)
}

// Device tensors give the bits of host tensors: in place and not, whole and
// quantized, on one and on several connections, and mixed with a peer whose
// tensors are on the host.
func TestAllReduce(t *testing.T) {
	for _, pool := range []int{1, 3} {
		c := newCard(t, 2, device.Settings{Reduce: map[int]string{1: "host", 3: "device"}[pool]})
		comms := world(t, 3, func(o *core.Options) { o.PoolSize = pool })
		ctx := t.Context()
		for k, q := range []core.Quantize{{}, {}, {Algorithm: "minmax", Type: dtype.Uint8}} {
			for _, inPlace := range []bool{true, false} {
				rng := rand.New(rand.NewPCG(uint64(k), 7))
				const n = 100_001
				count := []int{n, 5, 20_001}[k]
				var src [3][]byte
				want := make([][]byte, 3)
				for i := range src {
					src[i] = floats(rng, count)
					want[i] = make([]byte, len(src[i]))
				}
				each(t, 3, func(i int) error {
					_, err := comms[i].AllReduce(ctx, core.Reduce{Tag: 1, Src: src[i], Dst: want[i], DType: dtype.Float32, Op: core.Avg, Quantize: q})
					return err
				})
				var from, to [2]core.DeviceBuffer
				for i := range from {
					from[i] = c.put(i, src[i])
					if to[i] = from[i]; !inPlace {
						to[i] = c.put(i, make([]byte, len(src[i])))
					}
				}
				each(t, 3, func(i int) error {
					if i == 2 {
						_, err := comms[i].AllReduce(ctx, core.Reduce{Tag: 1, Src: src[i], Dst: want[i], DType: dtype.Float32, Op: core.Avg, Quantize: q})
						return err
					}
					r := core.ReduceDevice(to[i], from[i], dtype.Float32, core.Avg)
					r.Tag, r.Quantize = 1, q
					_, err := comms[i].AllReduce(ctx, r)
					return err
				})
				for i := range from {
					require.True(t, bytes.Equal(want[2], c.get(to[i])), "%d connections, %+v, in place %v", pool, q, inPlace)
					c.free(from[i])
					if !inPlace {
						c.free(to[i])
					}
				}
			}
		}
		for _, comm := range comms {
			require.NoError(t, comm.Close())
		}
		c.close()
	}
}

// A shared state on devices is hashed there, and streamed from device to
// device; peers with host tensors take part.
func TestSharedState(t *testing.T) {
	c := newCard(t, 2, device.Settings{})
	comms := world(t, 3, nil)
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(1, 1))
	good, small := floats(rng, 30_000), floats(rng, 3)
	var big [2]core.DeviceBuffer
	for i := range big {
		content := good
		if i == 1 {
			content = make([]byte, len(good)) // outdated
		}
		big[i] = c.put(i, content)
	}
	host := append([]byte(nil), good...)
	states := make([]*core.SharedState, 3)
	for i := range states {
		states[i] = &core.SharedState{Revision: 1, Tensors: []core.Tensor{
			{Key: "small", Data: append([]byte(nil), small...), DType: dtype.Float32},
			{Key: "big", DType: dtype.Float32},
		}}
		if i < 2 {
			states[i].Tensors[1].Device = big[i]
		} else {
			states[i].Tensors[1].Data = host
		}
	}
	sync := func() (infos [3]core.SyncInfo) {
		each(t, 3, func(i int) (err error) {
			infos[i], err = comms[i].SyncSharedState(ctx, states[i], core.SyncOptions{})
			return err
		})
		return infos
	}
	infos := sync()
	require.Equal(t, []bool{false, true, false}, []bool{infos[0].Outdated, infos[1].Outdated, infos[2].Outdated})
	require.EqualValues(t, len(good), infos[1].RxBytes)
	require.True(t, bytes.Equal(good, c.get(big[1])))
	require.Equal(t, core.StateHash(states[2]), core.StateHash(states[1]))

	copy(host, make([]byte, 16)) // now the host's is the odd one
	for i := range states {
		states[i].Revision++
	}
	infos = sync()
	require.True(t, infos[2].Outdated)
	require.True(t, bytes.Equal(good, host))
	require.Positive(t, c.d.Launches()["hash_finish"])

	// A checkpoint holds what is on the device, and puts it back there.
	path, _, err := states[1].SaveCheckpoint(t.TempDir(), nil, 1)
	require.NoError(t, err)
	lost := c.put(0, make([]byte, len(good)))
	again := &core.SharedState{Tensors: []core.Tensor{
		{Key: "small", Data: make([]byte, len(small)), DType: dtype.Float32}, {Key: "big", DType: dtype.Float32, Device: lost},
	}}
	_, err = again.LoadCheckpoint(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(good, c.get(lost)))
	require.Equal(t, core.StateHash(states[1]), core.StateHash(again))
	loaded, err := checkpoint.Load(path)
	require.NoError(t, err)
	require.Equal(t, good, loaded.Tensors[1].Data)
	c.free(lost)
	_, err = again.LoadCheckpoint(path) // its memory is gone: half of it is overwritten
	require.Error(t, err)
	require.Equal(t, []string{"small", "big"}, again.Torn())

	states[0].Tensors[1].Data = host
	_, err = comms[0].SyncSharedState(ctx, states[0], core.SyncOptions{})
	require.ErrorIs(t, err, errs.InvalidArgument)
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.free(big[:]...)
	c.close()
}

// A device that fails for good ends the operations that use it, with its own
// error for its peer and an ordinary abort for the others, whose tensors are
// restored; the peer goes on with host tensors.
func TestLostDevice(t *testing.T) {
	c := newCard(t, 2, device.Settings{})
	only := cudatest.Interpreter(t, c.d)
	comms := world(t, 2, nil)
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(1, 1))
	a, b := floats(rng, 50_000), floats(rng, 50_000)
	x, y := c.put(0, a), c.put(1, b)
	require.True(t, bytes.Equal(a, c.get(x)))
	require.True(t, bytes.Equal(b, c.get(y)))
	only.Fault(40, driver.LaunchFailed) // in the middle
	fail := make([]error, 2)
	each(t, 2, func(i int) error {
		_, fail[i] = comms[i].AllReduce(ctx, core.ReduceDevice([]core.DeviceBuffer{x, y}[i], []core.DeviceBuffer{x, y}[i], dtype.Float32, core.Sum))
		return nil
	})
	lost := c.p.Stats().Lost
	require.Len(t, lost, 1)
	other := 1 - lost[0]
	require.ErrorIs(t, fail[lost[0]], errs.DeviceFailed)
	require.ErrorContains(t, fail[lost[0]], "CUDA_ERROR_LAUNCH_FAILED")
	require.ErrorIs(t, fail[other], errs.RankConnectionLost)
	require.True(t, bytes.Equal([][]byte{a, b}[other], c.get([]core.DeviceBuffer{x, y}[other])), "restored")

	_, err := comms[lost[0]].AllReduceAsync(ctx, core.ReduceDevice([]core.DeviceBuffer{x, y}[lost[0]], []core.DeviceBuffer{x, y}[lost[0]], dtype.Float32, core.Sum))
	require.ErrorIs(t, err, errs.DeviceFailed)
	require.ErrorContains(t, err, "failed permanently")
	each(t, 2, func(i int) error { // with host tensors it goes on
		v := []float32{1, 2, 3}
		_, err := core.AllReduceSlice(ctx, comms[i], v, v, core.Sum)
		require.Equal(t, []float32{2, 4, 6}, v)
		return err
	})
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	require.NoError(t, c.p.Close())
}

// Aborts, wherever they hit, leave tensors in place bit by bit as they were,
// and nothing on the device.
func TestAborts(t *testing.T) {
	c := newCard(t, 1, device.Settings{})
	comms := world(t, 2, nil)
	rng := rand.New(rand.NewPCG(1, 1))
	content := [2][]byte{floats(rng, 40_000), floats(rng, 40_000)}
	x := [2]core.DeviceBuffer{c.put(0, content[0]), c.put(0, content[1])}
	aborted := 0
	for k := range 12 {
		handles := make([]*core.Handle, 2)
		each(t, 2, func(i int) (err error) {
			handles[i], err = comms[i].AllReduceAsync(t.Context(), core.ReduceDevice(x[i], x[i], dtype.Float32, core.Max))
			return err
		})
		for range k * 50 { // some way into it
			runtime.Gosched()
		}
		fail := make([]error, 2)
		each(t, 2, func(i int) error {
			wait, stop := context.WithCancel(t.Context())
			defer stop()
			if i == 0 {
				handles[0].Cancel()
			}
			_, fail[i] = handles[i].Wait(wait)
			return nil
		})
		if fail[1] != nil {
			aborted++
			for i := range x {
				require.Error(t, fail[i])
				require.True(t, bytes.Equal(content[i], c.get(x[i])), "round %d, peer %d", k, i)
			}
			continue
		}
		// It was too late for the others.
		result := c.get(x[1])
		if mine := c.get(x[0]); !bytes.Equal(content[0], mine) {
			require.True(t, bytes.Equal(result, mine))
			content[0] = mine
		}
		content[1] = result
	}
	require.Positive(t, aborted)
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.free(x[:]...)
	c.close()
}

// What a caller gets wrong is said at the call, and costs the others nothing.
func TestBadCalls(t *testing.T) {
	c := newCard(t, 1, device.Settings{})
	comms := world(t, 1, nil)
	host := make([]byte, 64)
	x := c.put(0, host)
	wrong := x
	wrong.Device = 5
	for _, r := range []core.Reduce{
		core.ReduceDevice(wrong, wrong, dtype.Float32, core.Sum),
		core.ReduceDevice(core.DeviceBuffer{Platform: "rocm", Ptr: 1, Bytes: 64}, core.DeviceBuffer{Platform: "rocm", Ptr: 1, Bytes: 64}, dtype.Float32, core.Sum),
		{DeviceSrc: x, Dst: host, DType: dtype.Float32, Op: core.Sum},
		core.ReduceDevice(x, core.DeviceBuffer{Platform: device.CUDA, Ptr: x.Ptr + 4, Bytes: 60}, dtype.Float32, core.Sum),
	} {
		_, err := comms[0].AllReduce(t.Context(), r)
		require.ErrorIs(t, err, errs.InvalidArgument)
	}
	_, err := comms[0].AllReduce(t.Context(), core.ReduceDevice(x, x, dtype.Float32, core.Sum))
	require.ErrorIs(t, err, errs.TooFewPeers)
	require.NoError(t, comms[0].Close())
	c.free(x)
	c.close()
}

// A synchronisation that waits for the trainer's own stream ends with its
// context, and with the session, before this peer has voted.
func TestStreamThatNeverEnds(t *testing.T) {
	k := newCard(t, 1, device.Settings{})
	x := k.put(0, make([]byte, 5000))
	release := cudatest.Interpreter(t, k.d).Hold(driver.Stream(x.Stream))
	for what, end := range map[string]func(cancel func(), c *core.Communicator){
		"context": func(cancel func(), _ *core.Communicator) { cancel() },
		"session": func(_ func(), c *core.Communicator) { c.Close() },
	} {
		comm := world(t, 1, nil)[0]
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		before := k.d.Calls()["cuEventQuery"]
		over := make(chan error, 1)
		go func() {
			st := &core.SharedState{Tensors: []core.Tensor{{Key: "w", DType: dtype.Uint8, Device: x}}}
			_, err := comm.SyncSharedState(ctx, st, core.SyncOptions{})
			over <- err
		}()
		require.Eventually(t, func() bool { return k.d.Calls()["cuEventQuery"] > before+3 }, patience, time.Millisecond)
		end(cancel, comm)
		err := <-over
		require.ErrorIs(t, err, map[string]errs.Code{"context": errs.Canceled, "session": errs.Closed}[what], what)
		cancel()
	}
	release()
	k.free(x)
	k.close()
}

// What a device encodes is what the host would send, and crosses the bus in wire
// form, once the device's kernels are compiled.
func TestQuantizedOnTheDevice(t *testing.T) {
	const count, peers = 40_000, 2
	for k, q := range []core.Quantize{{Algorithm: "minmax", Type: dtype.Uint8}, {Algorithm: "zeropoint", Type: dtype.Int16}} {
		for _, pool := range []int{1, 3} {
			c := newCard(t, peers, device.Settings{})
			comms := world(t, peers, func(o *core.Options) { o.PoolSize = pool })
			rng := rand.New(rand.NewPCG(uint64(k), 7))
			var src, want [peers][]byte
			var from, to [peers]core.DeviceBuffer
			for i := range peers {
				src[i], want[i] = floats(rng, count), make([]byte, 4*count)
				from[i], to[i] = c.put(i, src[i]), c.put(i, make([]byte, 4*count))
			}
			reduce := func(call func(i int) core.Reduce) {
				each(t, peers, func(i int) error {
					r := call(i)
					r.Tag, r.Quantize = 1, q
					_, err := comms[i].AllReduce(t.Context(), r)
					return err
				})
			}
			reduce(func(i int) core.Reduce {
				return core.Reduce{Src: src[i], Dst: want[i], DType: dtype.Float32, Op: core.Sum}
			})
			// The own half in wire form and the other one; bounds, or sums of each 2048 elements.
			half := 2 * count
			params := map[string]int{"minmax": 24, "zeropoint": 16 * 10}[q.Algorithm]
			bus := peers * (params + half*q.Type.Size()/4 + half)
			for began := time.Now(); ; {
				before, _ := c.d.Copied()
				reduce(func(i int) core.Reduce { return core.ReduceDevice(to[i], from[i], dtype.Float32, core.Sum) })
				after, _ := c.d.Copied()
				for i := range peers {
					require.True(t, bytes.Equal(want[i], c.get(to[i])), "%+v", q)
				}
				if after-before == bus {
					break
				}
				require.Less(t, time.Since(began), patience, "%d bytes, not %d", after-before, bus)
			}
			c.free(append(from[:], to[:]...)...)
			for _, comm := range comms {
				require.NoError(t, comm.Close())
			}
			c.close()
		}
	}
}

// The goroutine that launches asks about the buffers and marks the streams. It
// queues nothing else, allocates nothing and waits for nothing of the driver's,
// be it the first operation or a later one, quantized or not.
func TestLaunchMakesNoCalls(t *testing.T) {
	const bytes = 64 << 10
	cheap := []string{
		"cuPointerGetAttributes", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
		"cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing", "cuEventRecord",
	}
	c := newCard(t, 1, device.Settings{})
	only := cudatest.Interpreter(t, c.d)
	comms := world(t, 2, nil)
	x := [2]core.DeviceBuffer{c.put(0, make([]byte, bytes)), c.put(0, make([]byte, bytes))}
	for k, q := range []core.Quantize{{}, {Algorithm: "minmax", Type: dtype.Uint8}, {}, {Algorithm: "minmax", Type: dtype.Uint8}} {
		runtime.LockOSThread()
		r := core.ReduceDevice(x[0], x[0], dtype.Float32, core.Sum)
		r.Quantize = q
		stop := only.Watch()
		h, err := comms[0].AllReduceAsync(t.Context(), r) // the other peer does not vote yet
		calls := stop()
		runtime.UnlockOSThread()
		require.NoError(t, err)
		require.Equal(t, 1, calls["cuEventRecord"], "the mark")
		for _, call := range cheap {
			delete(calls, call)
		}
		if k == 0 { // of the process
			for _, call := range []string{"cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuEventCreate"} {
				delete(calls, call)
			}
		}
		require.Empty(t, calls, "launch %d", k)
		each(t, 2, func(i int) error {
			if i == 0 {
				_, err := h.Wait(t.Context())
				return err
			}
			r := core.ReduceDevice(x[1], x[1], dtype.Float32, core.Sum)
			r.Quantize = q
			_, err := comms[1].AllReduce(t.Context(), r)
			return err
		})
	}
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.free(x[:]...)
	c.close()
}
