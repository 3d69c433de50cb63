package quanttest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/gopccl/gopccl/core/quant"
)

// checkGather: parameters that were gathered part by part, wherever the parts
// end, are those of the whole chunk, bit by bit, or are not offered.
func checkGather(q quant.Quantizer, c combination) error {
	g, ok := q.(quant.Gatherer)
	if !ok {
		return nil
	}
	rng := rand.New(rand.NewPCG(7, uint64(c.t)<<8|uint64(c.q)))
	for _, n := range []int{1, 31, quant.GatherElements, 3*quant.GatherElements + 5} {
		all := samples(n, rng)
		for name, v := range hostile(n, rng) {
			all[name] = v
		}
		signs := make([]float64, n)
		for i := range signs {
			signs[i] = math.Copysign(0, rng.Float64()-0.5)
		}
		all["zeros of both signs"] = signs
		for name, v := range all {
			src := encode(c.t, v)
			want := q.Params(c.t, c.q, src)
			var known quant.Gathered
			for known.Elements < n {
				to := min(n, known.Elements+(1+rng.IntN(2))*quant.GatherElements)
				if g.Gather(c.t, c.q, &known, src[known.Elements*c.t.Size():to*c.t.Size()]); known.Elements != to {
					return fmt.Errorf("gathered to element %d, says %d", to, known.Elements)
				}
			}
			if got, ok := g.Gathering(c.t, c.q, &known); ok && !sameMeta(got, want) {
				return fmt.Errorf("%d elements, %s: gathered %+v, of the whole %+v", n, name, got, want)
			} else if !ok && name == "normal" {
				return fmt.Errorf("%d normal elements are not offered", n)
			}
		}
	}
	return nil
}

func sameMeta(a, b quant.Meta) bool {
	return string(metaBits(a)) == string(metaBits(b))
}

// metaBits are the bits of m, NaNs included.
func metaBits(m quant.Meta) []byte {
	b := []byte{byte(m.Kind), byte(m.DType), m.Size}
	for _, v := range []uint64{math.Float64bits(m.Min), math.Float64bits(m.Max), uint64(m.ZeroPoint), uint64(math.Float32bits(m.Scale))} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, m.Bytes[:]...)
}
