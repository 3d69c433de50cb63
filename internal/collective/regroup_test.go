package collective

import (
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// Connections that come and go while collectives run take pieces of them, and none is
// lost. Afterwards none holds an operation.
func TestConnectionsJoinAndLeave(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, shape{
			n: 3, pool: 6, mesh: true, frame: 64, cfg: Config{minStripe: 64},
			link: memoryLink(transporttest.Options{Buffer: 500 + rng.IntN(3000), Piece: rng.IntN(200)}),
		})
		for range 3 {
			k := draw(rng, w, plan.AllReduce, 20_000).fill(w, rng)
			run := w.start(k.specs)
			var over atomic.Bool
			var wg sync.WaitGroup
			for i, op := range run.ops {
				for _, l := range op.outs {
					pool := w.eng[i].hub.Senders(l.peer)
					wg.Go(func() {
						for n := 0; n < 300 && !over.Load(); n++ {
							runtime.Gosched()
							l.regroup(pool[:2+n%5])
						}
					})
				}
			}
			run.ok(t)
			over.Store(true)
			wg.Wait()
			k.right(t, "seed %d", seed)
			for i, op := range run.ops {
				for _, l := range op.outs {
					require.False(t, w.eng[i].hub.Sends(l.peer))
				}
			}
		}
		w.close()
	}
}

// written returns how many bytes a member has sent to another one.
func (w *world) written(from, to int) (sum int64) {
	for _, c := range w.out[[2]int{from, to}] {
		sum += c.(*transporttest.Conn).Written()
	}
	return sum
}

// Nothing joins a collective that waits for its number before it may send: what its members
// do not know would be dropped.
func TestNobodyJoinsBeforeTheCommence(t *testing.T) {
	w := newWorld(t, shape{n: 2, pool: 6, older: true, mesh: true, frame: 64, cfg: Config{minStripe: 64}})
	rng := rand.New(rand.NewPCG(1, 1))
	k := draw(rng, w, plan.AllReduce, 20_000).fill(w, rng)
	run, commence := w.startMixed(k.specs, 1, 3, []int{0, 1})
	regroup := func(n int) {
		for i, op := range run.ops {
			for _, l := range op.outs {
				l.regroup(w.eng[i].hub.Senders(l.peer)[:n])
			}
		}
	}
	for n := 2; n <= 6; n++ {
		regroup(n)
	}
	for i, op := range run.ops {
		for _, l := range op.outs {
			require.False(t, w.eng[i].hub.Sends(l.peer))
		}
	}
	require.Zero(t, w.written(0, 1)+w.written(1, 0))
	commence()
	regroup(3)
	run.ok(t)
	k.right(t, "behind the commence")
	run.finish(false)
}

// amid starts an all-reduce of two of which member 1 has taken pieces and waits for more
// until on says that they come.
func (w *world) amid(k *task) (run *started, on func()) {
	out := w.out[[2]int{0, 1}]
	stall := func(is bool, conns []net.Conn) {
		for _, c := range conns {
			c.(*transporttest.Conn).Stall(is)
		}
	}
	stall(true, out)
	run = w.start(k.specs)
	op := run.ops[1]
	// The first one alone may take everything before another is on its way.
	require.Eventually(w.t, func() bool { return out[1].(*transporttest.Conn).Written() > 0 }, patience, time.Millisecond)
	stall(false, out[:1])
	require.Eventually(w.t, func() bool {
		op.e.mu.Lock()
		defer op.e.mu.Unlock()
		return len(op.ins[0].bound) > 0
	}, patience, time.Millisecond)
	return run, func() { stall(false, out[1:]) }
}

// A connection that is new to a collective that runs counts at once: one that breaks fails
// it, although nothing has come over it, and one that is closed again, unused, does not.
func TestNewConnectionEnds(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		w := newWorld(t, shape{n: 2, pool: 2, mesh: true, frame: 64, cfg: Config{minStripe: 64}})
		rng := rand.New(rand.NewPCG(1, 1))
		k := draw(rng, w, plan.AllReduce, 20_000).fill(w, rng)
		run, on := w.amid(k)
		op := run.ops[1]
		waits := func() int {
			op.e.mu.Lock()
			defer op.e.mu.Unlock()
			return len(op.ins[0].from)
		}
		a, b := w.shape.link(t)
		op.e.hub.AddReceiver(w.ids[0], 2, b)
		require.Equal(t, 3, waits())
		if !breaks {
			a.Close()
			require.Eventually(t, func() bool { return waits() == 2 }, patience, time.Millisecond)
			on()
			run.ok(t)
			k.right(t, "a connection came and went")
			run.finish(false)
			continue
		}
		a.(*transporttest.Conn).Cut()
		require.ErrorIs(t, verdict(t, run.errs[1]), errs.RankConnectionLost)
		run.ops[0].Abort(errTest)
		on()
		require.Error(t, verdict(t, run.errs[0]))
		run.finish(true)
	}
}
