// Package cpugeneric is the reduce backend in plain Go. It runs on every
// platform, is always linked, and is the oracle for faster backends.
package cpugeneric

import (
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/invariants"
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

// kernels are the loops of one element type; the slices are aligned to it.
type kernels struct {
	reduce   [dtype.NumOps]func(dst, a, b []byte)
	finalize func(dst []byte, world int)
}

var table = [dtype.NumTypes]kernels{
	dtype.Uint8:    {integerOps[uint8](add8), divideSmall[uint8]},
	dtype.Int8:     {integerOps[int8](add8), divideSmall[int8]},
	dtype.Uint16:   {integerOps[uint16](add16), divideSmall[uint16]},
	dtype.Int16:    {integerOps[int16](add16), divideSmall[int16]},
	dtype.Uint32:   {integerOps[uint32](add[uint32]), divideSmall[uint32]},
	dtype.Int32:    {integerOps[int32](add[int32]), divideSmall[int32]},
	dtype.Uint64:   {integerOps[uint64](add[uint64]), divideUint64},
	dtype.Int64:    {integerOps[int64](add[int64]), divideInt64},
	dtype.Float16:  {float16Ops, divideFloat16},
	dtype.BFloat16: {bfloat16Ops, divideBFloat16},
	dtype.Float32:  {float32Ops, divideFloat[float32]},
	dtype.Float64:  {float64Ops, divideFloat[float64]},
}

// blockSize bounds the copies on the stack for unaligned slices; a multiple of
// every element size.
const blockSize = 1024

// Reduce sets dst[i] := a[i] op b[i] (data spec, section 3). See backend.Backend.
func (generic) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	invariants.Check(t.Valid() && op.Valid() && len(a) == len(dst) && len(b) == len(dst) && len(dst)%t.Size() == 0,
		"reduce %v %v of %d, %d, %d bytes", t, op, len(dst), len(a), len(b))
	kernel := table[t].reduce[op]
	size := t.Size()
	if dtype.Aligned(dst, size) && dtype.Aligned(a, size) && dtype.Aligned(b, size) {
		kernel(dst, a, b)
		return
	}
	var x, y [blockSize / 8]uint64 // words, for their alignment
	xb, yb := dtype.AsBytes(x[:]), dtype.AsBytes(y[:])
	for len(dst) > 0 {
		n := copy(xb, a)
		copy(yb, b[:n])
		kernel(xb[:n], xb[:n], yb[:n])
		copy(dst, xb[:n])
		dst, a, b = dst[n:], a[n:], b[n:]
	}
}

// Finalize divides every element of dst by world (data spec, section 3). See backend.Backend.
func (generic) Finalize(t dtype.Type, dst []byte, world int) {
	invariants.Check(t.Valid() && world > 0 && len(dst)%t.Size() == 0,
		"finalize %v of %d bytes, world %d", t, len(dst), world)
	if world <= 1 {
		return
	}
	kernel := table[t].finalize
	if dtype.Aligned(dst, t.Size()) {
		kernel(dst, world)
		return
	}
	var x [blockSize / 8]uint64
	xb := dtype.AsBytes(x[:])
	for len(dst) > 0 {
		n := copy(xb, dst)
		kernel(xb[:n], world)
		dst = dst[copy(dst, xb[:n]):]
	}
}
