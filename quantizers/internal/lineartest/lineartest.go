// Package lineartest is the tests that the quantizers of one integer for each
// element share: kernels beside plain Go, and how fast both are.
package lineartest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/fenced"
	"github.com/gopccl/gopccl/internal/kerneltest"
)

// VectorsAgree checks that everything of z between float32 and uint8 that goes by
// vectors has the bits of plain Go, which plainly runs. metas returns metadata of
// every kind, beside those that z computes.
func VectorsAgree(t *testing.T, z quant.Quantizer, plainly func(f func()), metas func(rng *rand.Rand) []quant.Meta) {
	const f, u = dtype.Float32, dtype.Uint8
	rng := rand.New(rand.NewPCG(5, 5))
	for n := range 1200 {
		if testing.Short() && n > 300 && n%5 != 0 {
			continue
		}
		kind := n % kerneltest.Kinds
		src := kerneltest.Chunk(kind, n, rng)
		own := z.Params(f, u, src)
		var want quant.Meta
		plainly(func() { want = z.Params(f, u, src) })
		if !same(want, own) {
			t.Fatalf("kind %d, %d elements: metadata %+v, plainly %+v", kind, n, own, want)
		}
		for _, m := range append([]quant.Meta{own}, metas(rng)...) {
			q, plain := make([]byte, n+1), make([]byte, n+1)
			z.Quantize(f, u, &m, q[:n], src)
			plainly(func() { z.Quantize(f, u, &m, plain[:n], src) })
			if !bytes.Equal(plain, q) {
				t.Fatalf("quantize: kind %d, %d elements, %+v", kind, n, m)
			}
			for j := range q {
				q[j] = byte(rng.Uint32())
			}
			for op := range dtype.Op(dtype.NumOps) {
				a, b, c := bytes.Clone(src), bytes.Clone(src), make([]byte, 4*n)
				z.Dequantize(f, u, &m, op, a, q[:n])
				plainly(func() { z.Dequantize(f, u, &m, op, b, q[:n]) })
				if !bytes.Equal(a, b) {
					t.Fatalf("dequantize %v: kind %d, %d elements, %+v", op, kind, n, m)
				}
				quant.DequantizeFrom(z, f, u, &m, op, c, src, q[:n])
				if !bytes.Equal(c, b) {
					t.Fatalf("dequantize %v to another place: kind %d, %d elements, %+v", op, kind, n, m)
				}
			}
		}
	}
}

// same compares the bits of metadata.
func same(a, b quant.Meta) bool {
	bits := math.Float64bits
	equal := bits(a.Min) == bits(b.Min) && bits(a.Max) == bits(b.Max) && math.Float32bits(a.Scale) == math.Float32bits(b.Scale)
	a.Min, a.Max, a.Scale, b.Min, b.Max, b.Scale = 0, 0, 0, 0, 0, 0
	return equal && a == b
}

// BordersAgree quantizes elements that lie at the border between two bytes, a few
// steps of float32 to both sides of it, among others that do not: what float32
// cannot decide is left to float64. border is where byte i ends under m, and other
// any element.
func BordersAgree(t *testing.T, z quant.Quantizer, plainly func(f func()), metas func(round int, rng *rand.Rand) (m quant.Meta, border func(i int) float32, other func() float32)) {
	rng := rand.New(rand.NewPCG(9, 9))
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for round := range rounds {
		m, border, other := metas(round, rng)
		var data []float32
		for i := range 256 {
			at := math.Float32bits(border(i))
			for step := range 9 {
				data = append(data, math.Float32frombits(uint32(int(at)+step-4)))
				if round%2 == 0 {
					for range 31 {
						data = append(data, other())
					}
				}
			}
		}
		src := dtype.AsBytes(data)
		got, want := make([]byte, len(data)), make([]byte, len(data))
		z.Quantize(dtype.Float32, dtype.Uint8, &m, got, src)
		plainly(func() { z.Quantize(dtype.Float32, dtype.Uint8, &m, want, src) })
		if !bytes.Equal(want, got) {
			t.Fatalf("quantize: %+v", m)
		}
	}
}

// Plainly returns what runs a function with the loops in plain Go: while byVector,
// a variable of the package that is tested, is false.
func Plainly(byVector *bool) func(f func()) {
	return func(f func()) {
		was := *byVector
		*byVector = false
		defer func() { *byVector = was }()
		f()
	}
}

// Fences checks that no kernel touches a byte before or behind its operands.
func Fences(t *testing.T, z quant.Quantizer) {
	src, q := fenced.Memory(t, 1), fenced.Memory(t, 1)
	for i := range src {
		src[i] = byte(i*i>>3) & 0x7f
	}
	for n := range 300 {
		for _, at := range []int{0, 1} { // at the first byte, up to the last one
			f, w := src[at*(len(src)-4*n):][:4*n], q[at*(len(q)-n):][:n]
			m := z.Params(dtype.Float32, dtype.Uint8, f)
			z.Quantize(dtype.Float32, dtype.Uint8, &m, w, f)
			z.Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, f, w)
			z.Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Sum, f, w)
		}
	}
}

// Benchmark measures z on float32 data. Bytes are those of the data; a data step of
// a ring quantizes and dequantizes once per chunk.
func Benchmark(b *testing.B, z quant.Quantizer, wires []dtype.Type, ops []dtype.Op) {
	rng := rand.New(rand.NewPCG(1, 1))
	data := make([]float32, 64<<10)
	for i := range data {
		data[i] = float32(rng.NormFloat64())
	}
	src := dtype.AsBytes(data)
	dst := make([]byte, len(src))
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				f()
			}
		})
	}
	for _, q := range wires {
		wireForm := make([]byte, len(data)*q.Size())
		m := z.Params(dtype.Float32, q, src)
		z.Quantize(dtype.Float32, q, &m, wireForm, src)
		run(q.String()+"/params", func() { z.Params(dtype.Float32, q, src) })
		run(q.String()+"/quantize", func() { z.Quantize(dtype.Float32, q, &m, wireForm, src) })
		for _, op := range ops {
			run(q.String()+"/dequantize-"+op.String(), func() { z.Dequantize(dtype.Float32, q, &m, op, dst, wireForm) })
		}
	}
}
