package metadata

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/quantizers/blocks"
	"github.com/gopccl/gopccl/quantizers/minmax"
	"github.com/gopccl/gopccl/quantizers/zeropoint"
)

func TestWhatIsReadIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	var values []byte
	for _, x := range []float32{-1.5, 0.25, 3, 2} {
		values = binary.NativeEndian.AppendUint32(values, math.Float32bits(x))
	}
	for _, z := range []quant.Quantizer{minmax.New(), zeropoint.New(), blocks.New()} {
		m := z.Params(dtype.Float32, dtype.Uint8, values)
		room := make([]byte, 0, wire.MaxMetaSize)
		b := Append(room, 7, &m)
		require.LessOrEqual(t, len(b), cap(room))
		got, err := Read(b, z, dtype.Float32, dtype.Uint8)
		require.NoError(t, err, z.Name())
		require.Equal(t, m, got, z.Name())
		for n := range len(b) {
			_, err = Read(b[:n], z, dtype.Float32, dtype.Uint8)
			require.Equal(t, errs.Protocol, errs.CodeOf(err), "%s: the first %d of %d bytes", z.Name(), n, len(b))
		}
	}
	own := quant.Meta{Kind: quant.Own, Size: 3, Bytes: [quant.MaxOwn]byte{1, 2, 3}}
	w, err := wire.DecodeMeta(Append(nil, 7, &own))
	require.NoError(t, err)
	require.Equal(t, []any{uint64(7), uint8(3), own.Bytes}, []any{w.Tag, w.Size, [quant.MaxOwn]byte(w.Bytes)})
}

// What came from another process is seen by the quantizer before anything is decoded by it.
func TestTheQuantizerLooksAtWhatCame(t *testing.T) {
	t.Parallel()
	bad := quant.Meta{Kind: quant.ZeroPoint, Scale: float32(math.NaN())}
	_, err := Read(Append(nil, 7, &bad), zeropoint.New(), dtype.Float32, dtype.Uint8)
	require.Error(t, err)
	_, err = Read(Append(nil, 7, &bad), minmax.New(), dtype.Float32, dtype.Uint8)
	require.Error(t, err, "the metadata of another quantizer")
}
