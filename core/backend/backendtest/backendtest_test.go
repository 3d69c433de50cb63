package backendtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
)

// reference is a backend made of the oracle; mutants break one rule of it.
type reference struct{}

func (reference) Name() string { return "reference" }

func (reference) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	for i := 0; i < len(dst); i += t.Size() {
		store(t, dst[i:], reduceOne(t, op, load(t, a[i:]), load(t, b[i:])))
	}
}

func (reference) Finalize(t dtype.Type, dst []byte, world int) {
	for i := 0; i < len(dst); i += t.Size() {
		store(t, dst[i:], divideOne(t, load(t, dst[i:]), world))
	}
}

type driver struct{ backend.Backend }

func (driver) Rank() int                       { return 0 }
func (driver) Probe() error                    { return nil }
func (d driver) New() (backend.Backend, error) { return d.Backend, nil }

func TestReferencePasses(t *testing.T) { Run(t, driver{reference{}}) }

type mutant struct {
	reference
	reduce   func(t dtype.Type, op dtype.Op, dst, a, b []byte)
	finalize func(t dtype.Type, dst []byte, world int)
}

func (m mutant) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	if m.reduce == nil {
		m.reference.Reduce(t, op, dst, a, b)
		return
	}
	m.reduce(t, op, dst, a, b)
}

func (m mutant) Finalize(t dtype.Type, dst []byte, world int) {
	if m.finalize == nil {
		m.reference.Finalize(t, dst, world)
		return
	}
	m.finalize(t, dst, world)
}

// The suite has teeth: each of these mistakes of real kernels is found.
func TestMutantsFail(t *testing.T) {
	reduces := map[string]func(t dtype.Type, op dtype.Op, dst, a, b []byte){
		"operands swapped": func(t dtype.Type, op dtype.Op, dst, a, b []byte) {
			reference{}.Reduce(t, op, dst, b, a)
		},
		"last element forgotten": func(t dtype.Type, op dtype.Op, dst, a, b []byte) {
			n := max(0, len(dst)-t.Size())
			reference{}.Reduce(t, op, dst[:n], a[:n], b[:n])
		},
		"one element too many": func(t dtype.Type, op dtype.Op, dst, a, b []byte) {
			reference{}.Reduce(t, op, dst, a, b)
			d := dst[:len(dst)+1]
			d[len(dst)]++
		},
		"subnormals flushed": func(t dtype.Type, op dtype.Op, dst, a, b []byte) {
			reference{}.Reduce(t, op, dst, a, b)
			fraction, _ := format(t)
			for i := 0; i < len(dst); i += t.Size() {
				if v := load(t, dst[i:]); v != 0 && v < 1<<fraction {
					store(t, dst[i:], 0)
				}
			}
		},
		"copy of a first": func(t dtype.Type, op dtype.Op, dst, a, b []byte) {
			copy(dst, a)
			reference{}.Reduce(t, op, dst, dst, b)
		},
		"operand scribbled on": func(t dtype.Type, op dtype.Op, dst, a, b []byte) {
			reference{}.Reduce(t, op, dst, a, b)
			if len(b) > 0 && &b[0] != &dst[0] {
				b[0]++
			}
		},
	}
	for name, f := range reduces {
		t.Run(name, func(t *testing.T) {
			require.Error(t, checkReduce(mutant{reduce: f}, dtype.Float32, dtype.Max))
		})
	}
	finalizes := map[string]func(t dtype.Type, dst []byte, world int){
		"world narrowed to the type": func(t dtype.Type, dst []byte, world int) {
			if w := int(int8(world)); w != 0 {
				reference{}.Finalize(t, dst, w)
			}
		},
		"floor": func(t dtype.Type, dst []byte, world int) {
			for i := range dst {
				q, r := int(int8(dst[i]))/world, int(int8(dst[i]))%world
				if r < 0 {
					q--
				}
				dst[i] = byte(q)
			}
		},
	}
	for name, f := range finalizes {
		t.Run(name, func(t *testing.T) {
			require.Error(t, checkFinalize(mutant{finalize: f}, dtype.Int8))
		})
	}
	t.Run("vectors", func(t *testing.T) {
		require.NoError(t, checkVectors(reference{}))
		require.Error(t, checkVectors(mutant{reduce: reduces["operands swapped"]}))
		require.Error(t, checkVectors(mutant{finalize: finalizes["floor"]}))
	})
}

// Two bfloat16 steps instead of one rounding differ from the reference.
func TestDoubleRoundingIsFound(t *testing.T) {
	m := mutant{reduce: func(t dtype.Type, op dtype.Op, dst, a, b []byte) {
		for i := 0; i < len(dst); i += 2 {
			sum := round(dtype.Float16, value(t, load(t, a[i:]))+value(t, load(t, b[i:])))
			store(t, dst[i:], pattern(t, round(t, sum)))
		}
	}}
	require.Error(t, checkReduce(m, dtype.BFloat16, dtype.Sum))
}
