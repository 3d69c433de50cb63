//go:build (!amd64 && !arm64) || noasm

package zeropoint

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// Without vector kernels the loops in plain Go do everything.

func (*sums) byVector([]byte, float64, bool) int { return 0 }

func quantizeByVector(_ *wire.DequantizationMeta, dst, src []byte) (restOfDst, restOfSrc []byte) {
	return dst, src
}

func dequantizeByVector(*wire.DequantizationMeta, dtype.Op, []byte, []byte, []byte) int { return 0 }
