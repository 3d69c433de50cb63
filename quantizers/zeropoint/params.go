package zeropoint

import (
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/internal/linear"
)

// Limits of the scale: normal float32 numbers, whose reciprocals are finite.
const (
	minScale = 0x1p-126
	maxScale = math.MaxFloat32
)

// integers describes a wire type: its range, and the value in the middle that
// PCCL's parameters start from.
type integers struct {
	bits   int
	low    float64 // smallest value
	high   float64 // largest value
	middle int64
}

func integersOf(q dtype.Type) integers {
	bits := 8 * q.Size()
	if q.IsSigned() {
		half := math.Ldexp(1, bits-1)
		return integers{bits, -half, half - 1, 1 << (bits - 2)}
	}
	return integers{bits, 0, math.Ldexp(1, bits) - 1, 1 << (bits - 1)}
}

// Params computes scale and zero point from mean and standard deviation of the
// chunk, as data spec, section 4.5 has it, with these rules of our own: both
// are computed in float64 over the finite elements; the zero point fits the
// scale as it is transmitted; a chunk whose deviation is nothing beside its
// mean (constant data, a single element, which abort PCCL, quirk Q32) gets the
// smallest power of two as scale that keeps the zero point in range, so that a
// constant chunk survives exactly.
func (quantizer) Params(t, q dtype.Type, src []byte) quant.Meta {
	if t == dtype.Float32 {
		return paramsOf(t, q, statsOf[float32](src))
	}
	return paramsOf(t, q, statsOf[float64](src))
}

// Gather joins the blocks of part with those in g. See quant.Gatherer.
func (quantizer) Gather(t, _ dtype.Type, g *quant.Gathered, part []byte) {
	m := moments{float64(g.Elements), g.A, g.B}
	if t == dtype.Float32 {
		join[float32](&m, part)
	} else {
		join[float64](&m, part)
	}
	g.Elements += len(part) / t.Size()
	g.A, g.B = m.mean, m.squares
	g.Useless = !finite(m.mean) || !finite(m.squares)
}

// Gathering returns the parameters unless the chunk needs the careful way.
func (quantizer) Gathering(t, q dtype.Type, g *quant.Gathered) (quant.Meta, bool) {
	if g.Useless || g.Elements == 0 {
		return quant.Meta{}, false
	}
	m := moments{float64(g.Elements), g.A, g.B}
	return paramsOf(t, q, m.stats()), true
}

func paramsOf(t, q dtype.Type, st stats) quant.Meta {
	w := integersOf(q)
	scale := 12 * st.deviation / w.high

	// The widest distance between q and the zero point that receivers compute
	// well: PCCL subtracts in 32 bits for uint8 to float32, 53 bits are what a
	// float64 holds, and 64 bit wire types may use most of an int64.
	reach := 0x1p30
	switch {
	case w.bits == 64:
		reach = 0x1p61
	case t == dtype.Float64 || q != dtype.Uint8:
		reach = 0x1p52
	}
	if mean := math.Abs(st.mean); mean > scale*reach {
		_, e := math.Frexp(mean / reach)
		scale = math.Ldexp(1, e)
	}
	if scale == 0 {
		scale = 1
	}
	m := quant.Meta{
		Kind:  quant.ZeroPoint,
		Scale: float32(math.Max(minScale, math.Min(scale, maxScale))),
	}
	steps := math.Round(st.mean / float64(m.Scale))
	m.ZeroPoint = w.middle - int64(math.Max(-reach, math.Min(steps, reach)))
	return m
}

// stats are those of the finite elements of a chunk; zero without any.
type stats struct{ mean, deviation float64 }

// blockElements is how many elements join takes at a time: they stay in the
// first level cache between the two passes over them.
const blockElements = quant.GatherElements

// FromMoments returns what Params returns for a chunk of n elements that a device
// has summed: sums holds, for each quant.GatherElements elements in turn, their
// sum and the sum of their squared distances from its mean. false: there are
// elements that are not finite, or squares that are not; ask Params.
func FromMoments(t, q dtype.Type, n int, sums []float64) (quant.Meta, bool) {
	var m moments
	for ; n > 0 && len(sums) >= 2; sums = sums[2:] {
		block := min(n, blockElements)
		nb := float64(block)
		m.add(nb, sums[0]/nb, sums[1])
		n -= block
	}
	if n > 0 || m.n == 0 || !finite(m.mean) || !finite(m.squares) {
		return quant.Meta{}, false
	}
	return paramsOf(t, q, m.stats()), true
}

// FromMoments is the function of that name. See quant.Summed.
func (quantizer) FromMoments(t, q dtype.Type, n int, sums []float64) (quant.Meta, bool) {
	return FromMoments(t, q, n, sums)
}

// moments are those of n elements: their mean and the sum of the squared
// distances from it.
type moments struct{ n, mean, squares float64 }

// join computes mean and squared distances of block after block and joins them
// with those of the blocks before, which is as exact as two passes over the
// whole and reads memory once.
func join[T quant.Float](m *moments, src []byte) {
	size := dtype.TypeOf[T]().Size()
	for rest := src; len(rest) >= size; {
		block := rest[:min(len(rest), blockElements*size)]
		rest = rest[len(block):]
		nb := float64(len(block) / size)
		mb := sum[T](block, 0, false) / nb
		m.add(nb, mb, sum[T](block, mb, true))
	}
}

