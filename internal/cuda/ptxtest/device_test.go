package ptxtest

import (
	"bytes"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// is is an error to compare with.
func result(r driver.Result) error { return &driver.Error{Result: r} }

const access = header + `.visible .entry k(.param .u64 at) { .reg .b32 %r<5>; .reg .b64 %d<5>; .reg .pred %p<2>;
	ld.param.u64 %d0, [at]; INS ret; }`

// Accesses that a device may or may not notice fail the launch, name the
// thread, and lose the device for good.
func TestBadAccesses(t *testing.T) {
	for name, c := range map[string]struct {
		ins  string
		want driver.Result
		text string
	}{
		"behind":      {"ld.global.u32 %r0, [%d0+64];", driver.IllegalAddress, "0 bytes past an allocation of 64 bytes"},
		"before":      {"st.global.u32 [%d0-4], %r0;", driver.IllegalAddress, "thread (0,0,0) of block (1,0,0), line 5, st.global.u32"},
		"across":      {"ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%d0+56];", driver.MisalignedAddress, "not a multiple of 16"},
		"end":         {"ld.global.u64 %d1, [%d0+60];", driver.MisalignedAddress, "not a multiple of 8"},
		"odd":         {"ld.global.u16 %r0, [%d0+1];", driver.MisalignedAddress, "not a multiple of 2"},
		"null":        {"mov.u64 %d0, 0; ld.global.u32 %r0, [%d0];", driver.IllegalAddress, "0x0 is not an address"},
		"generic":     {"ld.u32 %r0, [%d0+64];", driver.IllegalAddress, "past"},
		"shared":      {"mov.u64 %d0, 0; ld.shared.u32 %r0, [%d0];", driver.IllegalAddress, "4 bytes at 0x0 of 0 bytes"},
		"constant":    {"mov.u64 %d0, 8; ld.const.u32 %r0, [%d0];", driver.IllegalAddress, ""},
		"local":       {"mov.u64 %d0, 8; st.local.u32 [%d0], %r0;", driver.IllegalAddress, ""},
		"atomic":      {"atom.global.add.u32 %r0, [%d0+64], 1;", driver.IllegalAddress, "atom"},
		"trap":        {"trap;", driver.IllegalInstr, "trap"},
		"endless":     {"L: bra L;", driver.LaunchTimeout, "Options.Steps"},
		"two places":  {"setp.eq.u32 %p0, %r4, 0; mov.u32 %r4, %tid.x; setp.eq.u32 %p0, %r4, 0; @%p0 bra A; bar.sync 0; bra B; A: bar.sync 0; B:", driver.LaunchFailed, "different places"},
		"two numbers": {"mov.u32 %r4, %tid.x; shr.u32 %r4, %r4, 5; bar.sync %r4;", driver.LaunchFailed, "different barriers"},
		"alone":       {"mov.u32 %r4, %tid.x; setp.eq.u32 %p0, %r4, 0; @%p0 shfl.sync.idx.b32 %r0, %r1, 0, 31, 3; @!%p0 bar.sync 0;", driver.LaunchFailed, "waits for lanes that never come"},
		"not member":  {"shfl.sync.idx.b32 %r0, %r1, 0, 31, 2;", driver.IllegalInstr, "its own member mask"},
		"table":       {"mov.u32 %r0, 2; T: .branchtargets A, B; brx.idx %r0, T; A: B:", driver.InvalidPC, "out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			m := start(t, Options{Steps: 100_000, Seed: 1}, []byte(strings.Replace(access, "INS", c.ins, 1)))
			p := m.give(make([]byte, 64))
			require.NoError(t, m.launch("k", 2, 64, 0, p))
			err := m.StreamSynchronize(m.s)
			require.ErrorIs(t, err, result(c.want))
			require.ErrorContains(t, err, c.text)
			// From now on everything fails the same way, but for the stacks.
			_, err = m.Alloc(5)
			require.ErrorIs(t, err, result(c.want))
			require.ErrorIs(t, m.CopyToDevice(p, make([]byte, 4), m.s), result(c.want))
			require.ErrorIs(t, m.Free(p), result(c.want))
			require.ErrorIs(t, m.StreamDestroy(m.s), result(c.want))
			require.ErrorIs(t, m.ModuleUnload(m.m), result(c.want))
			_, err = m.Pop()
			require.NoError(t, err)
			require.NoError(t, m.Release(0))
			require.Zero(t, m.Live(), "what could only fail counts as given back")
			c2, err := m.Retain(0)
			require.NoError(t, err)
			require.NoError(t, m.Push(c2))
			_, err = m.StreamCreate()
			require.ErrorIs(t, err, result(c.want), "the device is lost until the process ends")
		})
	}
}

