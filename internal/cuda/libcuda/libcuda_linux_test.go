//go:build !nocuda && (amd64 || arm64)

package libcuda

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// standin is a library that takes the driver's place.
type standin struct {
	t    *testing.T
	path string
	fn   map[string]uintptr
}

func build(t *testing.T, flags ...string) string {
	out := filepath.Join(t.TempDir(), "standin.so")
	cmd := exec.Command("gcc", append(flags, "-shared", "-fPIC", "-O1", "-w", "-o", out, "testdata/standin.c")...)
	b, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", b)
	return out
}

func newStandin(t *testing.T) *standin { return standinAt(t, build(t)) }

func standinAt(t *testing.T, path string) *standin {
	s := &standin{t: t, path: path, fn: map[string]uintptr{}}
	lib, err := openLibrary(s.path)
	require.NoError(t, err)
	for _, name := range []string{"reset", "count", "name", "arg", "seen", "version"} {
		s.fn[name], err = symbol(lib, "standin_"+name)
		require.NoError(t, err)
	}
	return s
}

// fail forgets all calls and makes the call of that name answer r.
func (s *standin) fail(name string, r driver.Result) {
	b := append([]byte(name), 0)
	purego.SyscallN(s.fn["reset"], uintptr(unsafe.Pointer(&b[0])), uintptr(r))
}

func (s *standin) version(v int) { purego.SyscallN(s.fn["version"], uintptr(v)) }

type recorded struct {
	name string
	args [11]uint64
	seen []byte
}

func (s *standin) calls() (list []recorded) {
	n, _, _ := purego.SyscallN(s.fn["count"])
	for i := range int(uint32(n)) {
		var r recorded
		p, _, _ := purego.SyscallN(s.fn["name"], uintptr(i))
		name := make([]byte, 40)
		copy(name, unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), 40))
		r.name = text(name)
		for k := range r.args {
			a, _, _ := purego.SyscallN(s.fn["arg"], uintptr(i), uintptr(k))
			r.args[k] = uint64(a)
		}
		r.seen = make([]byte, 256)
		purego.SyscallN(s.fn["seen"], uintptr(i), uintptr(unsafe.Pointer(&r.seen[0])))
		list = append(list, r)
	}
	return list
}

// out stands for an argument that is the address of something the call writes.
const out = ^uint64(0)

// driverCall is a call of the interface and what it makes of it: the call of
// the library, with its arguments, and what it returns.
type driverCall struct {
	name string
	args []uint64
	call func() any
	want any
	// before and after are the other calls that it makes.
	before, after []string
}

