//go:build (!amd64 && !arm64) || noasm

package minmax

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// Without vector kernels the loops in plain Go do everything.

func boundsByVector(_ []byte, low, high float32) (float32, float32, int) { return low, high, 0 }

func quantizeByVector(*wire.DequantizationMeta, []byte, []byte) int { return 0 }

func dequantizeByVector(*wire.DequantizationMeta, dtype.Op, []byte, []byte, []byte) int { return 0 }
