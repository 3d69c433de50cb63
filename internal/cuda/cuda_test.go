package cuda

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// trainer is somebody who uses the device, too.
type trainer struct {
	t        testing.TB
	d        cudatest.Device
	p        *Platform
	contexts []driver.Context // primary ones
}

func newTrainer(t testing.TB, o ptxtest.Options, s device.Settings) *trainer {
	d := cudatest.Open(t, o)
	p := On(d, s)
	p.pieces = 1000 // so that a small tensor has many
	r := &trainer{t: t, d: d, p: p}
	for dev := range max(o.Devices, 1) {
		c, err := d.Retain(dev)
		require.NoError(t, err)
		r.contexts = append(r.contexts, c)
	}
	return r
}

// interpreter is the driver, for tests of what no other one can do: they begin
// with it.
func (r *trainer) interpreter() *ptxtest.Device { return cudatest.Interpreter(r.t, r.d) }

// on calls f with the primary context of a device current, as a framework has it.
func (r *trainer) on(dev int, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(r.t, r.d.Push(r.contexts[dev]))
	f()
	top, err := r.d.Pop()
	require.NoError(r.t, err)
	require.Equal(r.t, r.contexts[dev], top)
}

// tensor puts b on a device.
func (r *trainer) tensor(dev int, b []byte) (out device.Buffer) {
	r.on(dev, func() {
		p, err := r.d.Alloc(uint64(max(len(b), 1)))
		require.NoError(r.t, err)
		require.NoError(r.t, r.d.CopyToDevice(p, b, 0))
		require.NoError(r.t, r.d.StreamSynchronize(0))
		out = device.Buffer{Platform: device.CUDA, Ptr: uint64(p), Bytes: len(b), Device: dev}
	})
	return out
}

func (r *trainer) content(b device.Buffer) []byte {
	out := make([]byte, b.Bytes)
	r.on(b.Device, func() {
		require.NoError(r.t, r.d.CopyToHost(out, driver.Ptr(b.Ptr), 0))
		require.NoError(r.t, r.d.StreamSynchronize(0))
	})
	return out
}

func (r *trainer) free(list ...device.Buffer) {
	for _, b := range list {
		r.on(b.Device, func() { require.NoError(r.t, r.d.Free(driver.Ptr(b.Ptr))) })
	}
}

// close ends the platform; nothing of it may be left.
func (r *trainer) close(own ...device.Buffer) {
	r.free(own...)
	require.NoError(r.t, r.p.Close())
	for dev := range r.contexts {
		require.NoError(r.t, r.d.Release(dev))
	}
	require.Equal(r.t, ptxtest.Counts{}, r.d.Live())
}

