package ptxtest

import (
	"maps"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// Counts is what a Device gave out and did not get back.
type Counts struct {
	Allocations int // of device memory, those of modules' variables not among them
	Bytes       uint64
	Host        int // pinned
	HostBytes   uint64
	Streams     int
	Events      int
	Modules     int
	Retained    int // primary contexts
	Pushed      int // contexts on threads' stacks
}

// tallies are what a Device has done.
type tallies struct {
	calls, launches  map[string]int
	steps            int // instructions of warps
	toHost, toDevice int // bytes of copies
}

// Live counts what is in use now. After a backend has been closed it has to be
// the zero value, whatever happened before.
func (d *Device) Live() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := Counts{Streams: len(d.streams), Events: len(d.events), Modules: len(d.modules)}
	for _, a := range d.mem.list {
		switch {
		case a.freed || d.variable(a):
		case a.kind == driver.Device:
			n.Allocations++
			n.Bytes += uint64(len(a.data))
		default:
			n.Host++
			n.HostBytes += uint64(len(a.data))
		}
	}
	for _, c := range d.contexts {
		n.Retained += c.retained
	}
	for _, s := range d.stacks {
		n.Pushed += len(s)
	}
	return n
}

func (d *Device) variable(a *allocation) bool {
	for _, m := range d.modules {
		if m.variables == a {
			return true
		}
	}
	return false
}

// LiveAllocations is Live().Allocations.
func (d *Device) LiveAllocations() int { return d.Live().Allocations }

// Fail makes the nth next call of a function of the driver API, "cuMemAlloc_v2",
// fail with a result. A sticky one loses the device of the current context.
func (d *Device) Fail(call string, nth int, r driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures = append(d.failures, failure{call, max(nth, 1), r})
}

// Fault makes the nth next piece of work that streams do, a copy or a kernel,
// lose its device with a result: what calls report from then on.
func (d *Device) Fault(nth int, r driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, failure{"", max(nth, 1), r})
}

// Calls tells how often each function of the driver API was called.
func (d *Device) Calls() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.calls)
}

// Watch counts the calls that this OS thread makes from now on; the caller has
// locked it. stop returns them.
func (d *Device) Watch() (stop func() map[string]int) {
	t, calls := thread(), map[string]int{}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watched == nil {
		d.watched = map[uint64]map[string]int{}
	}
	d.watched[t] = calls
	return func() map[string]int {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watched, t)
		return calls
	}
}

// Launches tells how often each kernel was queued.
func (d *Device) Launches() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.launches)
}

// Copied is how many bytes were queued to be copied to the host and to devices.
func (d *Device) Copied() (toHost, toDevice int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.toHost, d.toDevice
}

// Steps is the number of instructions that warps have executed.
func (d *Device) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}
