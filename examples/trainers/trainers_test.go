package trainers

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/examples/charlm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// master runs one until the returned function is called.
func master(t *testing.T) (addr string, stop func()) {
	t.Helper()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		m.Close()
	})
	t.Cleanup(stop)
	return m.Addr().String(), stop
}

// small are options of a tiny model for peers of the master at addr.
func small(addr string) Options {
	o := DefaultOptions()
	o.Master, o.Steps, o.Inner, o.Batch = addr, 8, 3, 4
	o.Shape = charlm.Shape{Context: 16, Embed: 3, Hidden: 8}
	o.LossEvery = 1000
	o.Tune = func(c *core.Options) { c.PortBase, c.ListenHost = -1, "127.0.0.1" }
	return o
}

// peer is a trainer in a goroutine and what it reported.
type peer struct {
	mu     sync.Mutex
	events []Event
	on     func(Event) // called for every event
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func start(t *testing.T, train Trainer, o Options, on func(Event)) *peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	p := &peer{on: on, cancel: cancel, done: make(chan struct{})}
	o.Report = func(e Event) {
		p.mu.Lock()
		p.events = append(p.events, e)
		p.mu.Unlock()
		if p.on != nil {
			p.on(e)
		}
	}
	go func() {
		defer close(p.done)
		defer cancel()
		p.err = train(ctx, o)
	}()
	t.Cleanup(func() { p.cancel(); <-p.done })
	return p
}

func (p *peer) wait(t *testing.T) {
	t.Helper()
	<-p.done
	require.NoError(t, p.err)
}

// of returns the events of some kinds.
func (p *peer) of(kinds ...string) []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Event
	for _, e := range p.events {
		if slices.Contains(kinds, e.Kind) {
			list = append(list, e)
		}
	}
	return list
}

// agrees requires that the peer had the expected state hash after every step.
func (p *peer) agrees(t *testing.T, hashes []string) {
	t.Helper()
	for _, e := range p.of(Joined, Stepped, Ended) {
		require.Equal(t, hashes[e.Step], e.Hash, "%s at step %d", e.Kind, e.Step)
	}
}

// Two peers of each trainer compute what one process computes without them, to
// the bit. After the first synchronisation nothing is received.
func TestTrainersEqualOneProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		train     Trainer
		reference func(*reference, int)
	}{
		"ddp":    {DDP, (*reference).ddp},
		"diloco": {DiLoCo, (*reference).diloco},
		"async":  {AsyncDiLoCo, (*reference).async},
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := master(t)
			o := small(addr)
			ref := newReference(o)
			tc.reference(ref, int(o.Steps))
			a, b := start(t, tc.train, o, nil), start(t, tc.train, o, nil)
			for _, p := range []*peer{a, b} {
				p.wait(t)
				p.agrees(t, ref.hashes) // S2-03, S2-22, S2-23, S2-24
				require.Len(t, p.of(Stepped), int(o.Steps))
				for _, e := range p.of(Synced) {
					require.False(t, e.Fetched, "step %d", e.Step) // S1-28
				}
				first, last := p.of(Joined)[0], p.of(Ended)[0]
				require.Less(t, last.Loss, first.Loss)
			}
		})
	}
}

// Averages travel by every quantizer that the flag lists, and the peers stay equal.
func TestTrainersQuantize(t *testing.T) {
	types := map[string]dtype.Type{"minmax": dtype.Uint8, "zeropoint": dtype.Uint8, "blocks": dtype.Int4}
	for _, name := range quant.Names() {
		t.Run(name, func(t *testing.T) {
			var o Options
			code := execute("ddp", func(_ context.Context, chosen Options) error { o = chosen; return nil }, Options{Inner: 1, Batch: 1, MinPeers: 1}, []string{"-quantize", name})
			require.Zero(t, code)
			require.Equal(t, name, o.Quantize.Algorithm)
			require.Equal(t, types[name], o.Quantize.Type)

			addr, _ := master(t)
			how := o.Quantize
			o = small(addr)
			o.Quantize = how
			a, b := start(t, DDP, o, nil), start(t, DDP, o, nil)
			a.wait(t)
			b.wait(t)
			require.Equal(t, a.of(Ended)[0].Hash, b.of(Ended)[0].Hash)
			require.Less(t, a.of(Ended)[0].Loss, a.of(Joined)[0].Loss)
		})
	}
	code := execute("ddp", func(context.Context, Options) error { panic("trains") }, Options{Inner: 1, Batch: 1, MinPeers: 1}, []string{"-quantize", "gzip"})
	require.Equal(t, 2, code)
}

