package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Frame{
			Call: Call(rapid.IntRange(1, 5).Draw(t, "call")), Type: dtype.Type(rapid.IntRange(0, 11).Draw(t, "type")),
			Wire: dtype.Type(rapid.IntRange(0, 11).Draw(t, "wire")), Op: dtype.Op(rapid.IntRange(0, 5).Draw(t, "op")),
			Count: rapid.Uint64().Draw(t, "count"), World: rapid.Uint64().Draw(t, "world"),
			Dst: rapid.Uint64().Draw(t, "dst"), A: rapid.Uint64().Draw(t, "a"), B: rapid.Uint64().Draw(t, "b"),
			Meta: quant.Meta{
				Kind: quant.Kind(rapid.IntRange(0, 1).Draw(t, "kind")), DType: dtype.Type(rapid.IntRange(0, 11).Draw(t, "meta type")),
				Min: rapid.Float64().Draw(t, "min"), Max: rapid.Float64().Draw(t, "max"),
				ZeroPoint: rapid.Int64().Draw(t, "zero point"), Scale: rapid.Float32().Draw(t, "scale"),
			},
			Failed: rapid.Bool().Draw(t, "failed"),
			Form:   quant.Form{Elements: rapid.IntRange(0, 2048).Draw(t, "elements"), Bytes: rapid.IntRange(0, 16384).Draw(t, "bytes")},
		}
		f.Meta.Size = uint8(rapid.IntRange(0, quant.MaxOwn).Draw(t, "size"))
		copy(f.Meta.Bytes[:], rapid.SliceOfN(rapid.Byte(), 0, quant.MaxOwn).Draw(t, "own"))
		copy(f.Text[:], rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "text"))
		b := make([]byte, FrameBytes)
		f.Put(b)
		var got Frame
		require.NoError(t, got.Get(b))
		require.Equal(t, f, got)
		require.ErrorIs(t, got.Get(b[1:]), ErrFrame)
		b[0] ^= 0xff
		require.ErrorIs(t, got.Get(b), ErrFrame)
	})
}

// Whatever a frame says, operands lie in the memory and are of its elements.
func FuzzSlices(f *testing.F) {
	good := Frame{Call: Reduce, Type: dtype.Float32, Op: dtype.Sum, Count: 4, Dst: 0, A: 16, B: 32}
	b := make([]byte, FrameBytes)
	good.Put(b)
	f.Add(b)
	good.Count = 1 << 62
	good.Put(b)
	f.Add(b)
	mem := make([]byte, 4096)
	f.Fuzz(func(t *testing.T, b []byte) {
		var frame Frame
		if frame.Get(b) != nil {
			return
		}
		dst, x, y, err := frame.Slices(mem)
		if err != nil {
			return
		}
		for _, s := range [][]byte{dst, x, y} {
			if s != nil {
				require.LessOrEqual(t, len(s), len(mem))
				require.LessOrEqual(t, frame.Count, uint64(len(mem)))
			}
		}
	})
}

func TestSlicesRefuse(t *testing.T) {
	mem := make([]byte, 64)
	for name, f := range map[string]Frame{
		"no call":         {Count: 1},
		"unknown call":    {Call: 9, Count: 1},
		"unknown type":    {Call: Reduce, Type: 200, Count: 1},
		"too many":        {Call: Reduce, Type: dtype.Uint8, Count: 65},
		"overflow":        {Call: Reduce, Type: dtype.Float64, Count: 1 << 61},
		"behind the end":  {Call: Reduce, Type: dtype.Uint8, Count: 32, B: 33},
		"far away":        {Call: Reduce, Type: dtype.Uint8, Count: 1, A: 1 << 63},
		"unknown op":      {Call: Reduce, Type: dtype.Uint8, Count: 1, Op: 6},
		"world of nobody": {Call: Finalize, Type: dtype.Uint8, Count: 1},
		"wire type":       {Call: Params, Type: dtype.Float32, Wire: 99, Count: 1},
		"no groups":       {Call: Quantize, Type: dtype.Float32, Wire: dtype.Int8, Count: 1},
		"long groups":     {Call: Dequantize, Type: dtype.Float32, Wire: dtype.Int4, Count: 1, Form: quant.Form{Elements: 32, Bytes: 65}},
		"groups far away": {Call: Quantize, Type: dtype.Float32, Wire: dtype.Int4, Count: 1, Dst: 1 << 63, Form: quant.Form{Elements: 32, Bytes: 18}},
	} {
		_, _, _, err := f.Slices(mem)
		require.ErrorIs(t, err, ErrFrame, name)
	}
	dst, a, b, err := (&Frame{Call: Dequantize, Type: dtype.Float64, Wire: dtype.Int8, Count: 4, A: 60, Form: quant.Form{Elements: 1, Bytes: 1}}).Slices(mem)
	require.NoError(t, err)
	require.Len(t, dst, 32)
	require.Len(t, a, 4)
	require.Nil(t, b)
	_, a, _, err = (&Frame{Call: Dequantize, Type: dtype.Uint8, Wire: dtype.Int4, Count: 33, A: 20, Form: quant.Form{Elements: 32, Bytes: 18}}).Slices(mem)
	require.NoError(t, err)
	require.Len(t, a, 36, "the second group has all its bytes")
}
