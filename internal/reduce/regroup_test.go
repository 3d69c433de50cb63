package reduce

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// Connections that come and go while operations run take pieces of them, and none is
// lost: the bits are those of the oracle. Afterwards none holds an operation.
func TestConnectionsJoinAndLeave(t *testing.T) {
	joined := 0
	for _, abort := range []bool{false, true} {
		for seed := range uint64(3) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := striping(3, 2)
			s.link = memory(transporttest.Options{Buffer: 500 + rng.IntN(3000), Piece: rng.IntN(200)})
			r := newRing(t, s)
			for round := range 3 {
				specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 20_000, true)
				before := keep(specs)
				run := r.start(specs)
				var over atomic.Bool
				var wg sync.WaitGroup
				for i := range r.ids {
					for k := uint32(2); round == 0 && k < 6; k++ {
						a, b := r.shape.link(t)
						next := (i + 1) % 3
						r.eng[next].hub.AddReceiver(r.ids[i], k, b)
						r.eng[i].hub.AddSender(r.ids[next], k, a, link.Features{Native: true, Flows: true})
					}
				}
				for i, op := range run.ops {
					pool := r.eng[i].hub.Senders(r.ids[(i+1)%3])
					wg.Go(func() {
						for k := 0; k < 300 && !over.Load(); k++ {
							runtime.Gosched()
							op.regroup(pool[:2+k%5])
							if abort && k == 20 {
								op.Abort(errTest)
							}
						}
					})
				}
				for i, err := range run.wait(t) {
					if !abort {
						require.NoError(t, err)
						require.Equal(t, want, specs[i].Dst, "rank %d", i)
					}
				}
				over.Store(true)
				wg.Wait()
				for i, op := range run.ops {
					if op.e.mu.Lock(); round == 0 && len(op.in.from) > 2 {
						joined++
					}
					op.e.mu.Unlock()
					require.False(t, r.eng[i].hub.Sends(op.next))
					op.Finish(abort)
					if abort {
						require.Equal(t, before[i], specs[i].Src)
					}
				}
			}
			r.close()
		}
	}
	require.Positive(t, joined, "no piece came on a connection that joined")
}

// Nothing joins an operation before that sends by itself.
func TestNobodyJoinsBeforeTheOperationSends(t *testing.T) {
	r := newRing(t, striping(2, 6))
	specs, want := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 20_000, true)
	ops, done := make([]*Op, 2), make(chan error, 2)
	pools := make([][]*link.Sender, 2)
	for i, e := range r.eng {
		var err error
		ops[i], err = e.NewOp(specs[i])
		require.NoError(t, err)
		pools[i] = e.hub.Senders(r.ids[1-i])
		op := ops[i]
		op.id.stream.Store(1)
		op.id.start, op.id.key = 1, opKey{op.spec.Tag, 1}
		op.done, op.native = func(err error) { done <- err }, true
		require.NoError(t, op.enterRing(r.ids, r.ids[i]))
		e.count(1)
		e.mu.Lock()
		require.False(t, op.open(nil))
		op.register()
		e.mu.Unlock()
		op.out.flows.Use(pools[i][:2:2])
		op.regroup(pools[i])
	}
	for i, op := range ops {
		require.Len(t, op.out.flows.Conns(), 2)
		require.False(t, r.eng[i].hub.Sends(r.ids[1-i]))
	}
	for i, op := range ops {
		op.attach()
		op.regroup(pools[i])
	}
	for range ops {
		require.NoError(t, <-done)
	}
	for i, op := range ops {
		require.Equal(t, want, specs[i].Dst)
		op.Finish(false)
	}
}

// amid starts a striped operation of two, of which rank 1 has taken pieces and waits for
// more until on says that they come.
func (r *ring) amid(specs []Spec) (run *started, on func()) {
	stall := func(is bool) {
		for _, c := range r.out[1] {
			c.(*transporttest.Conn).Stall(is)
		}
	}
	stall(true)
	run = r.start(specs)
	op := run.ops[1]
	require.Eventually(r.t, func() bool {
		op.e.mu.Lock()
		defer op.e.mu.Unlock()
		return len(op.in.from) > 1
	}, patience, time.Millisecond)
	return run, func() { stall(false) }
}