// With one local step of plain gradient descent and an outer step of rate 1
// without momentum, DiLoCo is data-parallel gradient descent.
func TestDiLoCoWithOneStepIsDataParallel(t *testing.T) {
	addr, _ := master(t)
	o := small(addr)
	o.Inner, o.OuterRate, o.OuterMomentum = 1, 1, 0
	const rate = 0.25
	o.Local = func(n int) charlm.Optimizer { return charlm.NewNesterov(n, rate, 0) }
	a, b := start(t, DiLoCo, o, nil), start(t, DiLoCo, o, nil)
	a.wait(t)
	b.wait(t)

	ref := newReference(o)
	params := ref.model.Init(o.Seed)
	descent := charlm.NewNesterov(len(params), rate, 0)
	for step := range int(o.Steps) {
		var grads [world][]float32
		for rank := range world {
			grads[rank] = make([]float32, len(params))
			ref.model.Gradient(params, grads[rank], ref.sampler(rank, step).Next(o.Batch))
		}
		descent.Step(params, mean(grads))
	}
	want := ref.model.Loss(params, ref.text.Validation(o.Shape.Context, validationSize))
	require.InDelta(t, want, a.of(Ended)[0].Loss, 1e-4) // S2-23
	require.NotEqual(t, a.of(Joined)[0].Loss, a.of(Ended)[0].Loss)
}

// The asynchronous trainer launches the average of a step after it applied that
// of the step before.
func TestAsyncSchedule(t *testing.T) {
	addr, _ := master(t)
	o := small(addr)
	o.Steps, o.LossEvery = 3, 1
	a, b := start(t, AsyncDiLoCo, o, nil), start(t, AsyncDiLoCo, o, nil)
	a.wait(t)
	b.wait(t)
	var trace []string
	for _, e := range a.of(Synced, Stepped, Reduce, Ended) {
		trace = append(trace, e.Kind)
	}
	require.Equal(t, []string{Synced, Stepped, Reduce, Stepped, Reduce, Stepped, Reduce, Ended}, trace) // S2-24
	steps := a.of(Stepped)
	require.Equal(t, steps[0].Loss, a.of(Joined)[0].Loss, "nothing is applied in the first step")
	require.NotEqual(t, steps[1].Loss, steps[0].Loss)
}

// A peer joins an asynchronous run while an average is in flight: it computes
// along from the state it gets, adopts the outer step that it missed by a
// receive-only synchronisation while the others only send, and holds the same
// bits from its first step on. The average in flight is not lost: up to the step
// of the join the state is that of a run without it.
func TestAsyncNewcomerAdoptsWhatItMissed(t *testing.T) {
	addr, _ := master(t)
	o := small(addr)
	o.Steps = 40
	ref := newReference(o)
	ref.async(int(o.Steps))

	var mu sync.Mutex
	var c *peer
	hold := make(chan struct{})
	a := start(t, AsyncDiLoCo, o, func(e Event) {
		if e.Kind == Stepped && e.Step == 4 {
			mu.Lock()
			c = start(t, AsyncDiLoCo, o, func(e Event) {
				if e.Kind == Joined {
					close(hold)
				}
			})
			mu.Unlock()
		}
		// The run is longer than the join takes, whatever the machine.
		if e.Kind == Stepped && e.Step == 30 {
			<-hold
		}
	})
	b := start(t, AsyncDiLoCo, o, nil)
	a.wait(t)
	b.wait(t)
	mu.Lock()
	defer mu.Unlock()
	c.wait(t)

	joined := c.of(Joined)[0].Step
	require.Positive(t, joined)
	for i, e := range c.of(Synced) {
		require.Equal(t, []string{"enforce popular", "receive only"}[i], e.Strategy)
		require.True(t, e.Fetched)
	}
	for _, p := range []*peer{a, b} {
		syncs := p.of(Synced)
		require.Equal(t, "send only", syncs[len(syncs)-1].Strategy)
		require.False(t, syncs[len(syncs)-1].Fetched)
		for _, e := range p.of(Stepped) {
			if e.Step <= joined+1 {
				require.Equal(t, ref.hashes[e.Step], e.Hash, "step %d, join at %d", e.Step, joined) // S2-25
			}
		}
	}
	require.NotEqual(t, ref.hashes[joined+2], a.of(Stepped)[joined+1].Hash, "the newcomer's share counts from then on")
	state := map[uint64]string{}
	for _, e := range a.of(Stepped) {
		state[e.Step] = e.Hash
	}
	steps := c.of(Stepped)
	require.Equal(t, joined+1, steps[0].Step)
	for _, e := range steps {
		require.Equal(t, state[e.Step], e.Hash, "step %d", e.Step) // S2-26
	}
	require.Equal(t, state[o.Steps], c.of(Ended)[0].Hash)
}

