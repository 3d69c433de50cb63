//go:build amd64 && !noasm

package cpuavx

import (
	"fmt"

	"golang.org/x/sys/cpu"

	"github.com/gopccl/gopccl/backends/internal/vectors"
	"github.com/gopccl/gopccl/core/dtype"
)

func levelAVX2() (*vectors.Level, error) {
	if x := &cpu.X86; !x.HasAVX2 || !x.HasF16C {
		return nil, fmt.Errorf("the processor has no AVX2 and F16C")
	}
	return &avx2, nil
}

func levelAVX512() (*vectors.Level, error) {
	if _, err := levelAVX2(); err != nil {
		return nil, err
	}
	if x := &cpu.X86; !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ {
		return nil, fmt.Errorf("the processor has no AVX-512 F, BW and DQ")
	}
	return &avx512, nil
}

var avx2 = vectors.Level{Name: "AVX2", Step: 32, Divide: divide, Reduce: [dtype.NumTypes][dtype.NumOps]vectors.Kernel{
	dtype.Uint8:    vectors.Operations(add8AVX2, nil, maxUint8AVX2, minUint8AVX2),
	dtype.Int8:     vectors.Operations(add8AVX2, nil, maxInt8AVX2, minInt8AVX2),
	dtype.Uint16:   vectors.Operations(add16AVX2, mul16AVX2, maxUint16AVX2, minUint16AVX2),
	dtype.Int16:    vectors.Operations(add16AVX2, mul16AVX2, maxInt16AVX2, minInt16AVX2),
	dtype.Uint32:   vectors.Operations(add32AVX2, mul32AVX2, maxUint32AVX2, minUint32AVX2),
	dtype.Int32:    vectors.Operations(add32AVX2, mul32AVX2, maxInt32AVX2, minInt32AVX2),
	dtype.Uint64:   vectors.Operations(add64AVX2, nil, nil, nil),
	dtype.Int64:    vectors.Operations(add64AVX2, nil, nil, nil),
	dtype.Float16:  vectors.Operations(addFloat16AVX2, mulFloat16AVX2, maxFloat16AVX2, minFloat16AVX2),
	dtype.BFloat16: vectors.Operations(addBFloat16AVX2, mulBFloat16AVX2, maxBFloat16AVX2, minBFloat16AVX2),
	dtype.Float32:  vectors.Operations(addFloat32AVX2, mulFloat32AVX2, maxFloat32AVX2, minFloat32AVX2),
	dtype.Float64:  vectors.Operations(addFloat64AVX2, mulFloat64AVX2, maxFloat64AVX2, minFloat64AVX2),
}}

// The 16 bit floats have more to do with conversions than with width, so they
// use the kernels of AVX2 here as well.
var avx512 = vectors.Level{Name: "AVX512", Step: 64, Divide: divide, Reduce: [dtype.NumTypes][dtype.NumOps]vectors.Kernel{
	dtype.Uint8:    vectors.Operations(add8AVX512, nil, maxUint8AVX512, minUint8AVX512),
	dtype.Int8:     vectors.Operations(add8AVX512, nil, maxInt8AVX512, minInt8AVX512),
	dtype.Uint16:   vectors.Operations(add16AVX512, mul16AVX512, maxUint16AVX512, minUint16AVX512),
	dtype.Int16:    vectors.Operations(add16AVX512, mul16AVX512, maxInt16AVX512, minInt16AVX512),
	dtype.Uint32:   vectors.Operations(add32AVX512, mul32AVX512, maxUint32AVX512, minUint32AVX512),
	dtype.Int32:    vectors.Operations(add32AVX512, mul32AVX512, maxInt32AVX512, minInt32AVX512),
	dtype.Uint64:   vectors.Operations(add64AVX512, mul64AVX512, maxUint64AVX512, minUint64AVX512),
	dtype.Int64:    vectors.Operations(add64AVX512, mul64AVX512, maxInt64AVX512, minInt64AVX512),
	dtype.Float16:  vectors.Operations(addFloat16AVX2, mulFloat16AVX2, maxFloat16AVX2, minFloat16AVX2),
	dtype.BFloat16: vectors.Operations(addBFloat16AVX2, mulBFloat16AVX2, maxBFloat16AVX2, minBFloat16AVX2),
	dtype.Float32:  vectors.Operations(addFloat32AVX512, mulFloat32AVX512, maxFloat32AVX512, minFloat32AVX512),
	dtype.Float64:  vectors.Operations(addFloat64AVX512, mulFloat64AVX512, maxFloat64AVX512, minFloat64AVX512),
}}

// divide divides n bytes of floats. The reciprocal of a power of two is exact,
// so that its product has the same bits as the quotient.
func divide(t dtype.Type, dst *byte, n, world int) {
	exact := world&(world-1) == 0
	switch {
	case t == dtype.Float32 && exact:
		mulByFloat32AVX2(dst, n, 1/float32(world))
	case t == dtype.Float32:
		divFloat32AVX2(dst, n, float32(world))
	case t == dtype.Float64 && exact:
		mulByFloat64AVX2(dst, n, 1/float64(world))
	case t == dtype.Float64:
		divFloat64AVX2(dst, n, float64(world))
	case t == dtype.Float16:
		divFloat16AVX2(dst, n, float32(world))
	case t == dtype.BFloat16:
		divBFloat16AVX2(dst, n, float32(world))
	default:
		dtype.Unhandled("division by vectors", t)
	}
}
