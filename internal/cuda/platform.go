// Package cuda is a device.Platform for CUDA devices. It stages operations in
// pinned host memory, streams tensors of a shared state, and hashes on the
// device.
//
// It knows the driver as an interface alone. Unless it is built with the tag
// nocuda, it has System, on the driver of the system (package libcuda), which is
// opened when device memory is first met; package backends/cuda registers it.
//
// Every call of the driver runs on a locked thread with the device's primary
// context pushed, which is popped again: what the trainer has current stays
// current, and a graph that it captures meanwhile stays whole. All copies run on streams of our own, at the earliest when the
// caller's stream has come to where it was at the call.
package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// Config of a Platform. Zero values take the defaults.
type Config struct {
	// Open opens the driver; called once, when it is first needed.
	Open func() (driver.Driver, error)
	// Present reports whether the process has loaded the driver already, and
	// returns it if it can be used, without opening or initialising it. Nil: the
	// driver is opened to ask it about any address.
	Present func() (d driver.Driver, loaded bool)
	// Settings to begin with; see Configure. Staging defaults to an eighth of the
	// machine's memory, Reduce to "auto".
	Settings device.Settings
	// PieceBytes is how much one copy moves, default 1 MiB.
	PieceBytes int
}

// Platform implements device.Platform. Safe for concurrent use.
type Platform struct {
	cfg    Config
	pieces int
	log    atomic.Pointer[slog.Logger]
	reduce atomic.Pointer[string]
	pinned *pinned

	opening sync.Once
	driver  driver.Driver
	count   int   // devices
	openErr error // why there are none
	opened  atomic.Bool

	mu      sync.Mutex
	devices map[int]*dev
	closed  bool

	background sync.WaitGroup // what spawn has begun

	chilled func(b []byte) // tests look at what chill is given
}

var _ device.Platform = (*Platform)(nil)

// New returns a platform that opens its driver when it first needs it.
func New(cfg Config) *Platform {
	p := &Platform{cfg: cfg, pieces: cfg.PieceBytes, devices: map[int]*dev{}}
	if p.pieces <= 0 {
		p.pieces = 1 << 20
	}
	p.log.Store(slog.New(slog.DiscardHandler))
	auto := "auto"
	p.reduce.Store(&auto)
	p.pinned = newPinned(p)
	if err := p.Configure(cfg.Settings); err != nil {
		p.openErr = err
		p.opening.Do(func() {})
	}
	return p
}

// On returns a platform on a driver that is open already.
func On(d driver.Driver, s device.Settings) *Platform {
	return New(Config{Open: func() (driver.Driver, error) { return d, nil }, Settings: s})
}

// Configure implements device.Platform. Errors: InvalidConfig.
func (p *Platform) Configure(s device.Settings) error {
	switch s.Reduce {
	case "", "auto", "host", "device":
	default:
		return errs.New(errs.InvalidConfig, "configure cuda", fmt.Errorf("reduce is %q, not auto, host or device", s.Reduce))
	}
	if s.Staging < 0 {
		return errs.New(errs.InvalidConfig, "configure cuda", fmt.Errorf("%d bytes of staging memory are negative", s.Staging))
	}
	if s.Reduce != "" {
		p.reduce.Store(&s.Reduce)
	}
	if s.Staging > 0 {
		p.pinned.setLimit(s.Staging)
	}
	if s.Logger != nil {
		p.log.Store(s.Logger)
	}
	return nil
}

// open opens the driver once.
func (p *Platform) open() error {
	p.opening.Do(func() {
		if p.driver, p.openErr = p.cfg.Open(); p.openErr != nil {
			return
		}
		p.pinned.suggest(limitFor(machineMemory()))
		if p.count, p.openErr = p.driver.Devices(); p.openErr == nil && p.count == 0 {
			p.openErr = &driver.Error{Call: "cuDeviceGetCount", Device: -1, Result: driver.NoDevice}
		}
		p.opened.Store(p.openErr == nil)
	})
	return p.openErr
}

// Probe says why no device can be used, nil if one can.
func (p *Platform) Probe() error {
	if err := p.open(); err != nil {
		return errs.New(errs.DeviceFailed, "open cuda", err).WithHint("use host tensors, or install the NVIDIA driver")
	}
	return nil
}

