package reduce

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
)

// Groups of 32 elements in 18 bytes, with metadata of their own: all ranks end with
// the bits of the oracle, on one connection and on several, in place and not, with
// chunks that end within a group, and frames that are smaller than usual.
func TestGroups(t *testing.T) {
	q, err := quant.Lookup("blocks")
	require.NoError(t, err)
	for _, n := range []int{2, 3, 5} {
		for _, sh := range []shape{{n: n, native: true, knows: true, cfg: Config{Link: link.Config{FrameBytes: 64}}}, {n: n, native: true, knows: true}, striping(n, 3)} {
			r := newRing(t, sh)
			for _, c := range []quantCase{
				{"blocks", dtype.Float32, dtype.Int4, dtype.Sum},
				{"blocks", dtype.Float32, dtype.Int4, dtype.Avg},
				{"blocks", dtype.Float64, dtype.Int4, dtype.Max},
			} {
				for _, count := range []int{n, 32 * n, 33*n + 1, 2777, 40_000} {
					specs, _ := r.specs(rand.New(rand.NewPCG(uint64(n), 5)), c.dt, c.how, count, count%2 == 0)
					var src [][]byte
					for i := range specs {
						src = append(src, append([]byte(nil), specs[i].Src...))
						specs[i].Quantizer, specs[i].WireType = q, c.wt
					}
					want := quantOracle(r, q, c, src)
					s := r.start(specs)
					for i, err := range s.wait(t) {
						require.NoError(t, err)
						require.Equal(t, want, specs[i].Dst, "rank %d of %d: %+v, %d elements", i, n, c, count)
						if sh.flows && count == 40_000 {
							require.NotNil(t, s.ops[i].in.striped, "not striped")
						}
						s.ops[i].Finish(false)
					}
				}
			}
			r.close()
		}
	}
}

// A ring with a PCCL peer has no place for such a form.
func TestGroupsAreForNativeRings(t *testing.T) {
	q, err := quant.Lookup("blocks")
	require.NoError(t, err)
	r := newRing(t, shape{n: 2})
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 5)), dtype.Float32, dtype.Sum, 100, true)
	for i := range specs {
		specs[i].Quantizer, specs[i].WireType = q, dtype.Int4
	}
	for _, err := range r.start(specs).wait(t) {
		require.ErrorIs(t, err, quant.ErrNative)
		require.ErrorIs(t, err, errs.InvalidArgument)
	}
	r.close()
}

// Chunks of encoded groups lie side by side in the room for all of them.
func TestPlacesOfGroups(t *testing.T) {
	for _, count := range []int{5, 64, 65, 1000, 1023, 4096} {
		for n := 2; n <= 5; n++ {
			op := &Op{position: position{n: n}, unit: 18, group: 32, spec: Spec{Count: count}}
			end := 0
			for c := range n {
				first, length := plan.Chunk(count, n, c)
				require.Equal(t, c, plan.ChunkAt(count, n, first))
				require.GreaterOrEqual(t, op.place(first), end, fmt.Sprint(count, n, c))
				end = op.place(first) + op.encoded(length)
				require.Equal(t, length, op.decoded(op.encoded(length), length))
			}
			require.LessOrEqual(t, end, op.room(n))
		}
	}
}
