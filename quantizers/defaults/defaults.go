// Package defaults registers the built-in quantizers; a main imports it for
// its effect.
package defaults

import (
	_ "github.com/gopccl/gopccl/quantizers/blocks"    // 4 bits with a scale for each block, among gopccl peers
	_ "github.com/gopccl/gopccl/quantizers/minmax"    // linear between minimum and maximum
	_ "github.com/gopccl/gopccl/quantizers/zeropoint" // linear by scale and zero point
)
