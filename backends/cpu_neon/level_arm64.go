//go:build arm64 && !noasm

package cpuneon

import (
	"github.com/gopccl/gopccl/backends/internal/vectors"
	"github.com/gopccl/gopccl/core/dtype"
)

// level is what every arm64 processor has.
func level() (*vectors.Level, error) { return &neon, nil }

var neon = vectors.Level{Name: "NEON", Step: 16, Divide: divide, Reduce: [dtype.NumTypes][dtype.NumOps]vectors.Kernel{
	dtype.Uint8:    vectors.Operations(add8NEON, mul8NEON, maxUint8NEON, minUint8NEON),
	dtype.Int8:     vectors.Operations(add8NEON, mul8NEON, maxInt8NEON, minInt8NEON),
	dtype.Uint16:   vectors.Operations(add16NEON, mul16NEON, maxUint16NEON, minUint16NEON),
	dtype.Int16:    vectors.Operations(add16NEON, mul16NEON, maxInt16NEON, minInt16NEON),
	dtype.Uint32:   vectors.Operations(add32NEON, mul32NEON, maxUint32NEON, minUint32NEON),
	dtype.Int32:    vectors.Operations(add32NEON, mul32NEON, maxInt32NEON, minInt32NEON),
	dtype.Uint64:   vectors.Operations(add64NEON, mul64NEON, maxUint64NEON, minUint64NEON),
	dtype.Int64:    vectors.Operations(add64NEON, mul64NEON, maxInt64NEON, minInt64NEON),
	dtype.Float16:  vectors.Operations(addFloat16NEON, mulFloat16NEON, maxFloat16NEON, minFloat16NEON),
	dtype.BFloat16: vectors.Operations(addBFloat16NEON, mulBFloat16NEON, maxBFloat16NEON, minBFloat16NEON),
	dtype.Float32:  vectors.Operations(addFloat32NEON, mulFloat32NEON, maxFloat32NEON, minFloat32NEON),
	dtype.Float64:  vectors.Operations(addFloat64NEON, mulFloat64NEON, maxFloat64NEON, minFloat64NEON),
}}

// divide divides n bytes of floats. The reciprocal of a power of two is exact,
// so that its product has the same bits as the quotient.
func divide(t dtype.Type, dst *byte, n, world int) {
	exact := world&(world-1) == 0
	switch {
	case t == dtype.Float32 && exact:
		mulByFloat32NEON(dst, n, 1/float32(world))
	case t == dtype.Float32:
		divFloat32NEON(dst, n, float32(world))
	case t == dtype.Float64 && exact:
		mulByFloat64NEON(dst, n, 1/float64(world))
	case t == dtype.Float64:
		divFloat64NEON(dst, n, float64(world))
	case t == dtype.Float16:
		divFloat16NEON(dst, n, float32(world))
	case t == dtype.BFloat16:
		divBFloat16NEON(dst, n, float32(world))
	default:
		dtype.Unhandled("division by vectors", t)
	}
}
