// Package defaults registers the built-in reduce backends; a main imports it
// for its effect.
package defaults

import (
	_ "github.com/gopccl/gopccl/backends/cpu_avx"     // amd64 with AVX2, and with AVX-512 on request
	_ "github.com/gopccl/gopccl/backends/cpu_generic" // the oracle, on every platform
	_ "github.com/gopccl/gopccl/backends/cpu_neon"    // arm64
)
