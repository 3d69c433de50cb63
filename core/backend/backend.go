// Package backend is the extension point for reduce kernels: the interface, the
// registry and the selection by name.
package backend

import (
	"fmt"
	"sort"
	"sync"

	"github.com/gopccl/gopccl/core/dtype"
)

// Backend does the arithmetic of collectives on host memory. All byte slices
// hold little-endian elements of type t; equal lengths, a multiple of t.Size();
// any alignment. Implementations are safe for concurrent use, keep no slice
// and allocate nothing. Arithmetic: data spec, section 3, each operation
// rounded to t (float16 and bfloat16: computed in float32, rounded to nearest even).
type Backend interface {
	// Name is the registered name, such as "cpu_generic".
	Name() string
	// Reduce sets dst[i] := a[i] op b[i], a being the local and b the received
	// value (they differ for NaN and signed zeros in max and min). Op is
	// dtype.Sum, Avg (adds), Prod, Max or Min. dst may be a or b itself, never
	// a shifted view of one.
	Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte)
	// Finalize divides every element of dst by world (dtype.Avg only, data
	// spec, section 3); integers truncate towards zero, floats divide once.
	Finalize(t dtype.Type, dst []byte, world int)
}

// Driver makes a Backend and says whether it runs here.
type Driver interface {
	// Rank orders drivers for "auto", the highest wins; the generic one has 0.
	Rank() int
	// Probe returns nil if the backend works on this machine, else why not.
	Probe() error
	// New returns the backend.
	New() (Backend, error)
}

var (
	mu      sync.Mutex
	drivers = map[string]Driver{}
)

// Register makes a driver available under name. It panics on an empty or
// registered name, since that is a programmer's error at start-up.
func Register(name string, d Driver) {
	mu.Lock()
	defer mu.Unlock()
	if _, dup := drivers[name]; dup || name == "" || name == "auto" {
		panic("backend: bad or duplicate name " + name)
	}
	drivers[name] = d
}

// Names returns the registered names in alphabetical order.
func Names() []string {
	mu.Lock()
	defer mu.Unlock()
	names := make([]string, 0, len(drivers))
	for n := range drivers {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Select returns the backend called name; "auto" or "" takes the highest
// ranked driver whose probe succeeds. passed says why others were passed over.
func Select(name string) (b Backend, passed []string, err error) {
	mu.Lock()
	defer mu.Unlock()
	if name != "auto" && name != "" {
		d, ok := drivers[name]
		if !ok {
			return nil, nil, fmt.Errorf("unknown backend %q: is its package imported?", name)
		}
		if err := d.Probe(); err != nil {
			return nil, nil, fmt.Errorf("backend %q does not run here: %w", name, err)
		}
		b, err = d.New()
		return b, nil, err
	}
	names := make([]string, 0, len(drivers))
	for n := range drivers {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool {
		ri, rj := drivers[names[i]].Rank(), drivers[names[j]].Rank()
		return ri > rj || ri == rj && names[i] < names[j]
	})
	for _, n := range names {
		err := drivers[n].Probe()
		if err == nil {
			if b, err = drivers[n].New(); err == nil {
				return b, passed, nil
			}
		}
		passed = append(passed, n+": "+err.Error())
	}
	return nil, passed, fmt.Errorf("no reduce backend is available (import backends/defaults)")
}
