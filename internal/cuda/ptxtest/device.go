package ptxtest

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// Options describe the machine. The zero value has one device of compute
// capability 8.0 with 256 MiB and a driver for CUDA 12.9.
type Options struct {
	Devices    int    // -1: none
	Memory     uint64 // bytes of each device
	Version    int    // 1000*major + 10*minor
	Capability int    // 10*major + minor
	// Init, if it is not Success, is what every call fails with: NoDevice,
	// SystemNotReady.
	Init driver.Result
	// Eager executes work when it is queued, and not when somebody waits.
	Eager bool
	// Seed chooses the order in which streams, blocks and warps take turns.
	Seed uint64
	// OtherNaNs makes other NaNs where PTX leaves it open which, see the package.
	OtherNaNs bool
	// InProcess has device memory at addresses of this process, which can then
	// read and write it behind the driver's back, as no program can on a device:
	// for tensors of frameworks that are made over it. It is kept when it is freed.
	InProcess bool
	// Steps bounds the instructions that a launch's warps execute; 0 is 1<<28.
	Steps int
}

// Device is a driver.Driver with its devices in Go. It is safe for concurrent
// use.
type Device struct {
	opts     Options
	mu       sync.Mutex
	mem      memoryMap
	next     uint64 // address of the next allocation
	handle   uintptr
	primary  []*context
	lost     []*loss // of each device, nil: none
	contexts map[driver.Context]*context
	stacks   map[uint64][]*context // of each thread
	modules  map[driver.Module]*loaded
	funcs    map[driver.Function]*entry
	streams  map[driver.Stream]*stream
	events   map[driver.Event]*event
	order    []*stream     // that have work
	counts   []uint64      // work of each stream's number
	unused   []int         // numbers
	known    clock         // what somebody has waited for
	freed    []*allocation // the last ones
	used     []uint64      // bytes of each device
	arena    arena
	busy     time.Duration
	random   uint64
	tallies
	watched  map[uint64]map[string]int // of threads
	failures []failure
	faults   []failure
	graphs   graphs
}

// loss is why a device cannot be used any more.
type loss struct {
	result driver.Result
	detail string
}

type context struct {
	handle   driver.Context
	device   int
	retained int
	extra    bool // made by NewContext
	dead     bool
	stream   *stream // the legacy default one
}

type loaded struct {
	handle    driver.Module
	mod       *compiled
	ctx       *context
	variables *allocation
}

type entry struct {
	prog *program
	mod  *loaded
}

type failure struct {
	call   string
	nth    int
	result driver.Result
}

// firstAddress is above what any process has.
const firstAddress = uint64(1) << 52

// New returns a machine.
func New(o Options) *Device {
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Memory == 0 {
		o.Memory = 256 << 20
	}
	if o.Version == 0 {
		o.Version = 12090
	}
	if o.Capability == 0 {
		o.Capability = 80
	}
	if o.Steps == 0 {
		o.Steps = 1 << 28
	}
	n := max(o.Devices, 0)
	return &Device{
		opts: o, next: firstAddress, handle: 0x1000, random: o.Seed,
		primary: make([]*context, n), lost: make([]*loss, n), used: make([]uint64, n),
		contexts: map[driver.Context]*context{}, stacks: map[uint64][]*context{},
		modules: map[driver.Module]*loaded{}, funcs: map[driver.Function]*entry{},
		streams: map[driver.Stream]*stream{}, events: map[driver.Event]*event{},
		tallies: tallies{calls: map[string]int{}, launches: map[string]int{}}, graphs: graphs{modes: map[uint64]driver.CaptureMode{}},
	}
}

var _ driver.Driver = (*Device)(nil)

// newHandle returns a number that no other handle has.
func (d *Device) newHandle() uintptr {
	d.handle += 16
	return d.handle
}

// dice is a number below n, the same ones in every run.
func (d *Device) dice(n int) int {
	d.random = d.random*6364136223846793005 + 1442695040888963407
	return int(d.random >> 33 % uint64(n))
}

func failed(call string, device int, r driver.Result, format string, args ...any) error {
	return &driver.Error{Call: call, Device: device, Result: r, Detail: fmt.Sprintf(format, args...)}
}

// enter counts a call and fails it if it has to. The lock is held.
func (d *Device) enter(call string, device int) error {
	d.calls[call]++
	if len(d.watched) > 0 {
		if here := d.watched[thread()]; here != nil {
			here[call]++
		}
	}
	if d.opts.Init != driver.Success {
		return failed(call, -1, d.opts.Init, "")
	}
	if err := d.prohibited(call, device); err != nil {
		return err
	}
	for i := range d.failures {
		f := &d.failures[i]
		if f.call != call {
			continue
		}
		if f.nth--; f.nth == 0 {
			r := f.result
			d.failures = append(d.failures[:i], d.failures[i+1:]...)
			if c := d.current(); c != nil && r.Sticky() {
				device = c.device
				d.lose(device, &loss{r, "injected"})
			}
			return failed(call, device, r, "injected")
		}
	}
	return nil
}