// A connection that is new to an operation that runs breaks before its first piece was
// read, which may be the last one: the sender may have done with it, and does not tell.
func TestNewConnectionBreaks(t *testing.T) {
	r := newRing(t, striping(2, 2))
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 20_000, true)
	run, on := r.amid(specs)
	a, b := r.shape.link(t)
	r.eng[1].hub.AddReceiver(r.ids[0], 2, b)
	a.(*transporttest.Conn).Cut()
	require.ErrorIs(t, <-run.errs[1], errs.RankConnectionLost)
	run.ops[0].Abort(errTest)
	on()
	require.Error(t, <-run.errs[0])
	for _, op := range run.ops {
		op.Finish(true)
	}
}

// An operation whose first frame has not come counts on a connection of the pool that may
// bring it, and not on one that was closed unused: the loss of the only one fails it.
func TestWhoIsWaitedFor(t *testing.T) {
	for _, early := range []bool{true, false} {
		r := newRing(t, shape{n: 2, native: true, knows: true, flows: true})
		e := r.eng[1]
		a, b := r.shape.link(t)
		e.hub.AddReceiver(r.ids[0], 1, b)
		pool := e.hub.Receivers(r.ids[0])
		leaves := func() {
			a.Close()
			require.Eventually(t, pool[1].Closed, patience, time.Millisecond)
		}
		if early {
			leaves()
		}
		op, err := e.NewOp(Spec{Count: 8, DType: dtype.Float32, Op: dtype.Sum, Src: make([]byte, 32), Dst: make([]byte, 32)})
		require.NoError(t, err)
		done := make(chan error, 2)
		op.Start(Start{Seq: 1, Ring: r.ids, Self: r.ids[1], Native: true, Done: func(err error) { done <- err }})
		waited := func() *link.Receiver {
			e.mu.Lock()
			defer e.mu.Unlock()
			return op.in.receiver
		}
		if !early {
			require.Equal(t, pool[1], waited())
			leaves()
		}
		require.Eventually(t, func() bool { return waited() == pool[0] }, patience, time.Millisecond)
		r.out[0][0].(*transporttest.Conn).Cut()
		require.ErrorIs(t, <-done, errs.RankConnectionLost)
		op.Finish(true)
	}
}

// One that is closed again, unused, costs nothing: whether it came before the operation or
// meanwhile, and went before or meanwhile, and whether the operation is striped.
func TestConnectionsThatWereNotUsed(t *testing.T) {
	r := newRing(t, striping(2, 2))
	rng := rand.New(rand.NewPCG(1, 1))
	number := uint32(2)
	join := func() (leave func()) {
		a, b := r.shape.link(t)
		r.eng[1].hub.AddReceiver(r.ids[0], number, b)
		grown := r.eng[1].hub.Receivers(r.ids[0])[number]
		number++
		return func() {
			a.Close()
			require.Eventually(t, grown.Closed, patience, time.Millisecond)
		}
	}
	for range 2 {
		specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 20_000, true)
		before := join()
		run, on := r.amid(specs)
		meanwhile := join()
		before()
		meanwhile()
		op := run.ops[1]
		require.Eventually(t, func() bool {
			op.e.mu.Lock()
			defer op.e.mu.Unlock()
			return len(op.in.from) == 2
		}, patience, time.Millisecond, "it is not waited for")
		on()
		run.ok(t)
		require.Equal(t, want, specs[1].Dst)
	}
	for range 12 { // of those in order each takes another connection
		specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 10, true)
		r.start(specs).ok(t)
		require.Equal(t, want, specs[1].Dst)
	}
	leave := join()
	specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 20_000, true)
	leave()
	r.start(specs).ok(t)
	require.Equal(t, want, specs[1].Dst)
}