// Driver returns the driver; Probe has been successful.
func (p *Platform) Driver() driver.Driver { return p.driver }

// Devices returns the number of devices, 0 if there is no driver.
func (p *Platform) Devices() int {
	if p.open() != nil {
		return 0
	}
	return p.count
}

// asked returns the driver that knows the process's device memory, nil if it
// cannot have any.
func (p *Platform) asked() driver.Driver {
	switch {
	case p.opened.Load():
		return p.driver
	case p.cfg.Present != nil:
		d, _ := p.cfg.Present()
		return d
	case p.open() != nil:
		return nil
	}
	return p.driver
}

// Identify implements device.Platform. It opens no driver: as long as nobody
// has loaded one, or nobody initialised it, no address is that of a device.
func (p *Platform) Identify(ptr uint64) (int, bool) {
	d := p.asked()
	if d == nil || ptr == 0 {
		return 0, false
	}
	var known driver.Pointer
	err := bare(d, func() (err error) {
		known, err = d.Pointer(driver.Ptr(ptr))
		return err
	})
	// Without any context there is no memory of a device either.
	if err != nil || known.Kind != driver.Device && known.Kind != driver.Managed {
		return 0, false
	}
	return known.Device, true
}

// Check implements device.Platform.
func (p *Platform) Check(b device.Buffer) (device.Buffer, error) {
	const op = "check device memory"
	d, b, err := p.find(op, b)
	if err == nil {
		err = p.fault(op, d, b, d.do(func() error { return d.usable(b.Stream) }))
	}
	return b, err
}

// find checks b and returns the device that it lies on.
func (p *Platform) find(op string, b device.Buffer) (*dev, device.Buffer, error) {
	bad := func(do, format string, args ...any) (*dev, device.Buffer, error) {
		return nil, b, errs.New(errs.InvalidArgument, op, fmt.Errorf("%v: "+format, append([]any{b}, args...)...)).WithHint(do)
	}
	if !p.opened.Load() && p.cfg.Present != nil {
		if _, loaded := p.cfg.Present(); !loaded {
			return bad("pass it as a host tensor", "this is not device memory: the process has not loaded the NVIDIA driver")
		}
	}
	if err := p.open(); err != nil {
		return nil, b, errs.New(errs.DeviceFailed, op, fmt.Errorf("%v: %w", b, err)).WithHint("use host tensors, or install the NVIDIA driver")
	}
	switch {
	case b.Bytes < 0:
		return bad("", "the size is negative")
	case b.Device != device.Any && (b.Device < 0 || b.Device >= p.count):
		return bad("see CUDA_VISIBLE_DEVICES", "this process has the devices 0 to %d", p.count-1)
	case b.Ptr == 0 || b.Ptr+uint64(b.Bytes) < b.Ptr:
		return bad("", "the address is impossible")
	}
	known, err := p.pointer(b, b.Ptr)
	var e *driver.Error
	switch {
	case errors.As(err, &e) && e.Result == driver.InvalidValue:
		known.Kind = driver.Unknown
	case err != nil:
		return nil, b, p.fault(op, nil, b, err)
	}
	switch {
	case known.Kind == driver.Host:
		return bad("pass it as a host tensor", "this is pinned memory of the host")
	case known.Kind == driver.Unknown:
		return bad("pass a tensor of the device that still exists", "this is not device memory, or it has been freed")
	case known.Device < 0 && b.Device == device.Any:
		return bad("name the device to use it on, or make one its preferred location", "this is managed memory that prefers the host")
	case known.Device < 0:
		known.Device = b.Device
	case b.Device != device.Any && b.Device != known.Device:
		return bad("pass the tensor's own device", "the memory lies on device %d", known.Device)
	}
	b.Device = known.Device
	if end := b.Ptr + uint64(b.Bytes); known.Bytes > 0 && end > uint64(known.Base)+known.Bytes {
		// Allocators map neighbouring pieces to one range of addresses, too.
		last, err := p.pointer(b, end-1)
		if err != nil || last.Kind != known.Kind || last.Device >= 0 && last.Device != known.Device {
			return bad("pass the tensor's own size", "the allocation ends %d bytes after the address", uint64(known.Base)+known.Bytes-b.Ptr)
		}
	}
	d, err := p.device(b.Device)
	if err != nil {
		return nil, b, p.fault(op, nil, b, err)
	}
	if known.Context != 0 && known.Context != d.ctx {
		return bad("allocate tensors in the device's primary context, as frameworks do", "the memory belongs to another context")
	}
	return d, b, nil
}