// add joins nb elements with their mean and the sum of their squared distances from it.
func (m *moments) add(nb, mean, squares float64) {
	delta := mean - m.mean
	m.squares += squares + float64(float64(delta*delta)*(m.n*nb/(m.n+nb)))
	m.mean += float64(delta * (nb / (m.n + nb)))
	m.n += nb
}

func (m moments) stats() stats {
	return stats{m.mean, math.Sqrt(m.squares / math.Max(1, m.n-1))}
}

func statsOf[T quant.Float](src []byte) stats {
	if len(src) < dtype.TypeOf[T]().Size() {
		return stats{}
	}
	var m moments
	if join[T](&m, src); finite(m.mean) && finite(m.squares) {
		return m.stats()
	}
	return carefulStats[T](src)
}

func finite(x float64) bool { return x-x == 0 }

// sum returns the sum of the elements, or of their squared distances from mean.
func sum[T quant.Float](src []byte, mean float64, squared bool) float64 {
	if dtype.Aligned(src, dtype.TypeOf[T]().Size()) {
		return sumAligned[T](src, mean, squared)
	}
	total := 0.0
	var block linear.Block
	for len(src) > 0 {
		b := block.Load(src)
		total += sumAligned[T](b, mean, squared)
		src = src[len(b):]
	}
	return total
}

// sums are sixteen partial sums, of the elements at places that are equal
// modulo sixteen; those behind the last sixteen are all in the first. They
// hide the latency of the addition, and vector instructions keep the same ones.
type sums [16]float64

// total adds the halves until one sum is left.
func (s *sums) total() float64 {
	t := *s
	for half := len(t) / 2; half > 0; half /= 2 {
		for i := range half {
			t[i] += t[i+half]
		}
	}
	return t[0]
}

func sumAligned[T quant.Float](src []byte, mean float64, squared bool) float64 {
	var s sums
	if dtype.TypeOf[T]() == dtype.Float32 {
		src = src[4*s.byVector(src, mean, squared):]
	}
	if squared {
		sumSquares(&s, dtype.View[T](src), mean)
	} else {
		sumPlain(&s, dtype.View[T](src))
	}
	return s.total()
}

// The loops take eight of the sixteen sums at a time, as many as registers hold.

func sumPlain[T quant.Float](s *sums, x []T) {
	whole := x[:len(x)/len(s)*len(s)]
	for first := 0; first < len(s); first += 8 {
		t := (*[8]float64)(s[first:])
		s0, s1, s2, s3, s4, s5, s6, s7 := t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]
		for i := first; i < len(whole); i += len(s) {
			p := (*[8]T)(whole[i:])
			s0 += float64(p[0])
			s1 += float64(p[1])
			s2 += float64(p[2])
			s3 += float64(p[3])
			s4 += float64(p[4])
			s5 += float64(p[5])
			s6 += float64(p[6])
			s7 += float64(p[7])
		}
		*t = [8]float64{s0, s1, s2, s3, s4, s5, s6, s7}
	}
	for _, v := range x[len(whole):] {
		s[0] += float64(v)
	}
}

func sumSquares[T quant.Float](s *sums, x []T, mean float64) {
	whole := x[:len(x)/len(s)*len(s)]
	for first := 0; first < len(s); first += 8 {
		t := (*[8]float64)(s[first:])
		s0, s1, s2, s3, s4, s5, s6, s7 := t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]
		for i := first; i < len(whole); i += len(s) {
			p := (*[8]T)(whole[i:])
			s0 += square(float64(p[0]) - mean)
			s1 += square(float64(p[1]) - mean)
			s2 += square(float64(p[2]) - mean)
			s3 += square(float64(p[3]) - mean)
			s4 += square(float64(p[4]) - mean)
			s5 += square(float64(p[5]) - mean)
			s6 += square(float64(p[6]) - mean)
			s7 += square(float64(p[7]) - mean)
		}
		*t = [8]float64{s0, s1, s2, s3, s4, s5, s6, s7}
	}
	for _, v := range x[len(whole):] {
		s[0] += square(float64(v) - mean)
	}
}

// square is rounded, so that no addition is fused with it.
func square(d float64) float64 { return float64(d * d) }

// carefulStats is for chunks that hold NaN or infinite elements, or numbers so
// large that their squares are infinite.
func carefulStats[T quant.Float](src []byte) stats {
	size := dtype.TypeOf[T]().Size()
	each := func(f func(x float64)) {
		var one [1]T
		for i := 0; i+size <= len(src); i += size {
			copy(dtype.AsBytes(one[:]), src[i:i+size])
			if x := float64(one[0]); finite(x) {
				f(x)
			}
		}
	}
	n, largest := 0.0, 0.0
	each(func(x float64) {
		n++
		largest = math.Max(largest, math.Abs(x))
	})
	if n == 0 || largest == 0 {
		return stats{}
	}
	mean := 0.0
	each(func(x float64) { mean += x / largest / n })
	squares := 0.0
	each(func(x float64) { squares += square(x/largest - mean) })
	deviation := math.Sqrt(squares / math.Max(1, n-1))
	return stats{mean * largest, math.Min(deviation*largest, math.MaxFloat64)}
}