// driverCalls has one for every method of d.
func driverCalls(t *testing.T, d driver.Driver) []driverCall {
	host := []byte{1, 2, 3, 4, 5}
	ok := func(err error) any {
		if err != nil {
			return err
		}
		return nil
	}
	one := func(v any, err error) any {
		if err != nil {
			return err
		}
		return v
	}
	return []driverCall{
		{"cuDriverGetVersion", []uint64{out}, func() any { return one(d.Version()) }, 12040, nil, nil},
		{"cuDeviceGetCount", []uint64{out}, func() any { return one(d.Devices()) }, 3, nil, nil},
		{"cuDeviceGetName", []uint64{out, 255, 71}, func() any { return one(d.DeviceName(1)) }, "Stand-in 9000", []string{"cuDeviceGet"}, nil},
		{"cuDeviceGetAttribute", []uint64{out, 16, 71}, func() any { return one(d.DeviceAttribute(driver.Processors, 1)) }, 1016, []string{"cuDeviceGet"}, nil},
		{"cuDevicePrimaryCtxRetain", []uint64{out, 72}, func() any { return one(d.Retain(2)) }, driver.Context(0xc0de0001), []string{"cuDeviceGet"}, nil},
		{"cuDevicePrimaryCtxRelease_v2", []uint64{72}, func() any { return ok(d.Release(2)) }, nil, []string{"cuDeviceGet"}, nil},
		{"cuCtxPushCurrent_v2", []uint64{0xc0de0001}, func() any { return ok(d.Push(0xc0de0001)) }, nil, nil, nil},
		{"cuCtxPopCurrent_v2", []uint64{out}, func() any { return one(d.Pop()) }, driver.Context(0xc0de0002), nil, nil},
		{"cuCtxGetCurrent", []uint64{out}, func() any { return one(d.Current()) }, driver.Context(0xc0de0003), nil, nil},
		{"cuThreadExchangeStreamCaptureMode", []uint64{out}, func() any { return one(d.ExchangeCaptureMode(driver.CaptureRelaxed)) }, driver.CaptureThreadLocal, nil, nil},
		{"cuModuleLoadDataEx", []uint64{out, out, 2, out, out}, func() any {
			m, log, err := d.ModuleLoad([]byte(".version 6.0"))
			require.Empty(t, log)
			return one(m, err)
		}, driver.Module(0xc0de0004), nil, nil},
		{"cuModuleUnload", []uint64{9}, func() any { return ok(d.ModuleUnload(9)) }, nil, nil, nil},
		{"cuModuleGetFunction", []uint64{out, 9, out}, func() any { return one(d.Function(9, "hash_blocks")) }, driver.Function(0xc0de0005), nil, nil},
		{"cuLaunchKernel", []uint64{8, 1, 2, 3, 4, 5, 6, 7, 10, 0, out}, func() any {
			return ok(d.Launch(8, driver.Dim{X: 1, Y: 2, Z: 3}, driver.Dim{X: 4, Y: 5, Z: 6}, 7, 10, []byte{9, 8, 7}))
		}, nil, nil, nil},
		{"cuMemGetInfo_v2", []uint64{out, out}, func() any {
			free, total, err := d.MemInfo()
			return one([2]uint64{free, total}, err)
		}, [2]uint64{5 << 33, 6 << 33}, nil, nil},
		{"cuMemAlloc_v2", []uint64{out, 6 << 32}, func() any { return one(d.Alloc(6 << 32)) }, driver.Ptr(0x700000000000), nil, nil},
		{"cuMemFree_v2", []uint64{0x700000000000}, func() any { return ok(d.Free(0x700000000000)) }, nil, nil, nil},
		{"cuMemHostAlloc", []uint64{out, 4096, 1}, func() any {
			b, err := d.HostAlloc(4096)
			if err == nil {
				b[4095] = 1
			}
			return one(len(b), err)
		}, 4096, nil, nil},
		{"cuMemFreeHost", []uint64{out}, func() any { return ok(d.HostFree(host)) }, nil, nil, nil},
		{"cuPointerGetAttributes", []uint64{6, out, out, 1<<40 + 64}, func() any { return one(d.Pointer(1<<40 + 64)) }, driver.Pointer{
			Kind: driver.Device, Device: 1, Context: 0xc0de0006, Base: 1<<40 + 48, Bytes: 8 << 32,
		}, nil, nil},
		{"cuMemcpyHtoDAsync_v2", []uint64{0x700000000000, out, 5, 10}, func() any { return ok(d.CopyToDevice(0x700000000000, host, 10)) }, nil, nil, nil},
		{"cuMemcpyDtoHAsync_v2", []uint64{out, 0x700000000000, 5, 10}, func() any { return ok(d.CopyToHost(make([]byte, 5), 0x700000000000, 10)) }, nil, nil, nil},
		{"cuMemcpyDtoDAsync_v2", []uint64{1, 2, 6 << 32, 10}, func() any { return ok(d.CopyOnDevice(1, 2, 6<<32, 10)) }, nil, nil, nil},
		{"cuMemsetD8Async", []uint64{1, 0xab, 6 << 32, 10}, func() any { return ok(d.Fill(1, 0xab, 6<<32, 10)) }, nil, nil, nil},
		{"cuStreamCreate", []uint64{out, 1}, func() any { return one(d.StreamCreate()) }, driver.Stream(0xc0de0007), nil, nil},
		{"cuStreamDestroy_v2", []uint64{10}, func() any { return ok(d.StreamDestroy(10)) }, nil, nil, nil},
		{"cuStreamSynchronize", []uint64{10}, func() any { return ok(d.StreamSynchronize(10)) }, nil, nil, nil},
		{"cuStreamWaitEvent", []uint64{10, 11, 0}, func() any { return ok(d.StreamWait(10, 11)) }, nil, nil, nil},
		{"cuStreamIsCapturing", []uint64{10, out}, func() any { return one(d.StreamCapturing(10)) }, true, nil, nil},
		{"cuStreamIsCapturing", []uint64{77, out}, func() any { return one(d.StreamCapturing(77)) }, true, nil, nil},
		{"cuStreamIsCapturing", []uint64{11, out}, func() any { return one(d.StreamCapturing(11)) }, false, nil, nil},
		{"cuEventCreate", []uint64{out, 3}, func() any { return one(d.EventCreate(false)) }, driver.Event(0xc0de0008), nil, nil},
		{"cuEventCreate", []uint64{out, 1}, func() any { return one(d.EventCreate(true)) }, driver.Event(0xc0de0008), nil, nil},
		{"cuEventDestroy_v2", []uint64{11}, func() any { return ok(d.EventDestroy(11)) }, nil, nil, nil},
		{"cuEventRecord", []uint64{11, 10}, func() any { return ok(d.EventRecord(11, 10)) }, nil, nil, nil},
		{"cuEventQuery", []uint64{11}, func() any { return one(d.EventDone(11)) }, true, nil, nil},
		{"cuEventSynchronize", []uint64{11}, func() any { return ok(d.EventSynchronize(11)) }, nil, nil, nil},
		{"cuEventElapsedTime", []uint64{out, 11, 12}, func() any { return one(d.Elapsed(11, 12)) }, 1500 * time.Microsecond, nil, nil},
	}
}