func TestUseAfterFree(t *testing.T) {
	m := start(t, Options{}, []byte(strings.Replace(access, "INS", "ld.global.u32 %r0, [%d0];", 1)))
	p := m.give(make([]byte, 64))
	require.NoError(t, m.launch("k", 1, 1, 0, p))
	require.NoError(t, m.Free(p), "what is queued comes first")
	require.ErrorIs(t, m.Free(p), result(driver.InvalidValue))
	require.ErrorIs(t, m.CopyToDevice(p, []byte{1}, m.s), result(driver.InvalidValue))
	require.NoError(t, m.launch("k", 1, 1, 0, p))
	err := m.StreamSynchronize(m.s)
	require.ErrorIs(t, err, result(driver.IllegalAddress))
	require.ErrorContains(t, err, "in freed memory of 64 bytes")
}

// A kernel cannot use memory of another context; pinned memory is for all.
func TestContexts(t *testing.T) {
	m := start(t, Options{Devices: 2}, []byte(strings.Replace(access, "INS", "ld.global.u32 %r0, [%d0]; add.s32 %r0, %r0, 1; st.global.u32 [%d0], %r0;", 1)))
	h, err := m.HostAlloc(10)
	require.NoError(t, err)
	copy(h, []byte{255, 0, 0, 0})
	require.NoError(t, m.launch("k", 1, 1, 0, driver.Ptr(address(h))))
	require.Equal(t, byte(255), h[0], "nothing is done before somebody waits")
	require.NoError(t, m.StreamSynchronize(m.s))
	require.Equal(t, []byte{0, 1, 0, 0}, h[:4])

	other := m.NewContext(0)
	before, err := m.Current()
	require.NoError(t, err)
	require.NoError(t, m.Push(other))
	p, err := m.Alloc(8)
	require.NoError(t, err)
	at, err := m.Pointer(p + 3)
	require.NoError(t, err)
	require.Equal(t, driver.Pointer{Kind: driver.Device, Device: 0, Context: other, Base: p, Bytes: 8}, at)
	require.ErrorIs(t, m.CopyToDevice(p, []byte{1}, m.s), result(driver.InvalidHandle), "a stream of another context")
	c, err := m.Pop()
	require.NoError(t, err)
	require.Equal(t, other, c)
	now, err := m.Current()
	require.NoError(t, err)
	require.Equal(t, before, now)
	require.ErrorIs(t, m.Free(p), result(driver.InvalidValue))
	require.NoError(t, m.launch("k", 1, 1, 0, p))
	require.ErrorIs(t, m.StreamSynchronize(m.s), result(driver.IllegalAddress))

	// The other device goes on.
	c1, err := m.Retain(1)
	require.NoError(t, err)
	require.NoError(t, m.Push(c1))
	_, err = m.Alloc(4)
	require.NoError(t, err)
	at, err = m.Pointer(driver.Ptr(address(h)))
	require.NoError(t, err)
	require.Equal(t, driver.Host, at.Kind)
	plain := make([]byte, 8)
	at, err = m.Pointer(driver.Ptr(address(plain)))
	require.NoError(t, err)
	require.Equal(t, driver.Pointer{}, at)
	require.NoError(t, m.HostFree(h))
	at, err = m.Pointer(driver.Ptr(address(h)))
	require.NoError(t, err)
	require.Equal(t, driver.Unknown, at.Kind)
}

// Each thread has a stack of its own.
func TestThreads(t *testing.T) {
	m := start(t, Options{}, sample)
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c, err := m.Current()
		require.NoError(t, err)
		require.Zero(t, c)
		_, err = m.Alloc(4)
		require.ErrorIs(t, err, result(driver.InvalidContext))
		_, err = m.Pop()
		require.ErrorIs(t, err, result(driver.InvalidContext))
	})
	wg.Wait()
	c, err := m.Current()
	require.NoError(t, err)
	require.NotZero(t, c)
}

