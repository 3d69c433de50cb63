//go:build !race

package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/quant/quanttest"

	"github.com/gopccl/gopccl/quantizers/minmax"
	"github.com/gopccl/gopccl/quantizers/zeropoint"
)

// quantizerOn is a quantizer whose arithmetic a device does.
type quantizerOn struct {
	quant.Quantizer
	h *hosted
	t *testing.T
}

func (z quantizerOn) Params(t, q dtype.Type, src []byte) quant.Meta {
	if z.Name() == minmax.Name {
		m, err := z.h.MinMaxParams(t, src)
		require.NoError(z.t, err)
		return m
	}
	sums, err := z.h.ZeroPointMoments(t, src)
	require.NoError(z.t, err)
	if m, ok := zeropoint.FromMoments(t, q, len(src)/t.Size(), sums); ok {
		return m
	}
	return z.Quantizer.Params(t, q, src)
}

func (z quantizerOn) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	require.NoError(z.t, z.h.Quantize(t, q, m, dst, src))
}

func (z quantizerOn) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	require.NoError(z.t, z.h.DequantizeFrom(t, qt, m, op, dst, dst, q))
}

// The whole of it takes seconds, and there is nothing to race on.
func TestQuantizersSameAsEveryProcessor(t *testing.T) {
	h := host(t)
	for _, z := range []quant.Quantizer{minmax.New(), zeropoint.New()} {
		want, err := quanttest.Fingerprint(z)
		require.NoError(t, err)
		got, err := quanttest.Fingerprint(quantizerOn{z, h, t})
		require.NoError(t, err)
		require.Equal(t, want, got, z.Name())
	}
}
