// Package cpuavx is the reduce backends for amd64 processors with AVX2, and
// with AVX-512. Every result has the bits of cpu_generic, which does what has
// no kernel here and the ends that fill no vector.
package cpuavx

import (
	"github.com/gopccl/gopccl/backends/internal/vectors"
	"github.com/gopccl/gopccl/core/backend"
)

// The names under which the backends are registered. The one with AVX-512 is
// for those who ask for it: its kernels have run in an emulator
// (tools/ci/avx512.sh) and have been measured on no processor yet, so that its
// rank is below the generic backend's.
const (
	Name    = "cpu_avx"
	Name512 = "cpu_avx512"
)

var drivers = []vectors.Driver{
	{Name: Name, Order: 10, Level: levelAVX2},
	{Name: Name512, Order: -1, Level: levelAVX512},
}

func init() {
	for _, d := range drivers {
		backend.Register(d.Name, d)
	}
}