// Everything that was given out is counted, and given back once.
func TestLive(t *testing.T) {
	m := start(t, Options{}, sample)
	p := m.give(make([]byte, 100))
	h, err := m.HostAlloc(300)
	require.NoError(t, err)
	e, err := m.EventCreate(false)
	require.NoError(t, err)
	require.Equal(t, Counts{Allocations: 1, Bytes: 100, Host: 1, HostBytes: 300, Streams: 1, Events: 1, Modules: 1, Retained: 1, Pushed: 1}, m.Live())
	require.Equal(t, 1, m.LiveAllocations())
	free, total, err := m.MemInfo()
	require.NoError(t, err)
	require.Equal(t, uint64(256<<20), total)
	require.Equal(t, total-1024, free, "the module's variables and 100 bytes, in units of 512")
	require.NoError(t, m.Free(p))
	require.NoError(t, m.HostFree(h))
	require.ErrorIs(t, m.HostFree(h), result(driver.InvalidValue))
	require.NoError(t, m.EventDestroy(e))
	require.ErrorIs(t, m.EventDestroy(e), result(driver.InvalidHandle))
	require.NoError(t, m.StreamDestroy(m.s))
	require.ErrorIs(t, m.StreamSynchronize(m.s), result(driver.InvalidHandle))
	require.NoError(t, m.ModuleUnload(m.m))
	_, err = m.Function(m.m, "add")
	require.ErrorIs(t, err, result(driver.InvalidHandle))
	_, err = m.Pop()
	require.NoError(t, err)
	require.NoError(t, m.Release(0))
	require.Zero(t, m.Live())
	require.ErrorIs(t, m.Release(0), result(driver.InvalidContext))
	require.Equal(t, 2, m.Calls()["cuMemFreeHost"])
}

// Limits of memory and of launches.
func TestLimits(t *testing.T) {
	m := start(t, Options{Memory: 4096, Capability: 52}, []byte(strings.Replace(access, "INS", "", 1)))
	p, err := m.Alloc(4000)
	require.NoError(t, err)
	_, err = m.Alloc(1)
	require.ErrorIs(t, err, result(driver.OutOfMemory))
	_, err = m.Alloc(1 << 63)
	require.ErrorIs(t, err, result(driver.OutOfMemory))
	_, err = m.Alloc(0)
	require.ErrorIs(t, err, result(driver.InvalidValue))
	_, err = m.HostAlloc(0)
	require.ErrorIs(t, err, result(driver.InvalidValue))
	require.NoError(t, m.Free(p))
	require.ErrorIs(t, m.launch("k", 0, 1, 0, p), result(driver.InvalidValue))
	require.ErrorIs(t, m.launch("k", 1, 0, 0, p), result(driver.InvalidValue))
	require.ErrorIs(t, m.launch("k", 1, 1025, 0, p), result(driver.InvalidValue))
	require.ErrorIs(t, m.launch("k", 1, 1, 49153, p), result(driver.InvalidValue))
	require.ErrorIs(t, m.launch("k", 1, 1, 0), result(driver.InvalidValue))
	require.ErrorIs(t, m.launch("k", 1, 1, 0, p, p), result(driver.InvalidValue))
	_, err = m.Function(m.m, "none")
	require.ErrorIs(t, err, result(driver.NotFound))
	a, err := m.DeviceAttribute(driver.CapabilityMajor, 0)
	require.NoError(t, err)
	require.Equal(t, 5, a)
	_, err = m.DeviceAttribute(999, 0)
	require.ErrorIs(t, err, result(driver.InvalidValue))
	_, err = m.DeviceAttribute(driver.WarpSize, 1)
	require.ErrorIs(t, err, result(driver.InvalidDevice))
	_, err = m.Retain(-1)
	require.ErrorIs(t, err, result(driver.InvalidDevice))
	name, err := m.DeviceName(0)
	require.NoError(t, err)
	require.NotEmpty(t, name)
}

// What a machine without a usable GPU says.
func TestNoDevice(t *testing.T) {
	d := New(Options{Init: driver.NoDevice})
	_, err := d.Devices()
	require.ErrorIs(t, err, result(driver.NoDevice))
	_, err = d.Retain(0)
	require.ErrorIs(t, err, result(driver.NoDevice))
	n, err := New(Options{Devices: -1}).Devices()
	require.NoError(t, err)
	require.Zero(t, n)
	v, err := New(Options{Version: 9000}).Version()
	require.NoError(t, err)
	require.Equal(t, 9000, v)
}

