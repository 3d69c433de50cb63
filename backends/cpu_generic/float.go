package cpugeneric

import (
	"math"

	"github.com/gopccl/gopccl/core/dtype"
)

func reduceFloat32(op dtype.Op, dst, a, b []byte) {
	switch op {
	case dtype.Sum, dtype.Avg:
		add[float32](dst, a, b)
	case dtype.Prod:
		mul[float32](dst, a, b)
	case dtype.Max:
		maxFloat32(dst, a, b)
	case dtype.Min:
		minFloat32(dst, a, b)
	default:
		dtype.Unhandled(Name, op)
	}
}

func reduceFloat64(op dtype.Op, dst, a, b []byte) {
	switch op {
	case dtype.Sum, dtype.Avg:
		add[float64](dst, a, b)
	case dtype.Prod:
		mul[float64](dst, a, b)
	case dtype.Max:
		maxFloat64(dst, a, b)
	case dtype.Min:
		minFloat64(dst, a, b)
	default:
		dtype.Unhandled(Name, op)
	}
}

// Max and min compare floats and choose between their patterns: a choice
// between integers needs no branch, and random data would mispredict one.
// Comparisons with NaN are false and zeros are equal, so x, the local value,
// stays.

func larger32(x, y uint32) uint32 {
	if math.Float32frombits(x) < math.Float32frombits(y) {
		x = y
	}
	return x
}

func smaller32(x, y uint32) uint32 {
	if math.Float32frombits(y) < math.Float32frombits(x) {
		x = y
	}
	return x
}

func larger64(x, y uint64) uint64 {
	if math.Float64frombits(x) < math.Float64frombits(y) {
		x = y
	}
	return x
}

func smaller64(x, y uint64) uint64 {
	if math.Float64frombits(y) < math.Float64frombits(x) {
		x = y
	}
	return x
}

func maxFloat32(dst, a, b []byte) {
	d, x, y := dtype.View[uint32](dst), dtype.View[uint32](a), dtype.View[uint32](b)
	for len(d) >= 4 && len(x) >= 4 && len(y) >= 4 {
		p, q, r := (*[4]uint32)(d), (*[4]uint32)(x), (*[4]uint32)(y)
		p[0] = larger32(q[0], r[0])
		p[1] = larger32(q[1], r[1])
		p[2] = larger32(q[2], r[2])
		p[3] = larger32(q[3], r[3])
		d, x, y = d[4:], x[4:], y[4:]
	}
	for i := range d {
		d[i] = larger32(x[i], y[i])
	}
}

func minFloat32(dst, a, b []byte) {
	d, x, y := dtype.View[uint32](dst), dtype.View[uint32](a), dtype.View[uint32](b)
	for len(d) >= 4 && len(x) >= 4 && len(y) >= 4 {
		p, q, r := (*[4]uint32)(d), (*[4]uint32)(x), (*[4]uint32)(y)
		p[0] = smaller32(q[0], r[0])
		p[1] = smaller32(q[1], r[1])
		p[2] = smaller32(q[2], r[2])
		p[3] = smaller32(q[3], r[3])
		d, x, y = d[4:], x[4:], y[4:]
	}
	for i := range d {
		d[i] = smaller32(x[i], y[i])
	}
}

func maxFloat64(dst, a, b []byte) {
	d, x, y := dtype.View[uint64](dst), dtype.View[uint64](a), dtype.View[uint64](b)
	for len(d) >= 4 && len(x) >= 4 && len(y) >= 4 {
		p, q, r := (*[4]uint64)(d), (*[4]uint64)(x), (*[4]uint64)(y)
		p[0] = larger64(q[0], r[0])
		p[1] = larger64(q[1], r[1])
		p[2] = larger64(q[2], r[2])
		p[3] = larger64(q[3], r[3])
		d, x, y = d[4:], x[4:], y[4:]
	}
	for i := range d {
		d[i] = larger64(x[i], y[i])
	}
}

func minFloat64(dst, a, b []byte) {
	d, x, y := dtype.View[uint64](dst), dtype.View[uint64](a), dtype.View[uint64](b)
	for len(d) >= 4 && len(x) >= 4 && len(y) >= 4 {
		p, q, r := (*[4]uint64)(d), (*[4]uint64)(x), (*[4]uint64)(y)
		p[0] = smaller64(q[0], r[0])
		p[1] = smaller64(q[1], r[1])
		p[2] = smaller64(q[2], r[2])
		p[3] = smaller64(q[3], r[3])
		d, x, y = d[4:], x[4:], y[4:]
	}
	for i := range d {
		d[i] = smaller64(x[i], y[i])
	}
}

// divideFloat divides once per element. The reciprocal of a power of two is
// exact, so that its product has the same bits as the quotient.
func divideFloat[T ~float32 | ~float64](dst []byte, world int) {
	d := dtype.View[T](dst)
	w := T(world)
	if world&(world-1) == 0 {
		r := 1 / w
		for i := range d {
			d[i] *= r
		}
		return
	}
	for i := range d {
		d[i] /= w
	}
}