// Every call has the name and the arguments of the driver API, gives back what
// the driver wrote, and makes its result a typed error.
func TestCalls(t *testing.T) {
	s := newStandin(t)
	s.fail("", 0)
	d, err := open(s.path)
	require.NoError(t, err)
	require.Equal(t, []string{"cuInit", "cuDriverGetVersion"}, names(s.calls()))
	for _, c := range driverCalls(t, d) {

		s.fail("", 0)
		got := c.call()
		require.Equal(t, c.want, got, c.name)
		calls := s.calls()
		require.Equal(t, append(c.before, c.name), names(calls))
		last := calls[len(calls)-1]
		for i, want := range c.args {
			if want == out {
				require.NotZero(t, last.args[i], "%s, argument %d", c.name, i)
				continue
			}
			require.Equal(t, want, last.args[i], "%s, argument %d", c.name, i)
		}

		s.fail(c.name, driver.IllegalAddress)
		err, _ := c.call().(error)
		var e *driver.Error
		require.ErrorAs(t, err, &e, c.name)
		require.Equal(t, driver.IllegalAddress, e.Result, c.name)
		require.Contains(t, c.name, e.Call)
	}
}

func names(calls []recorded) (list []string) {
	for _, c := range calls {
		list = append(list, c.name)
	}
	return list
}