// A module for a newer driver or device is refused as by a real one.
func TestModuleVersions(t *testing.T) {
	for _, c := range []struct {
		version int
		isa     string
		ok      bool
	}{
		{9000, "6.0", true},
		{9000, "6.1", false},
		{10010, "6.4", true},
		{10020, "6.5", true},
		{10020, "7.0", false},
		{11080, "7.8", true},
		{12000, "8.0", true},
		{12000, "8.1", false},
		{12050, "8.5", true},
		{12060, "8.6", false},
		{12080, "8.7", true},
		{12090, "8.8", true},
		{13000, "9.0", true},
		{13000, "9.1", false},
	} {
		d := New(Options{Version: c.version})
		load(t, d, strings.Replace(header, "6.0", c.isa, 1), c.ok, driver.UnsupportedPTX)
	}
	load(t, New(Options{Capability: 50}), header, false, driver.NoBinaryForGPU)
}

func load(t *testing.T, d *Device, src string, ok bool, want driver.Result) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := d.Retain(0)
	require.NoError(t, err)
	require.NoError(t, d.Push(c))
	_, log, err := d.ModuleLoad([]byte(src))
	if ok {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, result(want))
	require.NotEmpty(t, log)
	_, err = d.Pop()
	require.NoError(t, err)
}

// Calls and work fail on demand.
func TestInjectedFailures(t *testing.T) {
	m := start(t, Options{}, sample)
	m.Fail("cuMemAlloc_v2", 2, driver.OutOfMemory)
	_, err := m.Alloc(4)
	require.NoError(t, err)
	_, err = m.Alloc(4)
	require.ErrorIs(t, err, &driver.Error{Call: "cuMemAlloc_v2", Result: driver.OutOfMemory})
	p, err := m.Alloc(4)
	require.NoError(t, err)
	m.Fault(2, driver.LaunchFailed)
	require.NoError(t, m.Fill(p, 1, 4, m.s))
	require.NoError(t, m.StreamSynchronize(m.s))
	require.NoError(t, m.Fill(p, 2, 4, m.s))
	require.ErrorIs(t, m.StreamSynchronize(m.s), result(driver.LaunchFailed))
	require.ErrorIs(t, m.Fill(p, 2, 4, m.s), result(driver.LaunchFailed))

	m = start(t, Options{}, sample)
	m.Fail("cuStreamSynchronize", 1, driver.ECCUncorrectable)
	require.ErrorIs(t, m.StreamSynchronize(m.s), result(driver.ECCUncorrectable))
	require.ErrorIs(t, m.StreamSynchronize(m.s), result(driver.ECCUncorrectable), "it is sticky")
}

// A long run forgets what it freed long ago, and keeps count.
func TestManyAllocations(t *testing.T) {
	m := start(t, Options{}, sample)
	first := m.give([]byte{1})
	for range 3 * remembered {
		p, err := m.Alloc(8)
		require.NoError(t, err)
		require.NoError(t, m.Free(p))
	}
	require.Less(t, len(m.mem.list), 2*remembered+10)
	require.Equal(t, 1, m.LiveAllocations())
	free, total, err := m.MemInfo()
	require.NoError(t, err)
	require.Equal(t, total-1024, free)
	require.NoError(t, m.Free(first))
}

// Memory in the process is what the process sees at its address, and no address
// is that of two allocations, not even one after the other.
func TestMemoryInProcess(t *testing.T) {
	d := New(Options{InProcess: true})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := d.Retain(0)
	require.NoError(t, err)
	require.NoError(t, d.Push(c))
	seen := map[driver.Ptr]bool{}
	for i := range 100 {
		p, err := d.Alloc(1 << 16)
		require.NoError(t, err)
		require.False(t, seen[p])
		seen[p] = true
		require.Zero(t, p%256)
		require.NoError(t, d.Fill(p, byte(i), 1<<16, 0))
		require.NoError(t, d.StreamSynchronize(0))
		b := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), 1<<16)
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, 1<<16), b)
		known, err := d.Pointer(p + 100)
		require.NoError(t, err)
		require.Equal(t, driver.Device, known.Kind)
		require.NoError(t, d.Free(p))
		known, err = d.Pointer(p + 100)
		require.NoError(t, err)
		require.Equal(t, driver.Unknown, known.Kind)
	}
	_, err = d.Pop()
	require.NoError(t, err)
	require.NoError(t, d.Release(0))
	require.Equal(t, Counts{}, d.Live())
}
