// Package cpugeneric is the reduce backend in plain Go. It runs on every
// platform, is always linked, and is the oracle for faster backends.
package cpugeneric

import (
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/invariants"
)

// Name is the name under which the backend is registered.
const Name = "cpu_generic"

func init() { backend.Register(Name, Driver{}) }

// Driver makes the backend; it works everywhere.
type Driver struct{}

// Rank is the lowest: any backend that knows the processor is preferred.
func (Driver) Rank() int { return 0 }

// Probe never fails.
func (Driver) Probe() error { return nil }

// New returns the backend, which has no state.
func (Driver) New() (backend.Backend, error) { return generic{}, nil }

type generic struct{}

func (generic) Name() string { return Name }

// blockSize bounds the copies on the stack for unaligned slices; a multiple of
// every element size.
const blockSize = 1024

// Reduce sets dst[i] := a[i] op b[i] (data spec, section 3). See backend.Backend.
func (generic) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	// The condition comes first: the arguments of Check are allocated.
	if invariants.Enabled && !(t.Valid() && op.Valid() && len(a) == len(dst) && len(b) == len(dst) && len(dst)%t.Size() == 0) {
		invariants.Check(false, "reduce %v %v of %d, %d, %d bytes", t, op, len(dst), len(a), len(b))
	}
	size := t.Size()
	if dtype.Aligned(dst, size) && dtype.Aligned(a, size) && dtype.Aligned(b, size) {
		reduce(t, op, dst, a, b)
		return
	}
	var x, y [blockSize / 8]uint64 // words, for their alignment
	xb, yb := dtype.AsBytes(x[:]), dtype.AsBytes(y[:])
	for len(dst) > 0 {
		n := copy(xb, a)
		copy(yb, b[:n])
		reduce(t, op, xb[:n], xb[:n], yb[:n])
		copy(dst, xb[:n])
		dst, a, b = dst[n:], a[n:], b[n:]
	}
}

// Finalize divides every element of dst by world (data spec, section 3). See backend.Backend.
func (generic) Finalize(t dtype.Type, dst []byte, world int) {
	if invariants.Enabled && !(t.Valid() && world > 0 && len(dst)%t.Size() == 0) {
		invariants.Check(false, "finalize %v of %d bytes, world %d", t, len(dst), world)
	}
	if world <= 1 {
		return
	}
	if dtype.Aligned(dst, t.Size()) {
		divide(t, dst, world)
		return
	}
	var x [blockSize / 8]uint64
	xb := dtype.AsBytes(x[:])
	for len(dst) > 0 {
		n := copy(xb, dst)
		divide(t, xb[:n], world)
		dst = dst[copy(dst, xb[:n]):]
	}
}

// reduce takes aligned slices. Static calls, since slices given to a function
// value would move the blocks above to the heap.
func reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	switch t {
	case dtype.Uint8:
		reduceInteger[uint8](op, dst, a, b)
	case dtype.Int8:
		reduceInteger[int8](op, dst, a, b)
	case dtype.Uint16:
		reduceInteger[uint16](op, dst, a, b)
	case dtype.Int16:
		reduceInteger[int16](op, dst, a, b)
	case dtype.Uint32:
		reduceInteger[uint32](op, dst, a, b)
	case dtype.Int32:
		reduceInteger[int32](op, dst, a, b)
	case dtype.Uint64:
		reduceInteger[uint64](op, dst, a, b)
	case dtype.Int64:
		reduceInteger[int64](op, dst, a, b)
	case dtype.Float16:
		reduceFloat16(op, dst, a, b)
	case dtype.BFloat16:
		reduceBFloat16(op, dst, a, b)
	case dtype.Float32:
		reduceFloat32(op, dst, a, b)
	case dtype.Float64:
		reduceFloat64(op, dst, a, b)
	default:
		dtype.Unhandled(Name, t)
	}
}

func divide(t dtype.Type, dst []byte, world int) {
	switch t {
	case dtype.Uint8:
		divideSmall[uint8](dst, world)
	case dtype.Int8:
		divideSmall[int8](dst, world)
	case dtype.Uint16:
		divideSmall[uint16](dst, world)
	case dtype.Int16:
		divideSmall[int16](dst, world)
	case dtype.Uint32:
		divideSmall[uint32](dst, world)
	case dtype.Int32:
		divideSmall[int32](dst, world)
	case dtype.Uint64:
		divideUint64(dst, world)
	case dtype.Int64:
		divideInt64(dst, world)
	case dtype.Float16:
		divideFloat16(dst, world)
	case dtype.BFloat16:
		divideBFloat16(dst, world)
	case dtype.Float32:
		divideFloat[float32](dst, world)
	case dtype.Float64:
		divideFloat[float64](dst, world)
	default:
		dtype.Unhandled(Name, t)
	}
}
