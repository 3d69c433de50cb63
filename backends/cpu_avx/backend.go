// Package cpuavx is the reduce backend for amd64 processors with AVX2. Every
// result has the bits of cpu_generic, which does what has no kernel here and
// the ends that fill no vector. The AVX-512 kernels beside it have run on no
// processor yet: the tests run them where one is found, New does not choose them.
package cpuavx

import (
	"fmt"

	cpugeneric "github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/invariants"
)

// Name is the name under which the backend is registered.
const Name = "cpu_avx"

func init() { backend.Register(Name, Driver{}) }

// Driver makes the backend with the widest proved vectors of the machine.
type Driver struct{}

// Rank is above the generic backend's.
func (Driver) Rank() int { return 10 }

// Probe says what the machine or the build lacks.
func (Driver) Probe() error {
	_, err := levels()
	return err
}

// New returns the backend, which has no state.
func (Driver) New() (backend.Backend, error) {
	ls, err := levels()
	if err != nil {
		return nil, err
	}
	for _, l := range ls {
		if b := at(l); !l.trial && b.agrees() {
			return b, nil
		}
	}
	return nil, fmt.Errorf("the vector instructions of this processor do not give the results of plain Go")
}

// kernel sets dst to a op b over n bytes, n a positive multiple of the level's step.
type kernel func(dst, a, b *byte, n int)

// level is one set of vector instructions.
type level struct {
	name   string
	step   int  // bytes that every kernel can do at once
	trial  bool // has run on no processor yet
	reduce [dtype.NumTypes][dtype.NumOps]kernel
}

type vectors struct {
	*level
	rest backend.Backend
}

func at(l *level) vectors {
	rest, _ := cpugeneric.Driver{}.New() // never fails
	return vectors{l, rest}
}

func (vectors) Name() string { return Name }

// Reduce sets dst[i] := a[i] op b[i] (data spec, section 3). See backend.Backend.
func (v vectors) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	if invariants.Enabled && !(t.Valid() && op.Valid() && len(a) == len(dst) && len(b) == len(dst) && len(dst)%t.Size() == 0) {
		invariants.Check(false, "reduce %v %v of %d, %d, %d bytes", t, op, len(dst), len(a), len(b))
	}
	n := len(dst) &^ (v.step - 1)
	do := v.reduce[t][op]
	if do == nil || n == 0 || len(a) < n || len(b) < n {
		v.rest.Reduce(t, op, dst, a, b)
		return
	}
	dtype.RaceRead(a[:n])
	dtype.RaceRead(b[:n])
	dtype.RaceWrite(dst[:n])
	do(&dst[0], &a[0], &b[0], n)
	if n < len(dst) {
		v.rest.Reduce(t, op, dst[n:], a[n:], b[n:])
	}
}

// Finalize divides every element of dst by world (data spec, section 3). See backend.Backend.
func (v vectors) Finalize(t dtype.Type, dst []byte, world int) {
	if invariants.Enabled && !(t.Valid() && world > 0 && len(dst)%t.Size() == 0) {
		invariants.Check(false, "finalize %v of %d bytes, world %d", t, len(dst), world)
	}
	if world <= 1 {
		return
	}
	if n := len(dst) &^ (v.step - 1); n > 0 && t.IsFloat() {
		dtype.RaceWrite(dst[:n])
		divide(t, &dst[0], n, world)
		dst = dst[n:]
	}
	v.rest.Finalize(t, dst, world)
}

// agrees compares every kernel with plain Go once. It costs some microseconds
// and guards against processors, emulators and hypervisors that claim
// instructions which they do not do.
func (v vectors) agrees() bool {
	const size = 5 * 64
	var a, b, got, want [size]byte
	for t := range dtype.Type(dtype.NumTypes) {
		for i := range a {
			a[i], b[i] = byte(i*i*7+i), byte(i*i*11-i*3+5)
		}
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			v.Reduce(t, op, got[:], a[:], b[:])
			v.rest.Reduce(t, op, want[:], a[:], b[:])
			if got != want {
				return false
			}
		}
		got, want = a, a
		v.Finalize(t, got[:], 3)
		v.rest.Finalize(t, want[:], 3)
		if got != want {
			return false
		}
	}
	return true
}