// What the driver reads behind an address is there.
func TestMemoryOfCalls(t *testing.T) {
	s := newStandin(t)
	s.fail("", 0)
	d, err := open(s.path)
	require.NoError(t, err)
	last := func() recorded {
		c := s.calls()
		return c[len(c)-1]
	}
	word := binary.LittleEndian.Uint64

	_, _, err = d.ModuleLoad([]byte(".version 6.0"))
	require.NoError(t, err)
	seen := last().seen
	require.Equal(t, ".version 6.0", text(seen))
	require.Equal(t, []uint32{5, 6}, []uint32{binary.LittleEndian.Uint32(seen[128:]), binary.LittleEndian.Uint32(seen[132:])})
	require.EqualValues(t, 4095, word(seen[136:]))
	s.fail("cuModuleLoadDataEx", driver.InvalidPTX)
	_, log, err := d.ModuleLoad([]byte(".version 6.0"))
	require.ErrorIs(t, err, &driver.Error{Result: driver.InvalidPTX})
	require.Equal(t, "line 7: no such instruction", log)

	s.fail("", 0)
	require.NoError(t, d.Launch(8, driver.Dim{X: 1, Y: 1, Z: 1}, driver.Dim{X: 1, Y: 1, Z: 1}, 0, 0, []byte{9, 8, 7}))
	seen = last().seen
	require.Equal(t, []uint64{1, 2, 0, 3}, []uint64{word(seen), word(seen[8:]), word(seen[16:]), word(seen[24:])})
	require.Equal(t, []byte{9, 8, 7, 0}, seen[32:36])
	require.ErrorIs(t, d.Launch(8, driver.Dim{}, driver.Dim{}, 0, 0, make([]byte, 1000)), &driver.Error{Result: driver.InvalidValue})

	for address, want := range map[driver.Ptr]driver.Kind{5: driver.Unknown, 1 << 40: driver.Device, 2 << 40: driver.Host, 3 << 40: driver.Managed, 4 << 40: driver.Managed} {
		p, err := d.Pointer(address)
		require.NoError(t, err)
		require.Equal(t, want, p.Kind, "%#x", address)
	}
	seen = last().seen
	for i, want := range []uint32{1, 2, 8, 9, 11, 12} {
		require.Equal(t, want, binary.LittleEndian.Uint32(seen[4*i:]))
	}

	require.NoError(t, d.CopyToDevice(1, []byte("payload"), 0))
	require.Equal(t, "payload", text(last().seen))
	b := make([]byte, 4)
	require.NoError(t, d.CopyToHost(b, 1, 0))
	require.Equal(t, []byte{0x5a, 0x5a, 0x5a, 0x5a}, b)
	require.NoError(t, d.CopyToDevice(1, nil, 0), "no bytes")

	_, err = d.ExchangeCaptureMode(driver.CaptureRelaxed)
	require.NoError(t, err)
	require.EqualValues(t, 2, last().seen[0])

	_, err = d.Function(9, "hash_blocks")
	require.NoError(t, err)
	require.Equal(t, "hash_blocks", text(last().seen))

	s.fail("cuEventQuery", driver.NotReady)
	done, err := d.EventDone(1)
	require.NoError(t, err)
	require.False(t, done)

	s.fail("cuMemAlloc_v2", driver.OutOfMemory)
	_, err = d.Alloc(77)
	require.EqualError(t, err, "cuMemAlloc on device 2: CUDA_ERROR_OUT_OF_MEMORY (77 bytes): free device memory, or lower backends.cuda.staging")
}

// Managed memory that prefers the host is that of the device in whose context
// it was allocated.
func TestManagedMemoryOnTheHost(t *testing.T) {
	s := newStandin(t)
	s.fail("", 0)
	d, err := open(s.path)
	require.NoError(t, err)
	ask := func(address driver.Ptr) (driver.Pointer, []string) {
		p, err := d.Pointer(address)
		require.NoError(t, err)
		require.Equal(t, driver.Managed, p.Kind)
		return p, names(s.calls())
	}
	s.fail("", 0)
	p, calls := ask(5 << 40)
	require.Equal(t, 2, p.Device)
	require.Equal(t, []string{"cuPointerGetAttributes", "cuCtxPushCurrent_v2", "cuCtxGetDevice", "cuCtxPopCurrent_v2"}, calls)
	s.fail("cuCtxPushCurrent_v2", driver.InvalidContext)
	p, _ = ask(5 << 40)
	require.Equal(t, -1, p.Device)
	s.fail("", 0)
	p, calls = ask(6 << 40)
	require.Equal(t, -1, p.Device)
	require.Equal(t, []string{"cuPointerGetAttributes"}, calls)
}

