// Package cpuavx is the reduce backend for amd64 processors with AVX2. Every
// result has the bits of cpu_generic, which does what has no kernel here and
// the ends that fill no vector. The AVX-512 kernels beside it have run on no
// processor yet: the tests run them where one is found, New does not choose them.
package cpuavx

import (
	"github.com/gopccl/gopccl/backends/vectors"
	"github.com/gopccl/gopccl/core/backend"
)

// Name is the name under which the backend is registered.
const Name = "cpu_avx"

func init() { backend.Register(Name, Driver{}) }

// Driver makes the backend with the widest proved vectors of the machine.
type Driver struct{}

// Rank is above the generic backend's.
func (Driver) Rank() int { return 10 }

// Probe says what the machine or the build lacks.
func (Driver) Probe() error {
	_, err := levels()
	return err
}

// New returns the backend, which has no state.
func (Driver) New() (backend.Backend, error) {
	ls, err := levels()
	if err != nil {
		return nil, err
	}
	return vectors.New(Name, ls)
}
