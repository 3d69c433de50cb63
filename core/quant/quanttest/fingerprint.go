package quanttest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Fingerprint is a checksum of parameters, wire forms and values of chunks of
// many kinds, for everything that q accepts between gopccl peers: the same
// number on every processor, with and without vector instructions.
func Fingerprint(q quant.Quantizer) (uint32, error) {
	accepted, err := checkTable(q)
	if err != nil {
		return 0, err
	}
	sum := uint32(0)
	for _, c := range accepted {
		rng := rand.New(rand.NewPCG(13, uint64(c.t)<<8|uint64(c.q)))
		for kind := range numExact {
			for _, n := range []int{1, 40, 700} {
				src, acc := exact(c.t, kind, n, rng), exact(c.t, 0, n, rng)
				m := q.Params(c.t, c.q, src)
				wireForm := make([]byte, c.form.Size(n))
				q.Quantize(c.t, c.q, &m, wireForm, src)
				q.Dequantize(c.t, c.q, &m, c.op, acc, wireForm)
				sum = crc32.Update(sum, crc32.IEEETable, fmt.Appendf(nil, "{0 %v %v %v %v %v %v}", m.Kind, m.DType, m.Min, m.Max, m.ZeroPoint, m.Scale))
				sum = crc32.Update(sum, crc32.IEEETable, m.Bytes[:m.Size])
				sum = crc32.Update(sum, crc32.IEEETable, wireForm)
				sum = crc32.Update(sum, crc32.IEEETable, acc)
			}
		}
	}
	return sum, nil
}

const numExact = 6

// exact makes chunks without logarithms and exponentials, which are not the
// same bits everywhere.
func exact(t dtype.Type, kind, n int, rng *rand.Rand) []byte {
	v := make([]float64, n)
	for i := range v {
		x := float64(rng.IntN(1<<24) - 1<<23)
		switch kind {
		case 0: // between -1 and 1
			x = math.Ldexp(x, -23)
		case 1: // many magnitudes
			x = math.Ldexp(x, rng.IntN(40)-50)
		case 2: // far from zero
			x = 1000 + math.Ldexp(x, -22)
		case 3: // constant
			x = 0.1
		case 4: // subnormal
			x = math.Ldexp(x, -149)
		}
		v[i] = x
	}
	b := encode(t, v)
	if kind == numExact-1 { // all patterns
		for i := 0; i < len(b); i += 4 {
			binary.LittleEndian.PutUint32(b[i:], rng.Uint32())
		}
	}
	return b
}
