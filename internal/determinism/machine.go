package determinism

import (
	"context"
	"slices"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Machine is something that computes. The slices are in host memory, little-endian;
// their lengths are those that backend.Backend and quant.Quantizer ask for.
type Machine interface {
	// Name says what computes: a backend, or a device.
	Name() string
	// Reduce sets dst[i] := a[i] op b[i].
	Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) error
	// Finalize divides dst by world.
	Finalize(t dtype.Type, dst []byte, world int) error
	// Hash returns the SimpleHash of b. The machine's copy of it begins at an
	// address that is offset above a multiple of 256, where it has a copy.
	Hash(b []byte, offset int) (uint32, error)
	// Params, Quantize and Dequantize do what the quantizer's methods do.
	Params(q quant.Quantizer, t, w dtype.Type, src []byte) (quant.Meta, error)
	Quantize(q quant.Quantizer, t, w dtype.Type, m *quant.Meta, dst, src []byte) error
	Dequantize(q quant.Quantizer, t, w dtype.Type, m *quant.Meta, op dtype.Op, dst, src []byte) error
	// Exp sums up exp of each step-th of all float32 patterns, from 0 on.
	Exp(ctx context.Context, step uint64) (ExpSums, error)
}

// cpu is a Machine of a backend and what the process uses beside it.
type cpu struct{ backend.Backend }

// CPU returns the machine that b is part of.
func CPU(b backend.Backend) Machine { return cpu{b} }

// CPUs returns a machine for every registered backend that computes here, the
// oracle cpu_generic first, and why the others do not.
func CPUs() (list []Machine, passed []string, err error) {
	names := backend.Names()
	slices.SortStableFunc(names, func(a, b string) int {
		return index(b == oracle) - index(a == oracle)
	})
	for _, name := range names {
		b, _, err := backend.Select(name)
		switch {
		case err == nil:
			list = append(list, CPU(b))
		case name == oracle:
			return nil, nil, err
		default:
			passed = append(passed, err.Error())
		}
	}
	return list, passed, nil
}

const oracle = "cpu_generic"

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c cpu) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) error {
	c.Backend.Reduce(t, op, dst, a, b)
	return nil
}

func (c cpu) Finalize(t dtype.Type, dst []byte, world int) error {
	c.Backend.Finalize(t, dst, world)
	return nil
}

func (cpu) Hash(b []byte, offset int) (uint32, error) {
	return digest.SimpleHash(shifted(b, offset)), nil
}

// shifted returns a copy of b that begins offset above an allocation.
func shifted(b []byte, offset int) []byte {
	place := make([]byte, offset+len(b))
	return append(place[:offset], b...)[offset:]
}

// hasher is a Machine with a hasher of its own.
type hasher struct {
	Machine
	h digest.Hasher
}

// Name implements Machine.
func (m hasher) Name() string { return "hasher " + m.h.Name() }

// Hash implements Machine.
func (m hasher) Hash(b []byte, offset int) (uint32, error) {
	return m.h.SimpleHash(shifted(b, offset)), nil
}

// Hashers returns every registered hasher that computes here, and why the others
// do not.
func Hashers() (list []digest.Hasher, passed []string) {
	for _, name := range digest.Names() {
		if h, _, err := digest.Select(name); err == nil {
			list = append(list, h)
		} else {
			passed = append(passed, err.Error())
		}
	}
	return list, passed
}

func (cpu) Params(q quant.Quantizer, t, w dtype.Type, src []byte) (quant.Meta, error) {
	return q.Params(t, w, src), nil
}

func (cpu) Quantize(q quant.Quantizer, t, w dtype.Type, m *quant.Meta, dst, src []byte) error {
	q.Quantize(t, w, m, dst, src)
	return nil
}

func (cpu) Dequantize(q quant.Quantizer, t, w dtype.Type, m *quant.Meta, op dtype.Op, dst, src []byte) error {
	q.Dequantize(t, w, m, op, dst, src)
	return nil
}

func (cpu) Exp(ctx context.Context, step uint64) (ExpSums, error) { return SweepExp(ctx, step) }