func random(n int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// hash hashes one buffer.
func (r *trainer) hash(ctx context.Context, b device.Buffer) (uint32, error) {
	sums, failed, err := r.p.HashAll(ctx, []device.Buffer{b})
	require.Zero(r.t, failed)
	if err != nil {
		return 0, err
	}
	return sums[0], nil
}

// Hashes on the device are those of the processor, for lengths and addresses
// of every kind.
func TestHash(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	b := random(9000, 1)
	x := r.tensor(0, b)
	for _, n := range []int{0, 1, 15, 16, 17, 255, 4096, 8190} {
		for _, off := range []int{0, 1, 4, 16} {
			part := x
			part.Ptr, part.Bytes = x.Ptr+uint64(off), n
			sum, err := r.hash(t.Context(), part)
			require.NoError(t, err)
			require.Equal(t, digest.SimpleHash(b[off:off+n]), sum, "%d bytes at %d", n, off) // S1-22, S2-13
		}
	}
	r.close(x)
}

// A tensor passes through the ring of slots in both directions, whatever its
// size, behind what the caller has queued.
func TestReadAndWrite(t *testing.T) {
	for seed := range uint64(3) {
		r := newTrainer(t, ptxtest.Options{Seed: seed}, device.Settings{})
		for _, n := range []int{0, 1, 999, 1000, 1001, 4000, 12345} {
			b := random(n, seed)
			from, to := r.tensor(0, make([]byte, n)), r.tensor(0, make([]byte, n))
			r.on(0, func() { // what the trainer writes comes late
				s, err := r.d.StreamCreate()
				require.NoError(t, err)
				from.Stream, to.Stream = uint64(s), uint64(s)
				require.NoError(t, r.d.CopyToDevice(driver.Ptr(from.Ptr), b, s))
				require.NoError(t, r.d.CopyToDevice(driver.Ptr(to.Ptr), random(n, 77), s))
			})
			src, err := r.p.Read(t.Context(), from)
			require.NoError(t, err)
			dst, err := r.p.Write(t.Context(), to)
			require.NoError(t, err)
			for {
				part, err := src.Next()
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				for len(part) > 0 { // what a network gives at a time is anybody's guess
					room, err := dst.Room()
					require.NoError(t, err)
					k := copy(room[:1+int(part[0])%len(room)], part)
					require.NoError(t, dst.Commit(k))
					part = part[k:]
				}
			}
			src.Close()
			require.NoError(t, dst.Close())
			r.on(0, func() { require.NoError(t, r.d.StreamSynchronize(driver.Stream(to.Stream))) })
			require.True(t, bytes.Equal(b, r.content(to)), "%d bytes", n)
			r.on(0, func() { require.NoError(t, r.d.StreamDestroy(driver.Stream(from.Stream))) })
			r.free(from, to)
		}
		r.close()
	}
}

// A buffer that is not a tensor of the device is refused with the reason and what to do.
func TestBadBuffers(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{Devices: 2}, device.Settings{})
	only := r.interpreter()
	good := r.tensor(1, random(64, 1))
	gone := r.tensor(1, random(64, 1))
	r.free(gone)
	var pinned []byte
	var foreign device.Buffer
	r.on(0, func() {
		var err error
		pinned, err = r.d.HostAlloc(64)
		require.NoError(t, err)
		c := only.NewContext(0)
		require.NoError(t, r.d.Push(c))
		p, err := r.d.Alloc(64)
		require.NoError(t, err)
		foreign = device.Buffer{Platform: device.CUDA, Ptr: uint64(p), Bytes: 64}
		_, err = r.d.Pop()
		require.NoError(t, err)
	})
	host := make([]byte, 64)
	with := func(change func(b *device.Buffer)) device.Buffer {
		b := good
		change(&b)
		return b
	}
	for what, b := range map[string]device.Buffer{
		"this process has the devices 0 to 1":     with(func(b *device.Buffer) { b.Device = 2 }),
		"the memory lies on device 1":             with(func(b *device.Buffer) { b.Device = 0 }),
		"the allocation ends 64 bytes after":      with(func(b *device.Buffer) { b.Bytes = 65 }),
		"the size is negative":                    with(func(b *device.Buffer) { b.Bytes = -1 }),
		"the address is impossible":               with(func(b *device.Buffer) { b.Ptr = 0 }),
		"this is pinned memory of the host":       {Platform: device.CUDA, Ptr: uint64(addressOf(pinned)), Bytes: 64},
		"not device memory, or it has been freed": {Platform: device.CUDA, Ptr: uint64(addressOf(host)), Bytes: 64},
		"pass a tensor of the device that still":  gone,
		"the memory belongs to another context":   foreign,
		"as frameworks do":                        foreign,
	} {
		_, err := r.p.Check(b)
		require.ErrorIs(t, err, errs.InvalidArgument, what)
		require.ErrorContains(t, err, what)
		_, err = r.hash(t.Context(), b)
		require.ErrorIs(t, err, errs.InvalidArgument, what)
		_, err = r.p.Read(t.Context(), b)
		require.ErrorIs(t, err, errs.InvalidArgument, what)
		_, err = r.p.Write(t.Context(), b)
		require.ErrorIs(t, err, errs.InvalidArgument, what)
		_, err = r.p.Stage(device.Task{Source: b, Target: b})
		require.ErrorIs(t, err, errs.InvalidArgument, what)
		_, err = r.p.Stage(device.Task{Source: good, Target: b})
		require.ErrorIs(t, err, errs.InvalidArgument, what)
	}
	got, err := r.p.Check(with(func(b *device.Buffer) { b.Device = device.Any }))
	require.NoError(t, err)
	require.Equal(t, 1, got.Device)
	r.d.Fail("cuPointerGetAttributes", 1, driver.InvalidContext)
	_, err = r.p.Check(good)
	require.NoError(t, err, "a driver that answers within a context only")
	dev, ok := r.p.Identify(good.Ptr)
	require.True(t, ok)
	require.Equal(t, 1, dev)
	_, ok = r.p.Identify(uint64(addressOf(host)))
	require.False(t, ok)
	runtime.KeepAlive(host)
}

