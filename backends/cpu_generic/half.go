package cpugeneric

import "github.com/gopccl/gopccl/core/dtype"

// Both 16 bit formats are computed in float32 and rounded once per operation
// to the nearest even. float32 has more than twice their precision and two
// bits, so that the result is the correctly rounded one.

func reduceFloat16(op dtype.Op, dst, a, b []byte) {
	switch op {
	case dtype.Sum, dtype.Avg:
		addFloat16(dst, a, b)
	case dtype.Prod:
		mulFloat16(dst, a, b)
	case dtype.Max:
		maxFloat16(dst, a, b)
	case dtype.Min:
		minFloat16(dst, a, b)
	default:
		dtype.Unhandled(Name, op)
	}
}

func reduceBFloat16(op dtype.Op, dst, a, b []byte) {
	switch op {
	case dtype.Sum, dtype.Avg:
		addBFloat16(dst, a, b)
	case dtype.Prod:
		mulBFloat16(dst, a, b)
	case dtype.Max:
		maxBFloat16(dst, a, b)
	case dtype.Min:
		minBFloat16(dst, a, b)
	default:
		dtype.Unhandled(Name, op)
	}
}

// halves returns the three slices as patterns of equal length.
func halves(dst, a, b []byte) (d, x, y []uint16) {
	d = dtype.View[uint16](dst)
	return d, dtype.View[uint16](a)[:len(d)], dtype.View[uint16](b)[:len(d)]
}

// The received value is converted before the local one: of two NaNs an
// addition or product then keeps the local one, as for the other floats, which
// the order of operands that the compiler chooses decides.

func addFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		v := dtype.Float16ToFloat32(y[i])
		d[i] = dtype.Float16FromFloat32(dtype.Float16ToFloat32(x[i]) + v)
	}
}

func mulFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		v := dtype.Float16ToFloat32(y[i])
		d[i] = dtype.Float16FromFloat32(dtype.Float16ToFloat32(x[i]) * v)
	}
}

func maxFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		v := x[i]
		if dtype.Float16ToFloat32(v) < dtype.Float16ToFloat32(y[i]) {
			v = y[i]
		}
		d[i] = v
	}
}

func minFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		v := x[i]
		if dtype.Float16ToFloat32(y[i]) < dtype.Float16ToFloat32(v) {
			v = y[i]
		}
		d[i] = v
	}
}

func addBFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		d[i] = dtype.BFloat16FromFloat32(dtype.BFloat16ToFloat32(x[i]) + dtype.BFloat16ToFloat32(y[i]))
	}
}

func mulBFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		d[i] = dtype.BFloat16FromFloat32(dtype.BFloat16ToFloat32(x[i]) * dtype.BFloat16ToFloat32(y[i]))
	}
}

func maxBFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		v := x[i]
		if dtype.BFloat16ToFloat32(v) < dtype.BFloat16ToFloat32(y[i]) {
			v = y[i]
		}
		d[i] = v
	}
}

func minBFloat16(dst, a, b []byte) {
	d, x, y := halves(dst, a, b)
	for i := range d {
		v := x[i]
		if dtype.BFloat16ToFloat32(y[i]) < dtype.BFloat16ToFloat32(v) {
			v = y[i]
		}
		d[i] = v
	}
}

func divideFloat16(dst []byte, world int) {
	d, w := dtype.View[uint16](dst), float32(world)
	for i, v := range d {
		d[i] = dtype.Float16FromFloat32(dtype.Float16ToFloat32(v) / w)
	}
}

func divideBFloat16(dst []byte, world int) {
	d, w := dtype.View[uint16](dst), float32(world)
	for i, v := range d {
		d[i] = dtype.BFloat16FromFloat32(dtype.BFloat16ToFloat32(v) / w)
	}
}