// A result without a name here has the driver's.
func TestNewResults(t *testing.T) {
	s := newStandin(t)
	s.fail("cuCtxPushCurrent_v2", 998)
	d, err := open(s.path)
	require.NoError(t, err)
	require.EqualError(t, d.Push(1), "cuCtxPushCurrent: CUDA_ERROR_OF_TOMORROW")
	s.fail("cuCtxPushCurrent_v2", 997)
	require.EqualError(t, d.Push(1), "cuCtxPushCurrent: CUresult(997)")
}

// The oldest driver that is named is the oldest that is taken: one for that
// version has every call, the one before is refused with the version to take.
func TestOldestDriver(t *testing.T) {
	d, err := open(build(t, fmt.Sprintf("-DCUDA_VERSION=%d", MinVersion)))
	require.NoError(t, err)
	v, err := d.Version()
	require.NoError(t, err)
	require.Equal(t, MinVersion, v)
	_, err = open(build(t, "-DCUDA_VERSION=10020"))
	require.ErrorContains(t, err, "update the NVIDIA driver to one for CUDA 11.0 or later")
	require.ErrorContains(t, err, "cuDevicePrimaryCtxRelease_v2")

	text, err := os.ReadFile("../../../docs/cuda.md")
	require.NoError(t, err)
	require.Contains(t, string(text), fmt.Sprintf("CUDA %d.%d or later (450 on Linux)", MinVersion/1000, MinVersion%1000/10))
}

// A look at whether the process has the driver opens nothing, and initialises
// nothing.
func TestPresent(t *testing.T) {
	path := build(t)
	p := presence{path: path}
	d, there := p.look()
	require.False(t, there)
	require.Nil(t, d)
	require.NotZero(t, p.seen.Load())
	require.Equal(t, loads(), p.seen.Load(), "nothing is searched for again")
	_, there = p.look()
	require.False(t, there)
	before := loads()
	s := standinAt(t, path)
	require.Greater(t, loads(), before)
	s.fail("", 0)
	d, there = p.look()
	require.True(t, there)
	known, err := d.Pointer(1<<40 + 64)
	require.NoError(t, err)
	require.Equal(t, driver.Device, known.Kind)
	require.Equal(t, []string{"cuPointerGetAttributes"}, names(s.calls()))
	again, _ := p.look()
	require.Same(t, d, again)

	old := presence{path: build(t, "-DCUDA_VERSION=10020")}
	_, err = openLibrary(old.path)
	require.NoError(t, err)
	for range 2 {
		d, there = old.look()
		require.True(t, there)
		require.Nil(t, d, "it is too old")
	}
}

// What is missing is said: the library, a call in it, a driver young enough, a device.
func TestOpenFails(t *testing.T) {
	_, err := open(filepath.Join(t.TempDir(), "libcuda.so.1"))
	require.ErrorContains(t, err, "the NVIDIA driver cannot be opened")
	require.ErrorContains(t, err, "libcuda.so.1")

	old := build(t, "-DcuMemHostAlloc=cuMemHostAllocNot")
	_, err = open(old)
	require.ErrorContains(t, err, "update the NVIDIA driver")
	require.ErrorContains(t, err, "cuMemHostAlloc")

	s := newStandin(t)
	s.fail("cuInit", driver.NoDevice)
	_, err = open(s.path)
	require.EqualError(t, err, "cuInit: CUDA_ERROR_NO_DEVICE: see nvidia-smi and CUDA_VISIBLE_DEVICES, or use host tensors")
	s.fail("", 0)
	s.version(9020)
	_, err = open(s.path)
	require.EqualError(t, err, "the NVIDIA driver is for CUDA 9.2, too old: update it to one for 11.0 or later")
	s.version(12040)

	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		_, err = Open()
		require.Error(t, err, "there is no device")
	}
}