// with is enter for calls in the current context, which has to be usable.
func (d *Device) with(call string) (*context, error) {
	c := d.current()
	device := -1
	if c != nil {
		device = c.device
	}
	if err := d.enter(call, device); err != nil {
		return nil, err
	}
	if c == nil {
		return nil, failed(call, -1, driver.InvalidContext, "no context is current")
	}
	if c.dead {
		return nil, failed(call, c.device, driver.ContextDestroyed, "")
	}
	if l := d.lost[c.device]; l != nil {
		return nil, failed(call, c.device, l.result, "%s", l.detail)
	}
	return c, nil
}

// lose makes a device unusable.
func (d *Device) lose(device int, l *loss) {
	if d.lost[device] != nil {
		return
	}
	d.lost[device] = l
	for _, s := range d.order {
		if s.ctx.device == device {
			s.drop()
		}
	}
}

func (d *Device) current() *context {
	s := d.stacks[thread()]
	if len(s) == 0 {
		return nil
	}
	return s[len(s)-1]
}

// Version returns Options.Version.
func (d *Device) Version() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opts.Version, d.enter("cuDriverGetVersion", -1)
}

// Devices returns Options.Devices.
func (d *Device) Devices() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.enter("cuDeviceGetCount", -1); err != nil {
		return 0, err
	}
	return len(d.primary), nil
}

func (d *Device) device(call string, device int) error {
	if err := d.enter(call, device); err != nil {
		return err
	}
	if device < 0 || device >= len(d.primary) {
		return failed(call, device, driver.InvalidDevice, "there are %d", len(d.primary))
	}
	return nil
}

// DeviceName names the interpreter.
func (d *Device) DeviceName(device int) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return "PTX interpreter", d.device("cuDeviceGetName", device)
}

// DeviceAttribute answers for the attributes that the backend asks for.
func (d *Device) DeviceAttribute(a driver.Attribute, device int) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuDeviceGetAttribute"
	if err := d.device(call, device); err != nil {
		return 0, err
	}
	v, ok := map[driver.Attribute]int{
		driver.WarpSize: 32, driver.Processors: 4, driver.AsyncEngines: 2, driver.UnifiedAddressing: 1,
		driver.CapabilityMajor: d.opts.Capability / 10, driver.CapabilityMinor: d.opts.Capability % 10,
		driver.MaxThreadsPerBlock: maxThreads,
	}[a]
	if !ok {
		return 0, failed(call, device, driver.InvalidValue, "attribute %d", a)
	}
	return v, nil
}

const maxThreads = 1024

func (d *Device) newContext(device int) *context {
	c := &context{handle: driver.Context(d.newHandle()), device: device}
	c.stream = d.newStream(c)
	d.contexts[c.handle] = c
	return c
}

// Retain returns the device's primary context.
func (d *Device) Retain(device int) (driver.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuDevicePrimaryCtxRetain"
	if err := d.device(call, device); err != nil {
		return 0, err
	}
	c := d.primary[device]
	if c == nil || c.dead {
		c = d.newContext(device)
		d.primary[device] = c
	}
	c.retained++
	return c.handle, nil
}

// Release gives back one Retain; with the last one the context is destroyed,
// whatever is still in it.
func (d *Device) Release(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuDevicePrimaryCtxRelease_v2"
	if err := d.device(call, device); err != nil {
		return err
	}
	c := d.primary[device]
	if c == nil || c.retained == 0 {
		return failed(call, device, driver.InvalidContext, "released more often than retained")
	}
	if c.retained--; c.retained == 0 {
		d.drain(func(s *stream) bool { return s.ctx == c })
		c.dead = true
	}
	return nil
}

// NewContext makes a context of a device that is not its primary one, as
// cuCtxCreate does. It is not current.
func (d *Device) NewContext(device int) driver.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.newContext(device)
	c.extra = true
	return c.handle
}

// Push makes c the calling thread's current context.
func (d *Device) Push(c driver.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuCtxPushCurrent_v2"
	if err := d.enter(call, -1); err != nil {
		return err
	}
	ctx := d.contexts[c]
	if ctx == nil || ctx.dead {
		return failed(call, -1, driver.InvalidContext, "%#x", uintptr(c))
	}
	t := thread()
	d.stacks[t] = append(d.stacks[t], ctx)
	return nil
}

