package main

import (
	"fmt"
	"sync"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// counting is a driver that counts what it gave out and did not get back.
type counting struct {
	driver.Driver
	mu   sync.Mutex
	live map[string]int
}

func newCounting(d driver.Driver) *counting { return &counting{Driver: d, live: map[string]int{}} }

func (c *counting) note(what string, n int, err error) {
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live[what] += n
}

// leaks is how many things are out.
func (c *counting) leaks() (n int, detail map[string]any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	detail = map[string]any{}
	for what, count := range c.live {
		if count != 0 {
			n += max(count, -count)
			detail[what] = count
		}
	}
	return n, detail
}

func (c *counting) Retain(device int) (x driver.Context, err error) {
	defer func() { c.note("contexts", 1, err) }()
	return c.Driver.Retain(device)
}

func (c *counting) Release(device int) (err error) {
	defer func() { c.note("contexts", -1, err) }()
	return c.Driver.Release(device)
}

func (c *counting) ModuleLoad(ptx []byte) (m driver.Module, log string, err error) {
	defer func() { c.note("modules", 1, err) }()
	return c.Driver.ModuleLoad(ptx)
}

func (c *counting) ModuleUnload(m driver.Module) (err error) {
	defer func() { c.note("modules", -1, err) }()
	return c.Driver.ModuleUnload(m)
}

func (c *counting) Alloc(n uint64) (p driver.Ptr, err error) {
	defer func() { c.note("allocations", 1, err) }()
	return c.Driver.Alloc(n)
}

func (c *counting) Free(p driver.Ptr) (err error) {
	defer func() { c.note("allocations", -1, err) }()
	return c.Driver.Free(p)
}

func (c *counting) HostAlloc(n int) (b []byte, err error) {
	defer func() { c.note("pinned", 1, err) }()
	return c.Driver.HostAlloc(n)
}

func (c *counting) HostFree(b []byte) (err error) {
	defer func() { c.note("pinned", -1, err) }()
	return c.Driver.HostFree(b)
}

func (c *counting) StreamCreate() (s driver.Stream, err error) {
	defer func() { c.note("streams", 1, err) }()
	return c.Driver.StreamCreate()
}

func (c *counting) StreamDestroy(s driver.Stream) (err error) {
	defer func() { c.note("streams", -1, err) }()
	return c.Driver.StreamDestroy(s)
}

func (c *counting) EventCreate(timing bool) (e driver.Event, err error) {
	defer func() { c.note("events", 1, err) }()
	return c.Driver.EventCreate(timing)
}

func (c *counting) EventDestroy(e driver.Event) (err error) {
	defer func() { c.note("events", -1, err) }()
	return c.Driver.EventDestroy(e)
}

func (c *counting) String() string {
	n, detail := c.leaks()
	return fmt.Sprint(n, " left: ", detail)
}
