package reduce

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// The state of an engine names every running operation, how far it is, and what
// it waits for, with the role and the peer.
func TestStateNamesWhatStands(t *testing.T) {
	r := newRing(t, shape{n: 2, cfg: Config{Link: link.Config{FrameBytes: 64}}, link: memory(transporttest.Options{Buffer: 1 << 20})})
	r.out[1][0].(*transporttest.Conn).Stall(true) // rank 0 receives nothing
	specs, want := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 1000, false)
	op, err := r.eng[0].NewOp(specs[0])
	require.NoError(t, err)
	require.Equal(t, OpState{Tag: 5, Count: 1000, DType: dtype.Float32, Op: dtype.Sum, Phase: "created"}, op.State())
	op.Finish(false)
	require.Empty(t, r.eng[0].State().Ops)

	s := r.start(specs)
	require.Eventually(t, func() bool { return r.eng[0].Stats().TxBytes == 2000 }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return s.ops[0].State().InWrite == 0 }, patience, time.Millisecond)
	st := r.eng[0].State()
	require.Equal(t, 1, st.Active)
	require.Len(t, st.Ops, 1)
	got := st.Ops[0]
	require.GreaterOrEqual(t, got.Since, time.Duration(0)) // 0 where the clock is coarse
	got.Since = 0
	require.Equal(t, OpState{ // S4-30
		Tag: 5, Seq: r.seq, Count: 1000, DType: dtype.Float32, Op: dtype.Sum, Phase: "running",
		Step: 0, Steps: 2, Received: 0, Expect: 4000, Sent: 2000, ToSend: 4000, Next: r.ids[1], Prev: r.ids[1],
		Waits: "previous peer " + r.ids[1].Short() + ": no frame of step 0 has come; sender to " + r.ids[1].Short() + ": nothing is ready",
	}, got)
	require.Len(t, st.Conns, 2)
	for i := range st.Conns {
		st.Conns[i].Thread = nil // of pinned roles
	}
	require.Equal(t, link.ConnState{Role: "reader", Peer: r.ids[1], Ops: 1, Runs: true}, st.Conns[0])
	require.Equal(t, link.ConnState{Role: "sender", Peer: r.ids[1], Ops: 1}, st.Conns[1])

	r.out[1][0].(*transporttest.Conn).Stall(false)
	s.ok(t)
	require.Equal(t, want, specs[0].Dst)
	require.Eventually(t, func() bool { return r.eng[0].State().Active == 0 }, patience, time.Millisecond)
	require.Empty(t, r.eng[0].State().Ops)
}

// A state is taken from outside while operations run and are aborted: the race
// detector finds what it must not touch.
func TestStateDisturbsNothing(t *testing.T) {
	r := newRing(t, shape{n: 3, pool: 2, cfg: Config{Link: link.Config{FrameBytes: 64}}, link: memory(transporttest.Options{Buffer: 200})})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, e := range r.eng {
				for _, op := range e.State().Ops {
					if op.Received > op.Expect || op.Sent > op.ToSend || op.Step > op.Steps {
						t.Errorf("%+v", op)
					}
				}
			}
		}
	})
	rng := rand.New(rand.NewPCG(4, 4))
	for k := range 30 {
		specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, 500, true)
		s := r.start(specs)
		if k%3 == 0 {
			for _, op := range s.ops {
				op.Abort(errTest)
			}
		}
		s.wait(t)
		for _, op := range s.ops {
			op.Finish(k%3 == 0)
		}
	}
	cancel()
	wg.Wait()
}

// A listener hears when the engine becomes active and idle, in turns, around the
// operations, however many overlap, and the last before Close returns.
func TestActiveAndIdleInOrder(t *testing.T) {
	var mu sync.Mutex
	var events []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, s)
	}
	r := newRing(t, shape{n: 1, cfg: Config{Link: link.Config{Trace: &trace.Listener{
		BecameActive: func() { note("active") },
		BecameIdle:   func() { note("idle") },
		OpStarted:    func(uint64, uint64) { note("start") },
		OpEnded:      func(uint64, uint64, error) { note("end") },
	}}}})
	const threads, each = 4, 50
	var wg sync.WaitGroup
	var seq struct {
		sync.Mutex
		n uint64
	}
	for range threads {
		wg.Go(func() {
			for range each {
				b := make([]byte, 8)
				op, err := r.eng[0].NewOp(Spec{Count: 8, DType: dtype.Uint8, Op: dtype.Sum, Src: b, Dst: b})
				if err != nil {
					t.Error(err)
					return
				}
				done := make(chan struct{})
				seq.Lock()
				seq.n++
				n := seq.n
				seq.Unlock()
				op.spec.Tag = n
				op.Start(Start{Seq: n, Ring: r.ids, Self: r.ids[0], Done: func(error) { close(done) }})
				<-done
				op.Finish(false)
			}
		})
	}
	wg.Wait()
	r.close()
	active, started, ended, idles := false, 0, 0, 0
	for i, e := range events {
		switch e {
		case "active":
			require.False(t, active, "event %d", i) // S4-10
			active = true
		case "idle":
			require.True(t, active, "event %d", i)
			require.Equal(t, started, ended, "event %d", i)
			active = false
			idles++
		case "start":
			require.True(t, active, "event %d", i)
			started++
		case "end":
			require.True(t, active, "event %d", i)
			ended++
		}
	}
	require.False(t, active)
	require.Positive(t, idles)
	require.Equal(t, threads*each, ended)
}

// The first cause of a failure is the operation's error; what came later is
// kept behind it.
func TestLaterCausesAreChained(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	spec := Spec{Tag: 4, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)}
	op, err := a.e.NewOp(spec)
	require.NoError(t, err)
	op.Abort(errs.New(errs.Canceled, "all-reduce", errTest)) // Start comes later, and with it the end
	op.Abort(errors.New("the master, too"))
	op.Abort(errors.New("and the connection"))
	done := make(chan error, 1)
	op.Start(Start{Seq: 1, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
	got := verdict(t, done)
	require.ErrorIs(t, got, errTest)
	require.Equal(t, errs.Canceled, errs.CodeOf(got)) // S4-11
	var chain *errs.Chain
	require.ErrorAs(t, got, &chain)
	require.Len(t, chain.Later, 2)
	require.Contains(t, got.Error(), "the master, too")
	op.Finish(true)
}

// With the tag `invariants` the order of the locks is watched while operations
// run, are looked at and are aborted, and connections are closed.
func TestLocksAreTakenInOrder(t *testing.T) {
	defer invariants.WatchLocks()()
	cfg := Config{Link: link.Config{FrameBytes: 1024, Trace: &trace.Listener{BecameIdle: func() {}}}}
	r := newRing(t, shape{n: 2, pool: 2, cfg: cfg, link: memory(transporttest.Options{Buffer: 4000})})
	rng := rand.New(rand.NewPCG(4, 4))
	for k := range 6 {
		specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, 3000, true)
		s := r.start(specs)
		if k%3 == 0 {
			s.ops[0].Abort(errTest)
			s.ops[1].Abort(errTest)
		}
		r.eng[0].State()
		s.wait(t)
		for _, op := range s.ops {
			op.Finish(k%3 == 0)
		}
	}
	r.close()
}