// Pop takes the current context off the thread's stack.
func (d *Device) Pop() (driver.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuCtxPopCurrent_v2"
	if err := d.enter(call, -1); err != nil {
		return 0, err
	}
	t := thread()
	s := d.stacks[t]
	if len(s) == 0 {
		return 0, failed(call, -1, driver.InvalidContext, "no context is current")
	}
	c := s[len(s)-1]
	if d.stacks[t] = s[:len(s)-1]; len(s) == 1 {
		delete(d.stacks, t)
	}
	return c.handle, nil
}

// Current returns the thread's current context.
func (d *Device) Current() (driver.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.enter("cuCtxGetCurrent", -1); err != nil {
		return 0, err
	}
	if c := d.current(); c != nil {
		return c.handle, nil
	}
	return 0, nil
}

// compiled is a module with its kernels, shared by all devices that load it.
type compiled struct {
	mod      *module
	programs map[string]*program
	err      error
}

type compileKey struct {
	sum   [sha256.Size]byte
	other nans
}

// compilations are kept for the tests that load the same kernels many times.
var compilations struct {
	sync.Mutex
	known map[compileKey]*compiled
}

func compile(ptx []byte, other nans) *compiled {
	key := compileKey{sha256.Sum256(ptx), other}
	compilations.Lock()
	defer compilations.Unlock()
	if c := compilations.known[key]; c != nil {
		return c
	}
	c := &compiled{programs: map[string]*program{}}
	c.mod, c.err = parse(string(ptx))
	if c.err == nil {
		for _, name := range c.mod.order {
			fn := c.mod.funcs[name]
			if fn.declare || !fn.entry {
				continue
			}
			p, err := link(c.mod, fn, other)
			if err != nil {
				c.err = err
				break
			}
			c.programs[name] = p
		}
	}
	if compilations.known == nil || len(compilations.known) >= 16 {
		compilations.known = map[compileKey]*compiled{}
	}
	compilations.known[key] = c
	return c
}

// isa is the newest PTX that a driver of a CUDA version takes, times ten.
func isa(version int) int {
	major, minor := version/1000, version%1000/10
	switch {
	case major < 10:
		return 60 + minor
	case major == 10:
		return 63 + minor
	case major == 11:
		return 70 + minor
	case major == 12 && minor > 5: // 12.6 came without a new one
		return 79 + minor
	case major == 12:
		return 80 + minor
	}
	return 10*(major-4) + minor
}

// ModuleLoad compiles ptx. The log has the line of what is wrong.
func (d *Device) ModuleLoad(ptx []byte) (driver.Module, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuModuleLoadDataEx"
	c, err := d.with(call)
	if err != nil {
		return 0, "", err
	}
	mod := compile(ptx, nans(d.opts.OtherNaNs))
	if mod.err != nil {
		return 0, mod.err.Error(), failed(call, c.device, driver.InvalidPTX, "%v", mod.err)
	}
	if can := isa(d.opts.Version); mod.mod.version > can {
		why := fmt.Sprintf("PTX %d.%d, but the driver knows %d.%d", mod.mod.version/10, mod.mod.version%10, can/10, can%10)
		return 0, why, failed(call, c.device, driver.UnsupportedPTX, "%s", why)
	}
	if mod.mod.target > d.opts.Capability {
		why := fmt.Sprintf("PTX for sm_%d, but the device is sm_%d", mod.mod.target, d.opts.Capability)
		return 0, why, failed(call, c.device, driver.NoBinaryForGPU, "%s", why)
	}
	m := &loaded{handle: driver.Module(d.newHandle()), mod: mod, ctx: c}
	if v := mod.mod.variables; len(v) > 0 {
		if m.variables = d.allocate(c, uint64(len(v))); m.variables == nil {
			return 0, "", failed(call, c.device, driver.OutOfMemory, "%d bytes of variables", len(v))
		}
		copy(m.variables.data, v)
	}
	d.modules[m.handle] = m
	return m.handle, "", nil
}

// ModuleUnload forgets a module after what is queued has ended.
func (d *Device) ModuleUnload(m driver.Module) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuModuleUnload"
	lm := d.modules[m]
	delete(d.modules, m)
	c, err := d.with(call)
	if err != nil {
		return err
	}
	if lm == nil {
		return failed(call, c.device, driver.InvalidHandle, "%#x", uintptr(m))
	}
	d.drain(func(s *stream) bool { return s.ctx.device == lm.ctx.device })
	if lm.variables != nil {
		d.release(lm.variables)
	}
	for h, e := range d.funcs {
		if e.mod == lm {
			delete(d.funcs, h)
		}
	}
	return nil
}