// pointer asks the driver for an address, within a context of the device that
// b names if it wants one.
func (p *Platform) pointer(b device.Buffer, ptr uint64) (known driver.Pointer, err error) {
	ask := func() (err error) {
		known, err = p.driver.Pointer(driver.Ptr(ptr))
		return err
	}
	err = bare(p.driver, ask)
	var e *driver.Error
	if !errors.As(err, &e) || e.Result != driver.InvalidContext {
		return known, err
	}
	d, err := p.device(max(b.Device, 0))
	if err != nil {
		return known, err
	}
	err = d.do(ask)
	return known, err
}

// fault makes the driver's error one of an operation on b.
func (p *Platform) fault(op string, d *dev, b device.Buffer, err error) error {
	if err == nil {
		return nil
	}
	if d != nil {
		d.note(err)
	}
	var known *errs.Error
	if errors.As(err, &known) {
		return errs.New(known.Code, op, fmt.Errorf("%v: %w", b, known.Err)).WithHint(known.Hint)
	}
	return errs.New(errs.DeviceFailed, op, fmt.Errorf("%v: %w", b, err))
}

// device returns what is known of a device, after retaining its context.
func (p *Platform) device(ordinal int) (*dev, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.devices[ordinal]; d != nil {
		return d, d.gone()
	}
	if p.closed {
		return nil, errClosed
	}
	var ctx driver.Context
	if err := bare(p.driver, func() (err error) {
		ctx, err = p.driver.Retain(ordinal)
		return err
	}); err != nil {
		return nil, err
	}
	d := &dev{p: p, ordinal: ordinal, ctx: ctx, sets: map[string]*kernels.Set{}}
	p.devices[ordinal] = d
	return d, nil
}

// usable returns a device that works, nil if there is none.
func (p *Platform) usable() *dev {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range slices.Sorted(maps.Keys(p.devices)) {
		if d := p.devices[i]; d.works() {
			return d
		}
	}
	return nil
}

// spawn runs f on a goroutine that Close waits for, which f must not.
func (p *Platform) spawn(f func()) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.background.Add(1)
	}
	p.mu.Unlock()
	if closed { // an error, which the driver will tell
		f()
		return
	}
	go func() {
		defer p.background.Done()
		f()
	}()
}

var errClosed = errors.New("the platform was closed")

// Stats is a snapshot of a platform's memory.
type Stats struct {
	Pinned   int64  // bytes of pinned memory, in use or idle
	Idle     int64  // of them not in use
	Pageable uint64 // times that ordinary memory had to do
	Lost     []int  // devices that failed for good
}

// Stats returns the counters.
func (p *Platform) Stats() Stats {
	s := p.pinned.stats()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, d := range p.devices {
		if d.lost.Load() != nil {
			s.Lost = append(s.Lost, i)
		}
	}
	return s
}

// Close frees everything that the platform holds on devices. No operation may
// be under way, and none succeeds afterwards.
func (p *Platform) Close() error {
	p.mu.Lock()
	p.closed = true
	list := make([]*dev, 0, len(p.devices))
	for _, d := range p.devices {
		list = append(list, d)
	}
	clear(p.devices)
	p.mu.Unlock()
	p.background.Wait()
	var first error
	note := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	for _, d := range list {
		note(d.empty())
	}
	// Pinned memory is that of no certain device. If all are lost, the driver
	// takes nothing back before the process ends.
	if i := slices.IndexFunc(list, (*dev).works); i >= 0 {
		note(list[i].do(p.pinned.drain))
	}
	for _, d := range list {
		note(d.close())
	}
	return first
}
