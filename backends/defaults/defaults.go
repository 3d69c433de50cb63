// Package defaults registers the built-in reduce backends; a main imports it
// for its effect.
package defaults

import (
	_ "github.com/gopccl/gopccl/backends/cpu_avx"     // amd64 with AVX2 or AVX-512
	_ "github.com/gopccl/gopccl/backends/cpu_generic" // the oracle, on every platform
)
