package cpugeneric

import (
	"encoding/binary"

	"github.com/gopccl/gopccl/core/dtype"
)

type integer interface {
	~uint8 | ~int8 | ~uint16 | ~int16 | ~uint32 | ~int32 | ~uint64 | ~int64
}

// The loops below take eight elements at a time through array pointers: one
// bounds check per slice and eight elements.

func reduceInteger[T integer](op dtype.Op, dst, a, b []byte) {
	switch op {
	case dtype.Sum, dtype.Avg:
		switch dtype.TypeOf[T]().Size() {
		case 1:
			add8(dst, a, b)
		case 2:
			add16(dst, a, b)
		default:
			add[T](dst, a, b)
		}
	case dtype.Prod:
		mul[T](dst, a, b)
	case dtype.Max:
		maxInteger[T](dst, a, b)
	case dtype.Min:
		minInteger[T](dst, a, b)
	default:
		dtype.Unhandled(Name, op)
	}
}

func add[T dtype.Element](dst, a, b []byte) {
	d, x, y := dtype.View[T](dst), dtype.View[T](a), dtype.View[T](b)
	for len(d) >= 8 && len(x) >= 8 && len(y) >= 8 {
		p, q, r := (*[8]T)(d), (*[8]T)(x), (*[8]T)(y)
		p[0] = q[0] + r[0]
		p[1] = q[1] + r[1]
		p[2] = q[2] + r[2]
		p[3] = q[3] + r[3]
		p[4] = q[4] + r[4]
		p[5] = q[5] + r[5]
		p[6] = q[6] + r[6]
		p[7] = q[7] + r[7]
		d, x, y = d[8:], x[8:], y[8:]
	}
	for i := range d {
		d[i] = x[i] + y[i]
	}
}

func mul[T dtype.Element](dst, a, b []byte) {
	d, x, y := dtype.View[T](dst), dtype.View[T](a), dtype.View[T](b)
	for len(d) >= 8 && len(x) >= 8 && len(y) >= 8 {
		p, q, r := (*[8]T)(d), (*[8]T)(x), (*[8]T)(y)
		p[0] = q[0] * r[0]
		p[1] = q[1] * r[1]
		p[2] = q[2] * r[2]
		p[3] = q[3] * r[3]
		p[4] = q[4] * r[4]
		p[5] = q[5] * r[5]
		p[6] = q[6] * r[6]
		p[7] = q[7] * r[7]
		d, x, y = d[8:], x[8:], y[8:]
	}
	for i := range d {
		d[i] = x[i] * y[i]
	}
}

func maxInteger[T integer](dst, a, b []byte) {
	d, x, y := dtype.View[T](dst), dtype.View[T](a), dtype.View[T](b)
	for len(d) >= 8 && len(x) >= 8 && len(y) >= 8 {
		p, q, r := (*[8]T)(d), (*[8]T)(x), (*[8]T)(y)
		p[0] = max(q[0], r[0])
		p[1] = max(q[1], r[1])
		p[2] = max(q[2], r[2])
		p[3] = max(q[3], r[3])
		p[4] = max(q[4], r[4])
		p[5] = max(q[5], r[5])
		p[6] = max(q[6], r[6])
		p[7] = max(q[7], r[7])
		d, x, y = d[8:], x[8:], y[8:]
	}
	for i := range d {
		d[i] = max(x[i], y[i])
	}
}

func minInteger[T integer](dst, a, b []byte) {
	d, x, y := dtype.View[T](dst), dtype.View[T](a), dtype.View[T](b)
	for len(d) >= 8 && len(x) >= 8 && len(y) >= 8 {
		p, q, r := (*[8]T)(d), (*[8]T)(x), (*[8]T)(y)
		p[0] = min(q[0], r[0])
		p[1] = min(q[1], r[1])
		p[2] = min(q[2], r[2])
		p[3] = min(q[3], r[3])
		p[4] = min(q[4], r[4])
		p[5] = min(q[5], r[5])
		p[6] = min(q[6], r[6])
		p[7] = min(q[7], r[7])
		d, x, y = d[8:], x[8:], y[8:]
	}
	for i := range d {
		d[i] = min(x[i], y[i])
	}
}

// addLanes adds all lanes of a word at once: the lanes without their top bits
// (mask top), so that no carry leaves a lane, then the top bits by xor.
func addLanes(x, y, top uint64) uint64 { return (x&^top + y&^top) ^ (x^y)&top }

func addWords(dst, a, b []byte, top uint64) int {
	i := 0
	for ; i+32 <= len(dst) && i+32 <= len(a) && i+32 <= len(b); i += 32 {
		p, q, r := dst[i:i+32:i+32], a[i:i+32:i+32], b[i:i+32:i+32]
		w0 := addLanes(binary.LittleEndian.Uint64(q[0:]), binary.LittleEndian.Uint64(r[0:]), top)
		w1 := addLanes(binary.LittleEndian.Uint64(q[8:]), binary.LittleEndian.Uint64(r[8:]), top)
		w2 := addLanes(binary.LittleEndian.Uint64(q[16:]), binary.LittleEndian.Uint64(r[16:]), top)
		w3 := addLanes(binary.LittleEndian.Uint64(q[24:]), binary.LittleEndian.Uint64(r[24:]), top)
		binary.LittleEndian.PutUint64(p[0:], w0)
		binary.LittleEndian.PutUint64(p[8:], w1)
		binary.LittleEndian.PutUint64(p[16:], w2)
		binary.LittleEndian.PutUint64(p[24:], w3)
	}
	return i
}

func add8(dst, a, b []byte) {
	i := addWords(dst, a, b, 0x8080808080808080)
	add[uint8](dst[i:], a[i:], b[i:])
}

func add16(dst, a, b []byte) {
	i := addWords(dst, a, b, 0x8000800080008000)
	add[uint16](dst[i:], a[i:], b[i:])
}

// divideSmall divides integers of at most 32 bits, truncating towards zero.
// The float64 quotient is exact enough: a true quotient that is not whole is at
// least 1/world away from the next whole number, more than it is rounded by.
// World sizes that the element type cannot hold divide like all others.
func divideSmall[T ~uint8 | ~int8 | ~uint16 | ~int16 | ~uint32 | ~int32](dst []byte, world int) {
	d := dtype.View[T](dst)
	w := float64(world)
	for i, x := range d {
		d[i] = T(int64(float64(x) / w))
	}
}

func divideUint64(dst []byte, world int) {
	d := dtype.View[uint64](dst)
	for i := range d {
		d[i] /= uint64(world)
	}
}

func divideInt64(dst []byte, world int) {
	d := dtype.View[int64](dst)
	for i := range d {
		d[i] /= int64(world)
	}
}
