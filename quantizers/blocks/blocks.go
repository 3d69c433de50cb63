// Package blocks is a quantizer to 4 bits with a scale for each block of 32
// elements: where the magnitudes of a tensor differ from place to place it is much
// more exact than one scale for a chunk. It is for groups of gopccl peers.
//
// A block takes 18 bytes: its scale as float16, little-endian, and 32 values from
// -7 to 7 in two's complement, the first of two in the low half of a byte. Scales are
// shares of the largest magnitude of the chunk, a float64, which is the chunk's
// metadata. The value of q is q times a seventh of scale times largest, every
// product rounded to float64 and the last one to the data type. The last block of a
// chunk is filled up with zeros.
package blocks

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Name is the name under which the quantizer is registered.
const Name = "blocks"

const (
	elements = 32
	size     = 2 + elements/2 // of a block, in bytes
	top      = 7              // the largest value

	// kind is that of the metadata: the largest magnitude, float64.
	kind     = quant.Own
	metaSize = 8
	// most keeps seven sevenths of the largest magnitude finite.
	most = math.MaxFloat64 * (1 - 0x1p-48)
)

func init() { quant.Register(New()) }

// New returns the quantizer, which has no state.
func New() quant.Quantizer { return quantizer{} }

type quantizer struct{}

func (quantizer) Name() string { return Name }

// Check takes float32 and float64 as int4, with every operation.
func (quantizer) Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	switch {
	case !native:
		return quant.ErrNative
	case t != dtype.Float32 && t != dtype.Float64:
		return fmt.Errorf("blocks quantizes float32 and float64, not %v", t)
	case q != dtype.Int4:
		return fmt.Errorf("blocks quantizes to int4, not %v", q)
	case !op.Valid():
		return fmt.Errorf("blocks supports sum, avg, prod, max and min, not %v", op)
	case minChunk < 1:
		return fmt.Errorf("blocks needs at least one element per peer")
	}
	return nil
}

// Form is that of a block. See quant.Formed.
func (quantizer) Form(_, _ dtype.Type) quant.Form {
	return quant.Form{Elements: elements, Bytes: size, Kind: kind}
}

func meta(largest float64) quant.Meta {
	m := quant.Meta{Kind: kind, Size: metaSize}
	binary.LittleEndian.PutUint64(m.Bytes[:], math.Float64bits(math.Min(largest, most)))
	return m
}

func largestOf(m *quant.Meta) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(m.Bytes[:]))
}

// CheckMeta refuses metadata of another kind, and magnitudes that are none.
func (quantizer) CheckMeta(_, _ dtype.Type, m *quant.Meta) error {
	if m.Kind != kind || m.Size != metaSize {
		return fmt.Errorf("blocks: metadata of kind %d and %d bytes", m.Kind, m.Size)
	}
	if v := largestOf(m); !(v >= 0 && v <= most) {
		return fmt.Errorf("blocks: %v is not a magnitude", v)
	}
	return nil
}

// Params returns the largest magnitude that is finite.
func (quantizer) Params(t, _ dtype.Type, src []byte) quant.Meta {
	return meta(magnitude(t, src))
}

// Gather and Gathering are those of quant.Gatherer.
func (quantizer) Gather(t, _ dtype.Type, g *quant.Gathered, part []byte) {
	g.A = math.Max(g.A, magnitude(t, part))
	g.Elements += len(part) / t.Size()
}

// Gathering returns the metadata of all parts.
func (quantizer) Gathering(_, _ dtype.Type, g *quant.Gathered) (quant.Meta, bool) {
	return meta(g.A), g.Elements > 0
}

func magnitude(t dtype.Type, src []byte) float64 {
	if t == dtype.Float32 {
		return magnitudeOf[float32](src)
	}
	return magnitudeOf[float64](src)
}

func magnitudeOf[T quant.Float](src []byte) (largest float64) {
	var x [elements]T
	bytes := dtype.AsBytes(x[:])
	for len(src) > 0 {
		n := copy(bytes, src)
		largest = max(largest, magnitudeIn(x[:n*elements/len(bytes)]))
		src = src[n:]
	}
	return largest
}

// magnitudeIn leaves out what is not finite.
func magnitudeIn[T quant.Float](x []T) (largest float64) {
	for _, v := range x {
		if a := math.Abs(float64(v)); a > largest && a <= math.MaxFloat64 {
			largest = a
		}
	}
	return largest
}

// Quantize writes block after block. NaN becomes 0, what is infinite the largest
// value of its block.
func (quantizer) Quantize(t, _ dtype.Type, m *quant.Meta, dst, src []byte) {
	if t == dtype.Float32 {
		quantize[float32](largestOf(m), dst, src)
	} else {
		quantize[float64](largestOf(m), dst, src)
	}
}

func quantize[T quant.Float](largest float64, dst, src []byte) {
	var x [elements]T
	bytes := dtype.AsBytes(x[:])
	for ; len(dst) >= size; dst = dst[size:] {
		clear(x[:])
		src = src[copy(bytes, src):]
		share := uint16(0)
		if largest > 0 {
			share = dtype.Float16FromFloat32(float32(magnitudeIn(x[:]) / largest))
		}
		binary.LittleEndian.PutUint16(dst, share)
		step := stepOf(largest, share)
		for i := range elements / 2 {
			dst[2+i] = nearest(float64(x[2*i]), step)&15 | nearest(float64(x[2*i+1]), step)<<4
		}
	}
}

// stepOf returns what a value of 1 stands for. What no sender writes (negative,
// infinite or NaN, or above 1) is not a scale: all values are 0.
func stepOf(largest float64, share uint16) float64 {
	const one = 0x3c00
	if share > one {
		return 0
	}
	return float64(largest*float64(dtype.Float16ToFloat32(share))) / top
}

func nearest(x, step float64) byte {
	if step == 0 || x != x {
		return 0
	}
	return byte(int8(math.RoundToEven(math.Max(-top, math.Min(x/step, top)))))
}

// Dequantize sets dst := dst op value(q); every operation is rounded to t.
func (z quantizer) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	z.DequantizeFrom(t, qt, m, op, dst, dst, q)
}

// DequantizeFrom sets dst := acc op value(q). See quant.Fused.
func (quantizer) DequantizeFrom(t, _ dtype.Type, m *quant.Meta, op dtype.Op, dst, acc, q []byte) {
	if t == dtype.Float32 {
		dequantize[float32](largestOf(m), op, dst, acc, q)
	} else {
		dequantize[float64](largestOf(m), op, dst, acc, q)
	}
}

func dequantize[T quant.Float](largest float64, op dtype.Op, dst, acc, q []byte) {
	var values [16]T
	var x, y [elements]T
	to, from := dtype.AsBytes(x[:]), dtype.AsBytes(y[:])
	for ; len(dst) > 0 && len(q) >= size; q = q[size:] {
		step := stepOf(largest, binary.LittleEndian.Uint16(q))
		for i := range values {
			values[i] = T(float64(int8(i<<4)>>4) * step)
		}
		for i, b := range q[2:size] {
			y[2*i], y[2*i+1] = values[b&15], values[b>>4]
		}
		n := min(len(dst), len(to))
		if op == dtype.Set {
			copy(dst[:n], from)
		} else {
			copy(to, acc[:n])
			quant.Combine(op, x[:], y[:])
			copy(dst[:n], to)
		}
		dst = dst[n:]
		acc = acc[n:]
	}
}
