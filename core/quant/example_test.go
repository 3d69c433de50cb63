package quant_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// nibbles sends values from -7 to 7, two in a byte, the first one in the low half. Its
// metadata are what a value of 1 stands for, a float32.
type nibbles struct{}

func init() { quant.Register(nibbles{}) }

func (nibbles) Name() string { return "nibbles" }

func (nibbles) Check(t, q dtype.Type, op dtype.Op, minChunk int, _ bool) error {
	switch {
	case t != dtype.Float32 || q != dtype.Int4:
		return fmt.Errorf("nibbles encodes float32 as int4, not %v as %v", t, q)
	case !op.Valid() || minChunk < 1:
		return fmt.Errorf("nibbles cannot do %v of chunks of %d elements", op, minChunk)
	}
	return nil
}

// Form: groups of two elements in a byte.
func (nibbles) Form(_, _ dtype.Type) quant.Form {
	return quant.Form{Elements: 2, Bytes: 1, Kind: quant.Own + 100}
}

func (z nibbles) Params(t, q dtype.Type, src []byte) quant.Meta {
	largest := 0.0
	for i := 0; i < len(src); i += 4 {
		if v := math.Abs(float64(load(src[i:]))); v > largest && v <= math.MaxFloat32 {
			largest = v
		}
	}
	m := quant.Meta{Kind: z.Form(t, q).Kind, Size: 4}
	binary.LittleEndian.PutUint32(m.Bytes[:], math.Float32bits(float32(largest/7)))
	return m
}

func (z nibbles) CheckMeta(t, q dtype.Type, m *quant.Meta) error {
	if step := load(m.Bytes[:]); m.Kind != z.Form(t, q).Kind || m.Size != 4 || !(step >= 0 && step <= math.MaxFloat32) {
		return errors.New("nibbles: metadata of another quantizer")
	}
	return nil
}

func (nibbles) Quantize(_, _ dtype.Type, m *quant.Meta, dst, src []byte) {
	step := float64(load(m.Bytes[:]))
	clear(dst)
	for i := range len(src) / 4 {
		v := math.RoundToEven(math.Max(-7, math.Min(float64(load(src[4*i:]))/step, 7)))
		if v != v { // NaN, or all of the chunk is 0
			v = 0
		}
		dst[i/2] |= byte(int8(v)) & 15 << (i % 2 * 4)
	}
}

func (nibbles) Dequantize(_, _ dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	step := load(m.Bytes[:])
	for i := range len(dst) / 4 {
		v := int8(q[i/2]>>(i%2*4)<<4) >> 4 // any byte has a meaning
		x := []float32{load(dst[4*i:])}
		quant.Combine(op, x, []float32{float32(float32(v) * step)})
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x[0]))
	}
}

func load(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

// A quantizer with a wire form of its own. Since it is registered, trainers use it by
// its name: core.Quantize{Algorithm: "nibbles", Type: dtype.Int4}.
func ExampleFormed() {
	z, err := quant.Lookup("nibbles")
	if err != nil {
		log.Fatal(err)
	}
	src := []float32{7, -3, 0, 2.4, -1.6}
	m := z.Params(dtype.Float32, dtype.Int4, dtype.AsBytes(src))
	q := make([]byte, quant.FormOf(z, dtype.Float32, dtype.Int4).Size(len(src)))
	z.Quantize(dtype.Float32, dtype.Int4, &m, q, dtype.AsBytes(src))
	back := make([]float32, len(src))
	z.Dequantize(dtype.Float32, dtype.Int4, &m, dtype.Set, dtype.AsBytes(back), q)
	fmt.Printf("%d bytes, %x: %v\n", len(q), q, back)
	err = quant.Check(z, dtype.Float32, dtype.Int4, dtype.Sum, 1000, false)
	fmt.Println("beside PCCL peers:", errors.Is(err, quant.ErrNative))
	// Output:
	// 3 bytes, d7200e: [7 -3 0 2 -2]
	// beside PCCL peers: true
}
