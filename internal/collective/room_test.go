package collective

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"
)

// No two segments wait in one place at a time: one that shares it with another one waits
// for that at both ends, and an empty gate holds nothing back.
func TestPlacesAreNotShared(t *testing.T) {
	a := newAlone(t, 3, true, Config{})
	for count := 20; count < 400; count++ {
		data := make([]byte, count*4)
		op, _ := a.start(1, Spec{
			Kind: plan.AllReduce, Tag: uint64(count), DType: dtype.Float32, Op: dtype.Sum, Src: data, Dst: slices.Clone(data),
			Scheme: plan.Direct(3, []uint32{1 << 30, 1, 1 << 30}), Stripes: 40,
		})
		for _, l := range op.ins {
			for k := range l.segs {
				for j := range k {
					s, o := &l.segs[k], &l.segs[j]
					if s.size == 0 || o.size == 0 || s.after == nil || o.after == nil || s.wait >= o.wait+o.size || o.wait >= s.wait+s.size {
						continue
					}
					at := k
					for at > j && l.segs[at].gate != nil && l.segs[at].gate.segment().size > 0 {
						at = l.segs[at].gate.k
					}
					require.Equal(t, j, at, "%d elements: segment %d waits in the place of %d, and not for it", count, k, j)
				}
			}
		}
		op.Finish(true)
	}
	a.w.close()
}
