package reduce

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
)

// asked counts how often a chunk was read for its parameters.
type asked struct {
	quant.Quantizer
	quant.Gatherer
	whole *atomic.Int64
}

func (a asked) Params(t, q dtype.Type, src []byte) quant.Meta {
	a.whole.Add(1)
	return a.Quantizer.Params(t, q, src)
}

// The parameters of what was just computed are gathered while it is in the
// cache, and the result has the bits that it has without.
func TestParametersAreGathered(t *testing.T) {
	const n, count = 3, 3*quant.GatherElements*5 + 7
	for _, name := range []string{"minmax", "zeropoint"} {
		q, err := quant.Lookup(name)
		require.NoError(t, err)
		for _, frame := range []int{192, 4096} {
			r := newRing(t, shape{n: n, cfg: Config{Link: link.Config{FrameBytes: frame}}})
			var results [2][]byte
			var whole atomic.Int64
			for i, z := range []quant.Quantizer{
				struct{ quant.Quantizer }{q}, // no Gatherer
				asked{q, q.(quant.Gatherer), &whole},
			} {
				rng := rand.New(rand.NewPCG(1, 2))
				specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, count, i == 1)
				for k := range specs {
					v := dtype.View[float32](specs[k].Src)
					for j := range v {
						v[j] = rng.Float32() - 0.3
					}
					specs[k].Quantizer, specs[k].WireType = z, dtype.Uint8
				}
				r.start(specs).ok(t)
				results[i] = append([]byte(nil), specs[0].Dst...)
			}
			require.Equal(t, results[0], results[1])
			require.EqualValues(t, n, whole.Load(), "only what was not received is looked at for its own sake")
			r.close()
		}
	}
}
