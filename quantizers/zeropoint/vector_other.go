//go:build (!amd64 && !arm64) || noasm

package zeropoint

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Without vector kernels the loops in plain Go do everything.

func (*sums) byVector([]byte, float64, bool) int { return 0 }

func quantizeByVector(_ *quant.Meta, dst, src []byte) (restOfDst, restOfSrc []byte) {
	return dst, src
}

func dequantizeByVector(*quant.Meta, dtype.Op, []byte, []byte, []byte) int { return 0 }
