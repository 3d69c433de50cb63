package determinism

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/gopccl/gopccl/core/dtype"
)

// float is what optimizers compute with.
type float interface{ float32 | float64 }

// function is one that optimizers use beside sums and products. IEEE 754 wants
// every one of them rounded once, or, for rsqrt, twice: a processor, a compiler
// or a library that does something else gives other bits.
type function[T float] struct {
	name string
	f    func(a, b, c T) T
}

// functions of one type. Conversions keep the compiler from fusing a product
// with a sum where nobody asked for it.
func functionsOf[T float]() []function[T] {
	return []function[T]{
		{"div", func(a, b, _ T) T { return a / b }},
		{"sqrt", func(a, _, _ T) T { return T(math.Sqrt(float64(a))) }},
		{"rsqrt", func(a, _, _ T) T { return 1 / T(math.Sqrt(float64(a))) }},
		{"fma", fma[T]},
		{"product and sum", func(a, b, c T) T { return T(a*b) + c }},
	}
}

// fma is a*b+c, rounded once.
func fma[T float](a, b, c T) T {
	if unsafe.Sizeof(a) == 8 {
		return T(math.FMA(float64(a), float64(b), float64(c)))
	}
	// The product of two float32 is exact in float64. Their sum with c is rounded
	// to odd, so that the second rounding does not add to the first.
	x, y := float64(a)*float64(b), float64(c)
	s := x + y
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return T(s)
	}
	v := s - x
	lost := (x - (s - v)) + (y - v)
	if bits := math.Float64bits(s); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return T(s)
}

// functions compares what the outer steps of optimizers use with what was
// recorded: a square root, its reciprocal, a quotient and a fused product.
func (r *runner) functions() error {
	if err := functionsOn[float32](r, dtype.Float32); err != nil {
		return err
	}
	return functionsOn[float64](r, dtype.Float64)
}

func functionsOn[T float](r *runner, t dtype.Type) error {
	a := dtype.View[T](patterns(t, r.Elements, 201))
	b := dtype.View[T](patterns(t, r.Elements, 202))
	c := dtype.View[T](patterns(t, r.Elements, 203))
	for _, f := range functionsOf[T]() {
		err := r.compare("function", fmt.Sprintf("%s %v", f.name, t), processor, nil, func(_ Machine, o *outcome) error {
			dst := make([]byte, len(a)*t.Size())
			for i := range a {
				dtype.View[T](dst)[i] = f.f(a[i], b[i], c[i])
			}
			o.add(t, dst)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