// A look at an address opens no driver: it asks the one that the process has
// loaded, if it has, and otherwise nobody.
func TestIdentifyOpensNothing(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{})
	var loaded driver.Driver
	p := New(Config{
		Open:    func() (driver.Driver, error) { t.Error("opened"); return d, nil },
		Present: func() (driver.Driver, bool) { return loaded, loaded != nil },
	})
	trainer := newTrainer(t, ptxtest.Options{}, device.Settings{})
	trainer.d = d
	c, err := d.Retain(0)
	require.NoError(t, err)
	trainer.contexts = []driver.Context{c}
	x := trainer.tensor(0, random(64, 1))
	_, ok := p.Identify(x.Ptr)
	require.False(t, ok)
	_, err = p.Check(x)
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorContains(t, err, "the process has not loaded the NVIDIA driver")
	require.Zero(t, d.Calls()["cuPointerGetAttributes"])
	loaded = ptxtest.New(ptxtest.Options{Init: driver.NotInitialized})
	_, ok = p.Identify(x.Ptr)
	require.False(t, ok, "nobody has initialised it")
	loaded = d
	dev, ok := p.Identify(x.Ptr)
	require.True(t, ok)
	require.Zero(t, dev)
	require.Zero(t, d.Calls()["cuDeviceGetCount"])
}

// homeless answers for one address that it is managed and prefers the host.
type homeless struct {
	driver.Driver
	ptr uint64
}

func (h *homeless) Pointer(p driver.Ptr) (driver.Pointer, error) {
	known, err := h.Driver.Pointer(p)
	if uint64(p) == h.ptr {
		known.Kind, known.Device = driver.Managed, -1
	}
	return known, err
}

// Managed memory that prefers the host is used on the device that is named, and
// refused if none is.
func TestManagedMemoryOnTheHost(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{Devices: 2}, device.Settings{})
	content := random(64, 1)
	x := r.tensor(1, content)
	p := On(&homeless{r.d, x.Ptr}, device.Settings{})
	sums, _, err := p.HashAll(t.Context(), []device.Buffer{x})
	require.NoError(t, err)
	require.Equal(t, []uint32{digest.SimpleHash(content)}, sums)
	x.Device = device.Any
	_, err = p.Check(x)
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorContains(t, err, "managed memory that prefers the host")
	require.ErrorContains(t, err, "name the device")
	require.NoError(t, p.Close())
	x.Device = 1
	r.close(x)
}

