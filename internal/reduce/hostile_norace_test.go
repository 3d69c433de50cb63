//go:build !race

package reduce

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// A hostile neighbour may overwrite what is still being sent. That costs the
// operation its result and nothing else, but the race detector rightly sees it.

// Pieces of a hostile neighbour in any order on several connections at once, some
// of them wrong, cut off anywhere: the in-place buffer comes back, and no memory
// of the pool stays out.
func TestHostilePieces(t *testing.T) {
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	meta := wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float32, Tag: 1, Min: -1, Max: 2})
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n, pool, quantized, unit := 2+rng.IntN(3), 1+rng.IntN(3), rng.IntN(2) == 0, 4
		var ids []wire.UUID
		for i := range n {
			ids = append(ids, uuid(i))
		}
		e := newEngine(Config{Backend: generic(t), minStripe: 64, Link: link.Config{FrameBytes: 256}, FutureWait: time.Millisecond})
		e.ExpectEpoch(1)
		var in []net.Conn
		for k := range uint32(pool) {
			a, b := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
			e.hub.AddReceiver(ids[n-1], k, b)
			c, d := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
			e.hub.AddSender(ids[1], k, c, link.Features{Native: true, Flows: true})
			t.Cleanup(func() { d.Close() })
			in = append(in, a)
		}
		src := floats(dtype.Float32, 1, n+rng.IntN(600))
		before := append([]byte(nil), src...)
		spec := Spec{Tag: 1, Count: len(src) / 4, DType: dtype.Float32, Op: []dtype.Op{dtype.Sum, dtype.Avg}[rng.IntN(2)], Src: src, Dst: src}
		if quantized {
			spec.Quantizer, spec.WireType, unit = minmax, dtype.Uint8, 1
		}
		op, err := e.NewOp(spec)
		require.NoError(t, err)
		done := make(chan error, 2)
		if rng.IntN(3) == 0 {
			op.Start(Start{Epoch: 1, Eager: true, Ring: ids, Self: ids[0], Done: func(err error) { done <- err }})
			op.Commence(1)
		} else {
			op.Start(Start{Seq: 1, Epoch: 1, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
		}
		size := 64 * (1 + rng.IntN(3))
		g := op.newGrid(size)
		order := make(chan int, op.total(g))
		indices := rng.Perm(op.total(g))
		if rng.IntN(2) == 0 {
			slices.Sort(indices)
		}
		for _, i := range indices[:rng.IntN(len(indices)+1)] {
			order <- i
		}
		close(order)
		var wg sync.WaitGroup
		for k := range pool {
			rng := rand.New(rand.NewPCG(seed, uint64(k+7)))
			wg.Go(func() {
				for index := range order {
					p, ok := op.at(g, index, false)
					if !ok {
						continue
					}
					var b []byte
					switch rng.IntN(40) {
					case 0:
						index = rng.IntN(2 * op.total(g))
					case 1:
						p.n = max(1, p.n-unit)
					case 2:
						b = append(b, byte(rng.Uint32()))
					}
					b = append(b, stripeFrame(size, index, nil)...)
					if quantized {
						b = append(append(b, byte(len(meta))), meta...)
					}
					for range p.n {
						b = append(b, byte(rng.Uint32()))
					}
					f := make([]byte, transport.HeaderSize)
					transport.Header{Payload: len(b), Tag: 1, Stream: 1 | stripeBit}.Put((*[transport.HeaderSize]byte)(f))
					if _, err := in[k].Write(append(f, b...)); err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		if rng.IntN(2) == 0 {
			op.Abort(errTest)
		}
		for _, c := range in {
			c.Close()
		}
		op.Abort(errTest)
		verdict(t, done)
		op.Finish(true)
		require.Equal(t, before, src, "seed %d", seed)
		e.Close()
		require.Zero(t, e.Buffers().InUse, "seed %d", seed)
	}
}