// Function finds a kernel.
func (d *Device) Function(m driver.Module, name string) (driver.Function, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuModuleGetFunction"
	c, err := d.with(call)
	if err != nil {
		return 0, err
	}
	lm := d.modules[m]
	if lm == nil {
		return 0, failed(call, c.device, driver.InvalidHandle, "%#x", uintptr(m))
	}
	p := lm.mod.programs[name]
	if p == nil {
		return 0, failed(call, c.device, driver.NotFound, "%s", name)
	}
	h := driver.Function(d.newHandle())
	d.funcs[h] = &entry{p, lm}
	return h, nil
}

// MemInfo returns what is left of Options.Memory.
func (d *Device) MemInfo() (free, total uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.with("cuMemGetInfo_v2")
	if err != nil {
		return 0, 0, err
	}
	return d.opts.Memory - d.used[c.device], d.opts.Memory, nil
}

// remembered is how many freed allocations are known by their addresses.
const remembered = 4096

// release gives memory back, but does not forget at once that it was there.
func (d *Device) release(a *allocation) {
	a.freed = true
	a.size = uint64(len(a.data))
	a.data, a.log, a.reads, a.writes = nil, nil, footprint{}, footprint{}
	if a.kind == driver.Device {
		d.used[a.device] -= a.charge
	}
	if d.freed = append(d.freed, a); len(d.freed) >= 2*remembered {
		d.mem.forget(d.freed[:remembered])
		d.freed = append([]*allocation(nil), d.freed[remembered:]...)
	}
}

// Alloc allocates device memory. It holds 0xa5 everywhere.
func (d *Device) Alloc(n uint64) (driver.Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemAlloc_v2"
	c, err := d.with(call)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, failed(call, c.device, driver.InvalidValue, "0 bytes")
	}
	a := d.allocate(c, n)
	if a == nil {
		return 0, failed(call, c.device, driver.OutOfMemory, "%d bytes; %d are free", n, d.opts.Memory-d.used[c.device])
	}
	return driver.Ptr(a.base), nil
}

// Free waits for what is queued on the device, as cuMemFree does, and frees p.
// If the device is lost, the memory counts as freed all the same.
func (d *Device) Free(p driver.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemFree_v2"
	c, err := d.with(call)
	a := d.mem.find(uint64(p))
	found := a != nil && a.base == uint64(p) && a.kind == driver.Device
	if err != nil {
		if found && driver.Result.Sticky(resultOf(err)) {
			d.release(a)
		}
		return err
	}
	if !found || a.ctx != c.handle {
		return failed(call, c.device, driver.InvalidValue, "%s", d.mem.describe(uint64(p), 1))
	}
	d.drain(func(s *stream) bool { return s.ctx.device == c.device })
	if l := d.lost[c.device]; l != nil {
		d.release(a)
		return failed(call, c.device, l.result, "%s", l.detail)
	}
	d.release(a)
	return nil
}

func resultOf(err error) driver.Result {
	if e, ok := err.(*driver.Error); ok {
		return e.Result
	}
	return driver.Success
}

const page = 4096

// HostAlloc returns pinned memory: Go's own, at the address that it has.
func (d *Device) HostAlloc(n int) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemHostAlloc"
	c, err := d.with(call)
	if err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, failed(call, c.device, driver.InvalidValue, "%d bytes", n)
	}
	b := make([]byte, n+page-1)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & (page - 1)
	b = b[off : off+n : off+n]
	flood(b, poison&0xff)
	d.mem.forgetHost(address(b), uint64(n))
	d.mem.insert(&allocation{base: address(b), data: b, kind: driver.Host, device: c.device, ctx: c.handle})
	return b, nil
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// HostFree gives pinned memory back, after what is queued has ended.
func (d *Device) HostFree(b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemFreeHost"
	c, err := d.with(call)
	a := d.mem.find(address(b))
	found := len(b) > 0 && a != nil && a.base == address(b) && a.kind == driver.Host
	if err != nil {
		if found && driver.Result.Sticky(resultOf(err)) {
			d.release(a)
		}
		return err
	}
	if !found {
		return failed(call, c.device, driver.InvalidValue, "%#x is not pinned", address(b))
	}
	d.drain(func(*stream) bool { return true })
	d.release(a)
	return nil
}

// Pointer looks an address up.
func (d *Device) Pointer(p driver.Ptr) (driver.Pointer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuPointerGetAttributes"
	if err := d.enter(call, -1); err != nil {
		return driver.Pointer{}, err
	}
	a := d.mem.find(uint64(p))
	if a == nil {
		return driver.Pointer{}, nil
	}
	return driver.Pointer{
		Kind: a.kind, Device: a.device, Context: a.ctx, Base: driver.Ptr(a.base), Bytes: uint64(len(a.data)),
	}, nil
}