// A stream of another device is the caller's mistake, whichever call of the
// driver finds it out.
func TestStreamOfAnotherDevice(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{Devices: 2}, device.Settings{})
	x := r.tensor(0, random(64, 1))
	var foreign driver.Stream
	r.on(1, func() {
		var err error
		foreign, err = r.d.StreamCreate()
		require.NoError(t, err)
	})
	refused := func(b device.Buffer) {
		_, err := r.p.Stage(device.Task{Source: b, Target: b, DType: dtype.Uint8, Op: dtype.Sum})
		require.ErrorIs(t, err, errs.InvalidArgument)
		require.ErrorContains(t, err, "the stream is not one of device 0")
		require.ErrorContains(t, err, "pass the stream of the tensor's own device")
	}
	wrong := x
	wrong.Stream = uint64(foreign)
	refused(wrong)
	_, err := r.p.Check(wrong)
	require.ErrorIs(t, err, errs.InvalidArgument)
	r.d.Fail("cuEventRecord", 1, driver.InvalidHandle)
	refused(x)
	r.on(1, func() { require.NoError(t, r.d.StreamDestroy(foreign)) })
	r.close(x)
}

// Without a driver or a device everything says so, and nothing hangs or panics.
func TestNothingThere(t *testing.T) {
	b := device.Buffer{Platform: device.CUDA, Ptr: 4096, Bytes: 64}
	none := New(Config{Open: func() (driver.Driver, error) { return nil, errors.New("libcuda.so.1: no such file") }})
	empty := On(ptxtest.New(ptxtest.Options{Devices: -1}), device.Settings{})
	broken := On(ptxtest.New(ptxtest.Options{Init: driver.SystemNotReady}), device.Settings{})
	for _, c := range []struct {
		p    *Platform
		want string
	}{{none, "libcuda.so.1: no such file"}, {empty, "CUDA_ERROR_NO_DEVICE"}, {broken, "CUDA_ERROR_SYSTEM_NOT_READY"}} {
		require.ErrorContains(t, c.p.Probe(), c.want)
		_, err := c.p.Check(b)
		require.ErrorIs(t, err, errs.DeviceFailed)
		require.ErrorContains(t, err, c.want)
		_, err = c.p.Stage(device.Task{Source: b, Target: b})
		require.ErrorIs(t, err, errs.DeviceFailed)
		_, ok := c.p.Identify(4096)
		require.False(t, ok)
		require.Zero(t, c.p.Devices())
		require.NoError(t, c.p.Close())
	}
	require.ErrorIs(t, none.Configure(device.Settings{Reduce: "abacus"}), errs.InvalidConfig)
	require.ErrorIs(t, none.Configure(device.Settings{Staging: -1}), errs.InvalidConfig)
}

// exercise uses everything once and reports the errors.
func exercise(t testing.TB, r *trainer, x device.Buffer) (list []error) {
	n := x.Bytes
	if s, err := r.p.Stage(device.Task{Source: x, Target: x, DType: dtype.Uint8, Op: dtype.Sum}); err != nil {
		list = append(list, err)
	} else {
		<-s.(*staging).ready // so that calls come in the same order
		w := newWatcher()
		s.Begin([]device.Range{{From: 0, To: n}}, w)
		var ended error
		for over := false; !over; {
			select {
			case k := <-w.arrived:
				if k == n {
					from, to := s.Memory()
					copy(to, from)
					if err := s.Reduce(0, n, from, 2); err != nil {
						list = append(list, err)
						s.Stop()
						continue
					}
					s.Put(0, n)
				}
			case ended = <-w.ended:
				over = true
			case <-time.After(time.Minute):
				t.Fatal("hangs")
			}
		}
		list = append(list, ended, s.Restore())
		s.Release()
	}
	list = append(list, exerciseApart(t, r, x)...)
	_, err := r.hash(t.Context(), x)
	list = append(list, err)
	if src, err := r.p.Read(t.Context(), x); err != nil {
		list = append(list, err)
	} else {
		for err == nil {
			_, err = src.Next()
		}
		if err != io.EOF {
			list = append(list, err)
		}
		src.Close()
	}
	if dst, err := r.p.Write(t.Context(), x); err != nil {
		list = append(list, err)
	} else {
		for err == nil {
			var room []byte
			if room, err = dst.Room(); err == nil && len(room) == 0 {
				break
			}
			if err == nil {
				err = dst.Commit(len(room))
			}
		}
		list = append(list, err, dst.Close())
	}
	return slices.DeleteFunc(list, func(err error) bool { return err == nil })
}

