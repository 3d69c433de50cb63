package determinism

import (
	"encoding/binary"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
)

// stream is splitmix64, a generator that is the same everywhere.
type stream uint64

func (s *stream) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// layout returns the fraction's bits and the exponent's bias of a floating point type.
func layout(t dtype.Type) (fraction int, bias uint64) {
	switch t {
	case dtype.Float16:
		return 10, 15
	case dtype.BFloat16:
		return 7, 127
	case dtype.Float32:
		return 23, 127
	case dtype.Float64:
		return 52, 1023
	}
	dtype.Unhandled("layout of floats", t)
	return 0, 0
}

func mask(t dtype.Type) uint64 { return ^uint64(0) >> (64 - 8*t.Size()) }

// specials are patterns with which mistakes are made: zeros, borders, NaNs.
func specials(t dtype.Type) []uint64 {
	top := uint64(1) << (8*t.Size() - 1)
	if !t.IsFloat() {
		return []uint64{0, 1, 2, mask(t), mask(t) - 1, top, top - 1, top + 1}
	}
	fraction, bias := layout(t)
	inf := (2*bias + 1) << fraction
	list := []uint64{
		0, 1, 1<<fraction - 1, 1 << fraction, bias << fraction, bias<<fraction | 1,
		inf - 1, inf, inf | 1, inf | 1<<(fraction-1), inf | 1<<(fraction-1) | 5,
	}
	for _, v := range list[:len(list):len(list)] {
		list = append(list, v|top)
	}
	return list
}

// patterns returns n elements of t: a quarter special, a quarter any pattern,
// the rest ordinary numbers near 1.
func patterns(t dtype.Type, n int, seed uint64) []byte {
	s := stream(seed)
	b := make([]byte, n*t.Size())
	list := specials(t)
	var fraction int
	var bias uint64
	if t.IsFloat() {
		fraction, bias = layout(t)
	}
	for i := range n {
		v := s.next()
		choice := s.next()
		switch {
		case choice&3 == 0:
			v = list[choice>>2%uint64(len(list))]
		case choice&3 == 1 || !t.IsFloat():
			v &= mask(t)
		default:
			v = (v&(1<<fraction-1) | (bias+choice>>2&7-4)<<fraction) | (choice>>5&1)<<(8*t.Size()-1)
		}
		store(t, b[i*t.Size():], v)
	}
	return b
}

// numbers returns n float32 or float64 for a quantizer: of one magnitude, of
// many, or patterns of all kinds.
func numbers(t dtype.Type, n, kind int, seed uint64) []byte {
	if kind == 2 {
		return patterns(t, n, seed)
	}
	s := stream(seed)
	b := make([]byte, n*t.Size())
	for i := range n {
		v := s.next()
		x := float64(int64(v>>40)-1<<23) / (1 << 23)
		if kind == 1 {
			x *= math.Float64frombits(uint64(1023-40+v&31) << 52)
		}
		if t == dtype.Float32 {
			store(t, b[i*4:], uint64(math.Float32bits(float32(x))))
		} else {
			store(t, b[i*8:], math.Float64bits(x))
		}
	}
	return b
}

func load(t dtype.Type, b []byte) uint64 {
	switch t.Size() {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func store(t dtype.Type, b []byte, v uint64) {
	switch t.Size() {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}

// isNaN tells whether pattern v of t is one.
func isNaN(t dtype.Type, v uint64) bool {
	if !t.IsFloat() {
		return false
	}
	fraction, bias := layout(t)
	return v&(mask(t)>>1) > (2*bias+1)<<fraction
}

// oneNaN gives every NaN in b one pattern: which one arithmetic makes is the
// processor's choice.
func oneNaN(t dtype.Type, b []byte) {
	for i := 0; t.IsFloat() && i < len(b); i += t.Size() {
		if isNaN(t, load(t, b[i:])) {
			store(t, b[i:], mask(t))
		}
	}
}

// compare counts the elements of t whose bits differ, and those among them that
// are NaN on both sides.
func compare(t dtype.Type, a, b []byte) (differ, nans uint64) {
	for i := 0; i < len(a); i += t.Size() {
		x, y := load(t, a[i:]), load(t, b[i:])
		if x == y {
			continue
		}
		differ++
		if isNaN(t, x) && isNaN(t, y) {
			nans++
		}
	}
	return differ, nans
}
