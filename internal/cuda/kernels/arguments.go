package kernels

import (
	"encoding/binary"
	"math"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// arguments packs the parameters of a launch: little-endian, each at a
// multiple of its size.
type arguments struct{ bytes []byte }

func (a *arguments) align(n int) {
	for len(a.bytes)%n != 0 {
		a.bytes = append(a.bytes, 0)
	}
}

func (a *arguments) ptr(p ...driver.Ptr) *arguments {
	for _, v := range p {
		a.u64(uint64(v))
	}
	return a
}

func (a *arguments) u64(v uint64) *arguments {
	a.align(8)
	a.bytes = binary.LittleEndian.AppendUint64(a.bytes, v)
	return a
}

func (a *arguments) u32(v uint32) *arguments {
	a.align(4)
	a.bytes = binary.LittleEndian.AppendUint32(a.bytes, v)
	return a
}

func (a *arguments) f32(v float32) *arguments { return a.u32(math.Float32bits(v)) }

func (a *arguments) f64(v float64) *arguments { return a.u64(math.Float64bits(v)) }

func args() *arguments { return &arguments{make([]byte, 0, 96)} }
