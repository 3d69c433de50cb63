package kernels

import (
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// unsigned is the type whose sums and products have the bits of t.
func unsigned(t dtype.Type) dtype.Type {
	switch t {
	case dtype.Int8:
		return dtype.Uint8
	case dtype.Int16:
		return dtype.Uint16
	case dtype.Int32:
		return dtype.Uint32
	case dtype.Int64:
		return dtype.Uint64
	}
	if t.IsSigned() {
		dtype.Unhandled("device kernels", t)
	}
	return t
}

func reduceName(t dtype.Type, op dtype.Op) string {
	switch op {
	case dtype.Avg:
		return reduceName(t, dtype.Sum)
	case dtype.Sum, dtype.Prod:
		t = unsigned(t)
	}
	return "reduce_" + op.String() + "_" + t.String()
}

func finalizeName(t dtype.Type) string { return "finalize_" + t.String() }

func reduceNames() (names []string) {
	for t := range dtype.Type(dtype.NumTypes) {
		for _, op := range []dtype.Op{dtype.Sum, dtype.Prod, dtype.Max, dtype.Min} {
			if op >= dtype.Max || unsigned(t) == t {
				names = append(names, reduceName(t, op))
			}
		}
		names = append(names, finalizeName(t))
	}
	return names
}

// Reduce queues dst[i] := a[i] op b[i] for n elements of t, a being the local
// and b the received value, with the bits of the backends for processors (data
// spec, section 3). Op is dtype.Sum, Avg (adds), Prod, Max or Min. dst may be a
// or b itself, never a shifted view of one. Addresses are multiples of the
// element's size; it is fastest where all three are equal modulo 16.
func (k *Set) Reduce(t dtype.Type, op dtype.Op, dst, a, b driver.Ptr, n uint64, s driver.Stream) error {
	if !t.Valid() || !op.Valid() {
		return errs.New(errs.InvalidArgument, "device reduce", fmt.Errorf("there is no %v of %v", op, t))
	}
	if err := aligned("device reduce", t, dst, a, b); err != nil || n == 0 {
		return err
	}
	return k.launch(reduceName(t, op), k.grid(steps(t, n, dst, a, b)), s, args().ptr(dst, a, b).u64(n))
}

// Finalize queues the division of n elements of t by world (dtype.Avg only,
// data spec, section 3). World 1 and less leave them as they are.
func (k *Set) Finalize(t dtype.Type, dst driver.Ptr, n uint64, world int, s driver.Stream) error {
	if !t.Valid() || world > math.MaxInt32 {
		return errs.New(errs.InvalidArgument, "device finalize", fmt.Errorf("%v divided by a world of %d", t, world))
	}
	if err := aligned("device finalize", t, dst); err != nil || n == 0 || world <= 1 {
		return err
	}
	return k.launch(finalizeName(t), k.grid(steps(t, n, dst, dst, dst)), s, args().ptr(dst).u64(n).u32(uint32(world)))
}

// steps is how many vecs of 16 bytes, or elements where there are none, the
// kernel goes through.
func steps(t dtype.Type, n uint64, dst, a, b driver.Ptr) uint64 {
	if ((dst^a)|(dst^b))&15 != 0 {
		return n
	}
	return (n + uint64(16/t.Size()) - 1) / uint64(16/t.Size())
}
