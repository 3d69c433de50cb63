//go:build !race

package collective

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
)

// A piece costs no allocation: an operation of many has as many as one of few.
func TestNothingIsAllocatedPerPiece(t *testing.T) {
	times := 1000
	if testing.Short() {
		times = 100
	}
	for _, mesh := range []bool{false, true} {
		w := newWorld(t, shape{n: 3, mesh: mesh, link: loopback, cfg: Config{piece: 64}})
		rng := rand.New(rand.NewPCG(1, 1))
		cases := []*quantCase{nil, nil, nil, nil, nil, nil, nil, nil}
		kinds := slices.Clone(allKinds)
		for _, c := range quantCases {
			if c.dt == dtype.Float32 && c.op == dtype.Sum {
				kinds, cases = append(kinds, plan.AllGather, plan.ReduceScatter), append(cases, &c, &c)
			}
		}
		for i, kind := range kinds {
			cost := func(block int) float64 {
				k := &task{kind: kind, dt: dtype.Float32, op: dtype.Sum, code: cases[i], counts: slices.Repeat([]int{block}, 3)}
				for range 3 {
					k.pairs = append(k.pairs, k.counts)
				}
				k.fill(w, rng)
				run := func() {
					s := w.start(k.specs)
					s.ok(t)
					s.finish(false)
				}
				run()
				return allocs.PerRun(3, run)
			}
			few, many := cost(16), cost(16*times)
			require.Less(t, many-few, 60., "%v %+v, mesh %v: %v for few pieces, %v for %d times as many", kind, cases[i], mesh, few, many, times)
		}
		w.close()
	}
}

// A hostile neighbour may overwrite what is still being sent. That costs the operation
// its result and nothing else, but the race detector rightly sees it.

// Pieces of hostile members in any order, some of them wrong, cut off anywhere: inputs
// come back, and no memory of the pool stays out.
func TestHostilePieces(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 100
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		n, kind := 2+rng.IntN(3), allKinds[rng.IntN(len(allKinds))]
		a := newAlone(t, n, rng.IntN(2) == 0, Config{FutureWait: 1})
		w := &world{t: t, shape: shape{n: n, mesh: a.mesh, cfg: a.e.cfg}, ids: a.ids}
		for i := range n {
			w.shape.order = append(w.shape.order, i)
		}
		k := draw(rng, w, kind, 200)
		k.fill(w, rng)
		k.specs[0].Preserve = true
		op, done := a.start(1, k.specs[0])
		size := op.align() * (1 + rng.IntN(3))
		var wg sync.WaitGroup
		for _, l := range op.ins {
			member := slices.Index(a.ids, l.peer)
			rng := rand.New(rand.NewPCG(seed, uint64(member)))
			segs := slices.Clone(l.segs)
			g := cut(segs, size)
			order := rng.Perm(g.total)
			wg.Go(func() { hostile(a.from[member], rng, k, segs, g, order[:rng.IntN(len(order)+1)], l.extent) })
		}
		wg.Wait()
		if rng.IntN(2) == 0 {
			op.Abort(errTest)
		}
		for _, c := range a.from {
			c.Close()
		}
		op.Abort(errTest)
		verdict(t, done)
		op.Finish(true)
		k.restored(t, true, "%v, seed %d", kind, seed)
		a.w.close()
		require.Zero(t, a.e.link.Pool.Stats().InUse, "%v, seed %d", kind, seed)
	}
}

// hostile writes pieces of a lane, and spoils some.
func hostile(c net.Conn, rng *rand.Rand, k *task, segs []segment, g grid, order []int, extent uint64) {
	for _, index := range order {
		p := g.at(segs, index)
		size := g.piece
		switch rng.IntN(40) {
		case 0:
			index = rng.IntN(2 * g.total)
		case 1:
			p.n = max(0, p.n-1)
		case 2:
			size += 64
		}
		meta := k.code.meta(rng, p.k)
		b := make([]byte, transport.HeaderSize+headBytes+len(meta)+p.n)
		transport.Header{Payload: headBytes + len(meta) + p.n, Tag: 5, Stream: 1 | mark}.Put((*[transport.HeaderSize]byte)(b))
		putHead(b[transport.HeaderSize:], size, index, extent)
		copy(b[transport.HeaderSize+headBytes:], meta)
		for i := range p.n {
			b[transport.HeaderSize+headBytes+len(meta)+i] = byte(rng.Uint32())
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}