// A trainer that is told to leave does so between two steps: no operation of the others
// is run again.
func TestLeavesInOrder(t *testing.T) {
	for name, train := range map[string]Trainer{"ddp": DDP, "diloco": DiLoCo, "async": AsyncDiLoCo} {
		t.Run(name, func(t *testing.T) {
			addr, _ := master(t)
			o := small(addr)
			o.Steps, o.MinPeers = 40, 2
			leaving, leave := context.WithCancel(t.Context())
			defer leave()
			left := o
			left.Leaving = leaving
			a := start(t, train, o, nil)
			b := start(t, train, left, func(e Event) {
				if e.Kind == Stepped && e.World == 3 {
					leave()
				}
			})
			c := start(t, train, o, func(e Event) {
				if e.Kind == Stepped && e.Step >= 30 {
					<-leaving.Done()
				}
			})
			b.wait(t)
			require.Len(t, b.of(Left), 1)
			require.Empty(t, b.of(Ended, Warning))
			for _, p := range []*peer{a, c} {
				p.wait(t)
				require.Empty(t, p.of(Retry))
				require.Equal(t, 2, p.of(Ended)[0].World)
			}
		})
	}
}

// A peer that joins a run of the synchronous trainers gets the state at its next
// step; one that leaves in the middle of a reduce is done without.
func TestJoinAndLeave(t *testing.T) {
	for name, train := range map[string]Trainer{"ddp": DDP, "diloco": DiLoCo, "async": AsyncDiLoCo} {
		t.Run(name, func(t *testing.T) {
			addr, _ := master(t)
			o := small(addr)
			o.Steps = 60
			var mu sync.Mutex
			var c *peer
			hold := make(chan struct{})
			a := start(t, train, o, func(e Event) {
				if e.Kind == Stepped && e.Step == 5 {
					mu.Lock()
					c = start(t, train, o, func(e Event) {
						if e.Kind == Joined {
							close(hold)
						}
					})
					mu.Unlock()
				}
				if e.Kind == Stepped && e.Step == 40 {
					<-hold
				}
			})
			leaving := make(chan context.CancelFunc, 1)
			b := start(t, train, o, func(e Event) {
				if e.Kind == Reduce && e.Step >= 50 {
					cancel := <-leaving
					cancel()
					leaving <- cancel
				}
			})
			leaving <- b.cancel
			a.wait(t)
			<-b.done
			require.ErrorIs(t, b.err, errs.Canceled)
			mu.Lock()
			defer mu.Unlock()
			c.wait(t)
			state := map[uint64]string{}
			for _, e := range a.of(Joined, Stepped, Ended) {
				state[e.Step] = e.Hash
			}
			for _, p := range []*peer{b, c} {
				for _, e := range p.of(Stepped, Ended) {
					require.Equal(t, state[e.Step], e.Hash, "step %d", e.Step) // S2-05
				}
			}
			last := a.of(Ended)[0]
			require.Equal(t, o.Steps, last.Step)
			require.Equal(t, 2, last.World)
			require.Less(t, last.Loss, a.of(Joined)[0].Loss)
		})
	}
}