// Whichever call of the driver fails, the failure is a typed error with the
// driver's inside, nothing hangs, nothing leaks, and the next operation works.
// A failure that is for good ends the device for everything that follows, with
// the first cause.
func TestEveryCallFails(t *testing.T) {
	probe := newTrainer(t, ptxtest.Options{}, device.Settings{})
	x := probe.tensor(0, random(5000, 1))
	before := probe.d.Calls()
	require.Empty(t, exercise(t, probe, x))
	after := probe.d.Calls()
	probe.close(x)
	for _, call := range slices.Sorted(maps.Keys(after)) {
		n := after[call] - before[call]
		if n == 0 || call == "cuPointerGetAttributes" || call == "cuCtxPopCurrent_v2" || call == "cuMemHostAlloc" {
			continue
		}
		for _, result := range []driver.Result{driver.OutOfMemory, driver.IllegalAddress} {
			for _, nth := range slices.Compact([]int{1, (n + 1) / 2, n}) {
				r := newTrainer(t, ptxtest.Options{}, device.Settings{})
				x := r.tensor(0, random(5000, 1))
				r.d.Fail(call, nth, result)
				list := exercise(t, r, x)
				require.NotEmpty(t, list, "%s, call %d of %d", call, nth, n)
				require.ErrorIs(t, list[0], errs.DeviceFailed, "%s, call %d of %d", call, nth, n)
				require.ErrorIs(t, list[0], &driver.Error{Result: result}, "%s, call %d of %d", call, nth, n)
				if result == driver.OutOfMemory {
					if call != "cuDeviceGetCount" { // the driver is opened once
						require.Empty(t, exercise(t, r, x), "%s: it goes on", call)
					}
					r.close(x)
					continue
				}
				require.NoError(t, r.p.Close())
			}
		}
	}
}

// A kernel of the trainer that fails for good is told apart from an error of
// ours: what is under way ends with it, later operations fail at once.
func TestLostDevice(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{Devices: 2}, device.Settings{})
	only := r.interpreter()
	x, y := r.tensor(0, random(5000, 1)), r.tensor(1, random(5000, 1))
	s, err := r.p.Stage(device.Task{Source: x, Target: x, DType: dtype.Uint8, Op: dtype.Sum})
	require.NoError(t, err)
	only.Fault(3, driver.LaunchFailed)
	w := newWatcher()
	s.Begin([]device.Range{{From: 0, To: 5000}}, w)
	err = w.end(t)
	require.ErrorIs(t, err, errs.DeviceFailed)
	require.ErrorIs(t, err, &driver.Error{Result: driver.LaunchFailed})
	s.Release()
	require.Equal(t, []int{0}, r.p.Stats().Lost)
	_, err = r.p.Stage(device.Task{Source: x, Target: x})
	require.ErrorIs(t, err, errs.DeviceFailed)
	require.ErrorContains(t, err, "device 0 has failed permanently")
	require.Empty(t, exercise(t, r, y), "the other device works")
	require.NoError(t, r.p.Close())
}

// The trainer's own context is current before and after, whatever was done.
func TestContextIsLeftAlone(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{Devices: 2}, device.Settings{})
	only := r.interpreter()
	x := r.tensor(1, random(5000, 1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mine := only.NewContext(0)
	require.NoError(t, r.d.Push(mine))
	require.Empty(t, exercise(t, r, x))
	r.d.Fail("cuMemcpyDtoHAsync_v2", 1, driver.OutOfMemory)
	require.NotEmpty(t, exercise(t, r, x))
	now, err := r.d.Current()
	require.NoError(t, err)
	require.Equal(t, mine, now)
	_, err = r.d.Pop()
	require.NoError(t, err)
	now, err = r.d.Current()
	require.NoError(t, err)
	require.Zero(t, now)
}
