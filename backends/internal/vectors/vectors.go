// Package vectors is what backends of vector kernels have in common: they
// handle whole vectors at any address and leave the ends, and what they have no
// kernel for, to cpu_generic, whose bits they reproduce.
package vectors

import (
	"fmt"

	cpugeneric "github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/invariants"
)

// Kernel sets dst to a op b over n bytes, n a positive multiple of the level's
// step, at any addresses. dst may be a or b.
type Kernel func(dst, a, b *byte, n int)

// Level is one set of vector instructions.
type Level struct {
	Name string
	Step int // bytes that every kernel can do at once, a power of two
	// Reduce holds the kernels, nil where plain Go does it.
	Reduce [dtype.NumTypes][dtype.NumOps]Kernel
	// Divide divides n bytes of floats of type t by world.
	Divide func(t dtype.Type, dst *byte, n, world int)
}

// Operations are the kernels of one type: addition, product, largest, smallest.
func Operations(add, mul, largest, smallest Kernel) [dtype.NumOps]Kernel {
	var k [dtype.NumOps]Kernel
	k[dtype.Sum], k[dtype.Avg], k[dtype.Prod], k[dtype.Max], k[dtype.Min] = add, add, mul, largest, smallest
	return k
}

// Driver makes the backend of one level. See backend.Driver.
type Driver struct {
	Name  string
	Order int // the rank for "auto"
	// Level returns the level, or what the machine or the build lacks for it.
	Level func() (*Level, error)
}

// Rank is the driver's Order.
func (d Driver) Rank() int { return d.Order }

// Probe says what the machine or the build lacks.
func (d Driver) Probe() error {
	_, err := d.Level()
	return err
}

// New returns the backend if its kernels give the results of plain Go.
func (d Driver) New() (backend.Backend, error) {
	l, err := d.Level()
	if err != nil {
		return nil, err
	}
	b := At(d.Name, l)
	if !b.Agrees() {
		return nil, fmt.Errorf("the %s instructions of this processor do not give the results of plain Go", l.Name)
	}
	return b, nil
}

// Backend is a reduce backend of one level. It has no state.
type Backend struct {
	name string
	*Level
	rest backend.Backend
}

// At returns the backend called name of a level, which it does not try.
func At(name string, l *Level) Backend {
	rest, _ := cpugeneric.Driver{}.New() // never fails
	return Backend{name, l, rest}
}

// Name returns the registered name.
func (b Backend) Name() string { return b.name }

// Plain returns the backend in plain Go that does the rest.
func (b Backend) Plain() backend.Backend { return b.rest }

// Reduce sets dst[i] := x[i] op y[i] (data spec, section 3). See backend.Backend.
func (b Backend) Reduce(t dtype.Type, op dtype.Op, dst, x, y []byte) {
	// The condition comes first: the arguments of Check are allocated.
	if invariants.Enabled && !(t.Valid() && op.Valid() && len(x) == len(dst) && len(y) == len(dst) && len(dst)%t.Size() == 0) {
		invariants.Check(false, "reduce %v %v of %d, %d, %d bytes", t, op, len(dst), len(x), len(y))
	}
	n := len(dst) &^ (b.Step - 1)
	do := b.Level.Reduce[t][op]
	if do == nil || n == 0 || len(x) < n || len(y) < n {
		b.rest.Reduce(t, op, dst, x, y)
		return
	}
	dtype.RaceRead(x[:n])
	dtype.RaceRead(y[:n])
	dtype.RaceWrite(dst[:n])
	do(&dst[0], &x[0], &y[0], n)
	if n < len(dst) {
		b.rest.Reduce(t, op, dst[n:], x[n:], y[n:])
	}
}

// Finalize divides every element of dst by world (data spec, section 3). See backend.Backend.
func (b Backend) Finalize(t dtype.Type, dst []byte, world int) {
	if invariants.Enabled && !(t.Valid() && world > 0 && len(dst)%t.Size() == 0) {
		invariants.Check(false, "finalize %v of %d bytes, world %d", t, len(dst), world)
	}
	if world <= 1 {
		return
	}
	if n := len(dst) &^ (b.Step - 1); n > 0 && t.IsFloat() {
		dtype.RaceWrite(dst[:n])
		b.Divide(t, &dst[0], n, world)
		dst = dst[n:]
	}
	b.rest.Finalize(t, dst, world)
}

// Agrees compares every kernel with plain Go once. It costs some microseconds
// and guards against processors, emulators and hypervisors that claim
// instructions which they do not do.
func (b Backend) Agrees() bool {
	const size = 5 * 64
	var x, y, got, want [size]byte
	for t := range dtype.Type(dtype.NumTypes) {
		for i := range x {
			x[i], y[i] = byte(i*i*7+i), byte(i*i*11-i*3+5)
		}
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			b.Reduce(t, op, got[:], x[:], y[:])
			b.rest.Reduce(t, op, want[:], x[:], y[:])
			if got != want {
				return false
			}
		}
		got, want = x, x
		b.Finalize(t, got[:], 3)
		b.rest.Finalize(t, want[:], 3)
		if got != want {
			return false
		}
	}
	return true
}
