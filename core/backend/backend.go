// Package backend is the extension point for reduce kernels: the interface, the
// registry and the selection by name.
package backend

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/registry"
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

var drivers = registry.New[Driver]("backend", "auto")

// Register makes a driver available under name. It panics on an empty or
// registered name, since that is a programmer's error at start-up.
func Register(name string, d Driver) { drivers.Register(name, d) }

// Names returns the registered names in alphabetical order.
func Names() []string { return drivers.Names() }

// Select returns the backend called name; "auto" or "" takes the highest
// ranked driver whose probe succeeds. passed says why others were passed over.
func Select(name string) (b Backend, passed []string, err error) {
	if name != "auto" && name != "" {
		d, ok := drivers.Lookup(name)
		if !ok {
			return nil, nil, fmt.Errorf("unknown backend %q: is its package imported?", name)
		}
		if err := d.Probe(); err != nil {
			return nil, nil, fmt.Errorf("backend %q does not run here: %w", name, err)
		}
		b, err = d.New()
		return b, nil, err
	}
	type candidate struct {
		name string
		Driver
	}
	var list []candidate
	for _, n := range drivers.Names() {
		if d, ok := drivers.Lookup(n); ok {
			list = append(list, candidate{n, d})
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(b.Rank(), a.Rank()) })
	for _, c := range list {
		err := c.Probe()
		if err == nil {
			if b, err = c.New(); err == nil {
				return b, passed, nil
			}
		}
		passed = append(passed, c.name+": "+err.Error())
	}
	return nil, passed, fmt.Errorf("no reduce backend is available (import backends/defaults)")
}
