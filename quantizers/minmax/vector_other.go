//go:build (!amd64 && !arm64) || noasm

package minmax

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Without vector kernels the loops in plain Go do everything.

func boundsByVector(_ []byte, low, high float32) (float32, float32, int) { return low, high, 0 }

func quantizeByVector(*quant.Meta, []byte, []byte) int { return 0 }

func dequantizeByVector(*quant.Meta, dtype.Op, []byte, []byte, []byte) int { return 0 }
