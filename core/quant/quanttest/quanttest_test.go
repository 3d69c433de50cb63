package quanttest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// steps is a plain quantizer of float64 to int8 and int16: multiples of a
// 127th of the largest magnitude. Its fields break rules.
type steps struct {
	acceptEmpty   bool // Check allows empty chunks
	acceptAnyKind bool // CheckMeta looks at nothing
	refusesOwn    bool // CheckMeta refuses what Params gives for NaN
	frameLocal    bool // Dequantize depends on where a frame begins
	accumulates   bool // Dequantize adds twice
	writesGuard   bool // Dequantize writes before dst
	forgetful     bool // Dequantize gives zeros, so that peers always agree
	allocates     bool
}

var sink []byte

func (steps) Name() string { return "steps" }

func (s steps) Check(t, q dtype.Type, op dtype.Op, minChunk int, _ bool) error {
	if t == dtype.Float64 && (q == dtype.Int8 || q == dtype.Int16) && op == dtype.Sum && (minChunk > 0 || s.acceptEmpty) {
		return nil
	}
	return quantError("unsupported")
}

type quantError string

func (e quantError) Error() string { return string(e) }

func (s steps) CheckMeta(_, _ dtype.Type, m *quant.Meta) error {
	if m.Kind != quant.ZeroPoint && !s.acceptAnyKind {
		return quantError("wrong kind")
	}
	if s.refusesOwn && m.Scale == 1 {
		return quantError("no finite elements")
	}
	return nil
}

func (s steps) Params(t, _ dtype.Type, src []byte) quant.Meta {
	m := quant.Meta{Kind: quant.ZeroPoint, Scale: 1}
	largest := 0.0
	for _, x := range decode(t, src) {
		if math.Abs(x) <= math.MaxFloat32 {
			largest = math.Max(largest, math.Abs(x))
		}
	}
	if f := float32(largest / 127); f > 0 {
		m.Scale = f
	}
	return m
}

func (s steps) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	for i, x := range decode(t, src) {
		v := math.Max(-127, math.Min(math.Round(x/float64(m.Scale)), 127))
		if v != v {
			v = 0
		}
		copy(dst[i*q.Size():(i+1)*q.Size()], []byte{byte(int16(v)), byte(int16(v) >> 8)})
	}
}

func (s steps) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	acc := decode(t, dst)
	for i := range acc {
		v := int16(int8(q[i*qt.Size()]))
		if qt == dtype.Int16 {
			v = int16(q[2*i]) | int16(q[2*i+1])<<8
		}
		x := float64(v) * float64(m.Scale)
		if s.frameLocal && i == 0 {
			x += float64(m.Scale)
		}
		if op == dtype.Set {
			acc[i] = 0
		}
		acc[i] += x
		if op == dtype.Set {
			acc[i] = x
		} else if s.accumulates {
			acc[i] += x
		}
	}
	copy(dst, encode(t, acc))
	if s.forgetful {
		clear(dst)
	}
	if s.writesGuard && cap(dst) > len(dst) {
		dst[:len(dst)+1][len(dst)]++
	}
}

// lean is steps for float64 to int8 without allocation.
type lean struct{ steps }

func (l lean) Params(t, q dtype.Type, src []byte) quant.Meta {
	if !l.allocates {
		return quant.Meta{Kind: quant.ZeroPoint, Scale: 1}
	}
	sink = make([]byte, 1)
	return quant.Meta{Kind: quant.ZeroPoint, Scale: 1}
}

func (lean) Quantize(dtype.Type, dtype.Type, *quant.Meta, []byte, []byte) {}

func (lean) Dequantize(dtype.Type, dtype.Type, *quant.Meta, dtype.Op, []byte, []byte) {}

// The suite has teeth: the plain quantizer passes each check, each broken one fails.
func TestBrokenQuantizersFail(t *testing.T) {
	c := combination{dtype.Float64, dtype.Int8, dtype.Sum, quant.Form{Elements: 1, Bytes: 1}}
	all := func(q quant.Quantizer) error {
		if _, err := checkTable(q); err != nil {
			return err
		}
		for _, check := range []func(quant.Quantizer, combination) error{checkCodec, checkAdversarial, checkMeta, checkIdentity} {
			for _, wire := range []dtype.Type{dtype.Int8, dtype.Int16} {
				if err := check(q, combination{c.t, wire, c.op, quant.Form{Elements: 1, Bytes: wire.Size()}}); err != nil {
					return err
				}
			}
		}
		return nil
	}
	require.NoError(t, all(steps{}))
	for want, broken := range map[string]steps{
		"empty chunks":         {acceptEmpty: true},
		"kind 0":               {acceptAnyKind: true},
		"own metadata":         {refusesOwn: true},
		"cut into frames":      {frameLocal: true},
		"not the accumulation": {accumulates: true},
		"bytes around":         {writesGuard: true},
	} {
		require.ErrorContains(t, all(broken), want, "%+v", broken)
	}
	require.ErrorContains(t, checkIdentity(steps{forgetful: true}, c), "keep their full precision")
	require.Zero(t, allocations(lean{}, c))
	require.NotZero(t, allocations(lean{steps{allocates: true}}, c))
}
