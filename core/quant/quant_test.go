package quant_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/quant/quanttest"
)

// The example keeps the rules.
func TestExampleConforms(t *testing.T) { quanttest.Run(t, nibbles{}) }

// wide has two wire types.
type wide struct{ nibbles }

func (w wide) Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	if q == dtype.Int16 {
		q = dtype.Int4
	}
	return w.nibbles.Check(t, q, op, minChunk, native)
}

func TestNarrowest(t *testing.T) {
	for _, z := range []quant.Quantizer{nibbles{}, wide{}} {
		q, ok := quant.Narrowest(z, dtype.Float32, dtype.Avg)
		require.True(t, ok)
		require.Equal(t, dtype.Int4, q)
		_, ok = quant.Narrowest(z, dtype.Float64, dtype.Avg)
		require.False(t, ok)
	}
}
