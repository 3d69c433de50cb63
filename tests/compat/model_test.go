package compat

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// Short names of what the scripts use most.
const (
	sum  = dtype.Sum
	avg  = dtype.Avg
	prod = dtype.Prod
	maxi = dtype.Max
	mini = dtype.Min
	f32  = dtype.Float32
	f64  = dtype.Float64
)

var (
	allOps   = []dtype.Op{sum, avg, prod, maxi, mini}
	allTypes = []dtype.Type{
		dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32,
		dtype.Int32, dtype.Uint64, dtype.Int64, dtype.Float32, dtype.Float64,
	}
)

type element interface {
	~uint8 | ~int8 | ~uint16 | ~int16 | ~uint32 | ~int32 | ~uint64 | ~int64 | ~float32 | ~float64
}

// outcome is what one position of a ring must report.
type outcome struct {
	data   []byte // nil where the model does not know the bits
	tx, rx uint64
}

// predict computes, straight from the data spec, what an all-reduce of inputs
// (in ring order) gives: the result, equal at all positions (sections 2, 3 and
// 4), and the counters of each position (section 5). It is written apart from
// the engine, chunk by chunk and without any transport.
func predict(r *pccl.Reduce, inputs [][]byte) []outcome {
	switch r.DType {
	case dtype.Uint8:
		return ringReduce[uint8](r, inputs)
	case dtype.Int8:
		return ringReduce[int8](r, inputs)
	case dtype.Uint16:
		return ringReduce[uint16](r, inputs)
	case dtype.Int16:
		return ringReduce[int16](r, inputs)
	case dtype.Uint32:
		return ringReduce[uint32](r, inputs)
	case dtype.Int32:
		return ringReduce[int32](r, inputs)
	case dtype.Uint64:
		return ringReduce[uint64](r, inputs)
	case dtype.Int64:
		return ringReduce[int64](r, inputs)
	case dtype.Float32:
		return ringReduce[float32](r, inputs)
	case dtype.Float64:
		return ringReduce[float64](r, inputs)
	}
	panic("no model for " + r.DType.String())
}

func ringReduce[T element](r *pccl.Reduce, inputs [][]byte) []outcome {
	n := len(inputs)
	values := make([][]T, n)
	for i := range inputs {
		values[i] = decode[T](inputs[i])
	}
	chunk := func(c int) (from, to int) {
		base, rem := len(values[0])/n, len(values[0])%n
		from = c*base + min(c, rem)
		to = from + base
		if c < rem {
			to++
		}
		return from, to
	}

	var result []T
	known := r.Algorithm != pccl.ZeroPoint && (r.Algorithm != pccl.MinMax || r.QType.Size() < r.DType.Size())
	for c := 0; known && c < n; c++ {
		from, to := chunk(c)
		// The chunk starts at position c and is combined with one position after the other.
		acc := append([]T(nil), values[c][from:to]...)
		for hop := 1; hop < n; hop++ {
			received := acc
			if r.Algorithm == pccl.MinMax {
				received = throughMinMax(received, r.QType)
			}
			acc = append([]T(nil), values[(c+hop)%n][from:to]...)
			for i := range acc {
				acc[i] = combine(r.Op, acc[i], received[i])
			}
		}
		if r.Algorithm == pccl.MinMax {
			acc = throughMinMax(acc, r.QType)
		}
		if r.Op == avg {
			for i := range acc {
				acc[i] /= T(n)
			}
		}
		result = append(result, acc...)
	}

	size, meta := uint64(r.DType.Size()), uint64(0)
	if r.Algorithm != pccl.NoQuantization {
		size = uint64(r.QType.Size())
		meta = map[string]uint64{"minmax/float32": 35, "minmax/float64": 43, "zeropoint/float32": 27, "zeropoint/float64": 27}[fmt.Sprintf("%v/%v", r.Algorithm, r.DType)]
	}
	bytes := func(c int) uint64 {
		from, to := chunk(((c % n) + n) % n)
		return uint64(to-from)*size + meta
	}
	out := make([]outcome, n)
	for pos := range out {
		if known {
			out[pos].data = encode(result)
		}
		for s := range n - 1 {
			out[pos].tx += bytes(pos-s) + bytes(pos+1-s)
			out[pos].rx += bytes(pos-s-1) + bytes(pos-s)
		}
	}
	return out
}

// combine is one hop: the local element and the received one (data spec, section 3).
func combine[T element](op dtype.Op, local, received T) T {
	switch op {
	case sum, avg:
		return local + received
	case prod:
		return local * received
	case maxi:
		if local < received {
			return received
		}
		return local
	case mini:
		if received < local {
			return received
		}
		return local
	}
	panic("no model for " + op.String())
}

// throughMinMax quantizes and dequantizes one chunk (data spec, section 4.4).
func throughMinMax[T element](src []T, q dtype.Type) []T {
	var lo, hi T
	switch any(lo).(type) {
	case float32:
		lo, hi = num[T](float64(float32(math.MaxFloat32))), num[T](1.1754943508222875e-38)
	default:
		lo, hi = num[T](math.MaxFloat64), num[T](2.2250738585072014e-308)
	}
	for _, x := range src {
		if x < lo {
			lo = x
		}
		if hi < x {
			hi = x
		}
	}
	top := math.Exp2(float64(8*q.Size())) - 1
	d := float64(T(hi - lo))
	out := make([]T, len(src))
	for i, x := range src {
		rel := float64(T(x - lo))
		if d != 0 {
			k := 1 / d
			rel = (float64(x) - float64(lo)) * k
		}
		code := math.Trunc(rel * top)
		back := num[T](code * (1 / top))
		scaled := T(back * T(hi-lo))
		out[i] = T(lo + scaled)
	}
	return out
}

// num converts a float64 to T; a constant conversion would not compile for the integers.
func num[T element](x float64) T { return T(x) }

func decode[T element](b []byte) []T {
	var one T
	size := int(unsafe.Sizeof(one))
	out := make([]T, len(b)/size)
	if _, err := binary.Decode(b, binary.LittleEndian, out); err != nil {
		panic(err)
	}
	return out
}

func encode[T element](v []T) []byte {
	b, err := binary.Append([]byte{}, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
	return b
}

// spread returns the largest distance between a and b, element by element, both of type t (float32 or float64).
func spread(t dtype.Type, a, b []byte) float64 {
	far := 0.0
	if t == f32 {
		y := decode[float32](b)
		for i, x := range decode[float32](a) {
			far = max(far, math.Abs(float64(x)-float64(y[i])))
		}
		return far
	}
	y := decode[float64](b)
	for i, x := range decode[float64](a) {
		far = max(far, math.Abs(x-y[i]))
	}
	return far
}
