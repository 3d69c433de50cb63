package collective

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Two readers complete the parts of one piece to be sent at the same moment: it is made
// ready once. Made ready twice it was sent twice, or another one never.
func TestPieceIsReadyOnce(t *testing.T) {
	const pieces, part = 20_000, 64
	const size = pieces * 2 * part
	op := &Operation{}
	out := &outLane{op: op, segs: []segment{{size: size}}}
	out.grid = cut(out.segs, 2*part)
	out.ready, out.left = newBitset(pieces), pieces
	in := &inLane{op: op, segs: []segment{{size: size, sends: []step{{out: out}}}}}
	in.grid = cut(in.segs, part)
	in.done = newBitset(in.grid.total)
	in.coming, in.missing = in.grid.total, in.grid.total
	out.segs[0].after = &step{in: in}
	var readers sync.WaitGroup
	var arrived atomic.Int32
	for odd := range 2 {
		readers.Go(func() {
			for i := odd; i < in.grid.total; i += 2 {
				for arrived.Add(1); arrived.Load() < int32(i+2-odd); {
					runtime.Gosched()
				}
				in.complete(nil, in.at(in.segs, i), false)
			}
		})
	}
	readers.Wait()
	require.Equal(t, pieces, out.count)
}