// After a full stop of master and peers the run goes on from the checkpoints at
// the revision where it was, and the first synchronisation moves nothing.
func TestResumeAfterFullStop(t *testing.T) {
	for name, train := range map[string]Trainer{"ddp": DDP, "diloco": DiLoCo, "async": AsyncDiLoCo} {
		t.Run(name, func(t *testing.T) {
			dirs := []string{t.TempDir(), t.TempDir()}
			addr, stop := master(t)
			o := small(addr)
			o.Steps, o.CheckpointEvery = 5, 1
			run := func() (peers []*peer) {
				for _, dir := range dirs {
					o := o
					o.Checkpoint = dir
					peers = append(peers, start(t, train, o, nil))
				}
				for _, p := range peers {
					p.wait(t)
				}
				return peers
			}
			before := run()
			stop()
			steps := before[0].of(Stepped)
			last := steps[len(steps)-1]

			o.Master, _ = master(t)
			o.Steps = 9
			for _, p := range run() {
				joined := p.of(Joined)[0]
				require.Equal(t, uint64(5), joined.Step)
				require.Equal(t, last.Revision, joined.Revision)
				require.Equal(t, last.Hash, joined.Hash)
				first := p.of(Synced)[0]
				require.False(t, first.Fetched)
				require.Zero(t, first.Rx) // S1-12
				require.Equal(t, uint64(9), p.of(Ended)[0].Step)
			}
			entries, err := os.ReadDir(dirs[0])
			require.NoError(t, err)
			require.Len(t, entries, 3, "old checkpoints are removed")
		})
	}
}

// One peer stays while all others are killed again and again: the state survives
// and every newcomer gets it.
func TestStateSurvivesOnOnePeer(t *testing.T) {
	addr, _ := master(t)
	o := small(addr)
	o.Steps, o.MinPeers = 60, 3 // or one waits for a third in its tenth step, and lets nobody in
	var mu sync.Mutex
	var others []*peer
	full := make(chan struct{}, 100)
	join := func() {
		p := start(t, DiLoCo, o, func(e Event) {
			if e.Kind == Joined {
				full <- struct{}{}
			}
		})
		mu.Lock()
		others = append(others, p)
		mu.Unlock()
	}
	const rounds = 5
	a := start(t, DiLoCo, o, func(e Event) {
		if e.Kind != Stepped || e.Step%10 != 0 || e.Step/10 > rounds {
			return
		}
		mu.Lock()
		gone := others[len(others)-2:]
		mu.Unlock()
		for range 2 { // both are in the run before they die
			<-full
		}
		for _, p := range gone {
			p.cancel()
			<-p.done
		}
		join()
		join()
	})
	join()
	join()
	a.wait(t)
	require.Len(t, others, 2+2*rounds)
	state := map[uint64]string{} // the first word on every step
	for _, p := range append(others, a) {
		<-p.done
		require.NotEmpty(t, p.of(Joined))
		for _, e := range p.of(Joined, Stepped, Ended) {
			if first, known := state[e.Step]; known {
				require.Equal(t, first, e.Hash, "step %d", e.Step) // S2-54
			}
			state[e.Step] = e.Hash
		}
	}
	require.Less(t, a.of(Ended)[0].Loss, a.of(Joined)[0].Loss)
}

// As long as nobody waits, the membership is left alone: no vote, no round, no
// fetch between two steps.
func TestNobodyWaitsNobodyStalls(t *testing.T) {
	addr, _ := master(t)
	o := small(addr)
	a, b := start(t, DiLoCo, o, nil), start(t, DiLoCo, o, nil)
	a.wait(t)
	b.wait(t)
	votes := 0
	for _, e := range append(a.of(World), b.of(World)...) {
		require.Zero(t, e.Step, "a vote after the start") // S2-28
		votes++
	}
	require.Equal(t, 1, votes, "the first peer let the second one in")
}

// Below the minimum of peers nothing is computed; a waiting peer leaves
// when it is told to.
func TestWaitsForCompany(t *testing.T) {
	addr, _ := master(t)
	p := start(t, DiLoCo, small(addr), nil)
	q := start(t, DiLoCo, small(addr), nil)
	p.wait(t)
	q.wait(t)
	require.Equal(t, 2, p.of(Stepped)[0].World) // S2-09

	ctx, cancel := context.WithCancel(context.Background())
	o := small(addr)
	alone := make(chan struct{})
	o.Tune = func(c *core.Options) {
		c.PortBase, c.ListenHost = -1, "127.0.0.1"
		close(alone)
	}
	done := make(chan error, 1)
	go func() { done <- DiLoCo(ctx, o) }()
	<-alone
	cancel()
	require.Error(t, <-done)
}
