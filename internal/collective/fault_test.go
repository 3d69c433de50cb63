package collective

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// tripwire runs hit before each frame is routed, with the number of frames so far.
type tripwire struct {
	nobody
	next  link.Router
	calls *atomic.Int64
	hit   func(call int64)
}

func (r *tripwire) Route(c *link.Receiver, h transport.Header, kept *link.Early) (link.Sink, link.Verdict, error) {
	if kept == nil {
		r.hit(r.calls.Add(1))
	}
	return r.next.Route(c, h, kept)
}

// faultCase is a kind in a world.
type faultCase struct {
	kind             plan.Kind
	n                int
	mesh             bool
	inPlace, restore bool // restore: outputs as well
	quantized        bool
}

func (c faultCase) String() string {
	return fmt.Sprintf("%v, world %d, mesh %v, in place %v, preserve %v, quantized %v", c.kind, c.n, c.mesh, c.inPlace, c.restore, c.quantized)
}

func eachCase(t *testing.T, f func(t *testing.T, c faultCase)) {
	for _, kind := range allKinds {
		t.Run(kind.String(), func(t *testing.T) {
			for _, n := range []int{2, 4} {
				ways := 8
				if kind == plan.AllGather || kind == plan.ReduceScatter {
					ways = 16
				}
				for way := range ways {
					f(t, faultCase{kind, n, way&1 != 0, way&2 != 0 && kind != plan.AllToAll, way&4 != 0, way&8 != 0})
				}
			}
		})
	}
}

// task makes one of a fixed size.
func (c faultCase) task(w *world, rng *rand.Rand) *task {
	k := draw(rng, w, c.kind, 0)
	k.inPlace, k.varied, k.root = c.inPlace, false, 0
	if c.kind.Rooted() {
		k.root = rng.IntN(c.n)
	}
	k.code = nil
	size := k.dt.Size()
	count := 320 / size
	if c.quantized {
		k.quantize(rng)
		count = k.code.pieces(w.t, 5)
	}
	for i := range k.counts {
		k.counts[i] = count
		for j := range k.pairs[i] {
			k.pairs[i][j] = 320 / size
		}
	}
	k.fill(w, rng)
	for i := range k.specs {
		k.specs[i].Preserve = c.restore
	}
	return k
}

func (w *world) balanced(t *testing.T) {
	t.Helper()
	w.close()
	for i, e := range w.eng {
		require.Zero(t, e.link.Pool.Stats().InUse, "engine %d keeps memory", i)
		require.Zero(t, e.State().Active)
	}
}

// An abort at every single frame: all members report it, inputs are bit for bit as
// before, and outputs too where that was asked for; the same tag works at once
// afterwards although leftovers are on their way.
func TestAbortAtEveryFrame(t *testing.T) {
	dense := int64(8)
	if testing.Short() {
		dense = 1
	}
	eachCase(t, func(t *testing.T, c faultCase) {
		for at := int64(1); ; at += 1 + at/dense {
			var s *started
			ready := make(chan struct{})
			hit := func(call int64) {
				if call != at {
					return
				}
				<-ready
				for _, op := range s.ops { // the master tells everybody
					op.Abort(errTest)
				}
			}
			w := newWorld(t, shape{n: c.n, mesh: c.mesh, frame: 64, link: memoryLink(transporttest.Options{Buffer: 300}), hit: hit})
			rng := rand.New(rand.NewPCG(uint64(at), 1))
			k := c.task(w, rng)
			s = w.start(k.specs)
			close(ready)
			failed := 0
			for _, err := range s.wait(t) {
				if err != nil {
					require.ErrorIs(t, err, errTest)
					failed++
				}
			}
			s.finish(failed > 0)
			frames := w.calls.Load()
			if failed > 0 {
				k.restored(t, c.restore, "%v, abort at %d", c, at)
			} else {
				k.right(t, "%v", c)
			}
			next := c.task(w, rng)
			again := w.start(next.specs)
			again.ok(t)
			next.right(t, "%v after an abort at %d", c, at)
			again.finish(false)
			w.balanced(t)
			if failed == 0 && frames < at {
				require.Greater(t, at, int64(5), "%v", c)
				break
			}
		}
	})
}

// A late abort: the data phase is complete, the verdict is not success.
func TestRestoreAfterSuccess(t *testing.T) {
	eachCase(t, func(t *testing.T, c faultCase) {
		w := newWorld(t, shape{n: c.n, mesh: c.mesh, frame: 64})
		k := c.task(w, rand.New(rand.NewPCG(1, 2)))
		s := w.start(k.specs)
		s.ok(t)
		k.right(t, "%v", c)
		s.finish(true)
		k.restored(t, c.restore, "%v", c)
		w.balanced(t)
	})
}

// The loss of any connection, at many places of an operation, ends the phase at its two
// ends at once and names the peer; the others are told by the master.
func TestConnectionLoss(t *testing.T) {
	every := int64(61)
	if testing.Short() {
		every = 173
	}
	eachCase(t, func(t *testing.T, c faultCase) {
		for cut := int64(1); cut < 700; cut += every {
			w := newWorld(t, shape{n: c.n, mesh: c.mesh, frame: 64})
			rng := rand.New(rand.NewPCG(uint64(cut), 3))
			k := c.task(w, rng)
			// One connection that the operation needs.
			var pair [2]int
			for from := range c.n {
				p := plan.For(plan.Job{Kind: c.kind, N: c.n, Me: from, Root: k.root, Mesh: c.mesh})
				if len(p.Out) > 0 {
					pair = [2]int{from, p.Out[rng.IntN(len(p.Out))].Peer}
				}
			}
			w.out[pair][0].(*transporttest.Conn).CutAfter(cut)
			s := w.start(k.specs)
			from := verdict(t, s.errs[pair[0]])
			if from == nil {
				// All of it was sent before the cut.
				s.errs[pair[0]] <- nil
				s.ok(t)
				s.finish(false)
				w.close()
				continue
			}
			require.ErrorIs(t, from, errs.RankConnectionLost)
			require.ErrorContains(t, from, w.ids[pair[1]].String())
			if to := verdict(t, s.errs[pair[1]]); to != nil {
				require.ErrorIs(t, to, errs.RankConnectionLost)
			} else if want := k.want[pair[1]]; want != nil {
				// The cut came right behind the last byte: this side had all it needs.
				require.Equal(t, want, k.specs[pair[1]].Dst, "%v, cut after %d", c, cut)
			}
			for i, op := range s.ops {
				op.Abort(errTest)
				if i != pair[0] && i != pair[1] {
					verdict(t, s.errs[i])
				}
			}
			s.finish(true)
			k.restored(t, c.restore, "%v, cut after %d", c, cut)
			w.connect(pair[0], pair[1])
			next := c.task(w, rng)
			again := w.start(next.specs)
			again.ok(t)
			next.right(t, "%v after a cut", c)
			again.finish(false)
			w.balanced(t)
		}
	})
}

// A member that stops: nothing moves, and an abort frees the others although writes are
// stuck in the middle of frames.
func TestAbortWhileStuck(t *testing.T) {
	defer invariants.WatchLocks()()
	eachCase(t, func(t *testing.T, c faultCase) {
		w := newWorld(t, shape{n: c.n, mesh: c.mesh, frame: 256, link: memoryLink(transporttest.Options{Buffer: 100})})
		for _, pool := range w.out {
			pool[0].(*transporttest.Conn).Stall(true)
		}
		k := c.task(w, rand.New(rand.NewPCG(1, 4)))
		s := w.start(k.specs)
		for i, op := range s.ops {
			op.Abort(errTest)
			if err := verdict(t, s.errs[i]); err != nil {
				require.ErrorIs(t, err, errTest)
			}
		}
		s.finish(true)
		k.restored(t, c.restore, "%v", c)
		for _, pool := range w.out {
			pool[0].(*transporttest.Conn).Stall(false)
		}
		next := c.task(w, rand.New(rand.NewPCG(1, 5)))
		again := w.start(next.specs)
		again.ok(t)
		next.right(t, "%v after an abort", c)
		again.finish(false)
		w.balanced(t)
	})
}

// Aborts from many goroutines at any moment: done is called once.
func TestAbortRaces(t *testing.T) {
	for _, kind := range allKinds {
		w := newWorld(t, shape{n: 3, mesh: true, frame: 64})
		for round := range 40 {
			c := faultCase{kind: kind, n: 3, mesh: true, inPlace: kind != plan.AllToAll, restore: true}
			k := c.task(w, rand.New(rand.NewPCG(uint64(round), 5)))
			w.seq++
			s := &started{}
			for i, spec := range k.specs {
				op, err := w.eng[i].New(spec)
				require.NoError(t, err)
				done := make(chan error, 4)
				s.ops, s.errs = append(s.ops, op), append(s.errs, done)
				go op.Abort(errTest)
				op.Start(w.begin(i, w.seq, func(err error) { done <- err }))
				go op.Abort(errTest)
			}
			s.wait(t)
			s.finish(true)
			k.restored(t, true, "%v", kind)
		}
		w.close()
	}
}

// Close ends everything that runs.
func TestCloseWithOperationsInFlight(t *testing.T) {
	w := newWorld(t, shape{n: 3, mesh: true, link: memoryLink(transporttest.Options{Buffer: 10})})
	for _, pool := range w.out {
		pool[0].(*transporttest.Conn).Stall(true)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var all []*started
	for _, kind := range allKinds {
		k := faultCase{kind: kind, n: 3, mesh: true}.task(w, rng)
		for i := range k.specs {
			k.specs[i].Tag = uint64(kind)
		}
		all = append(all, w.start(k.specs))
	}
	w.close()
	for _, s := range all {
		s.wait(t)
		s.finish(true)
	}
	k := faultCase{kind: plan.AllGather, n: 3, mesh: true}.task(w, rng)
	for _, err := range w.start(k.specs).wait(t) {
		require.ErrorIs(t, err, errs.Closed)
	}
}

// A peer's connection may come after the start; if it never comes, the operation ends
// with an error that names the peer.
func TestConnectionComesLate(t *testing.T) {
	for _, late := range []bool{true, false} {
		a := newAlone(t, 1, false, Config{ConnectWait: map[bool]time.Duration{true: patience, false: time.Millisecond}[late]})
		a.ids = append(a.ids, uuid(1))
		a.e.hub.Trust(uuid(1))
		x, in := transporttest.Pair(transporttest.Options{})
		spec := Spec{Kind: plan.Broadcast, Tag: 2, Root: 1, Dst: make([]byte, 3)}
		op, done := a.start(1, spec)
		if late {
			a.e.hub.AddReceiver(uuid(1), 0, in)
			a.from[1] = x
			a.piece(1, 2, 1|mark, 64, 0, 3, []byte{7, 8, 9})
			require.NoError(t, verdict(t, done))
			require.Equal(t, []byte{7, 8, 9}, spec.Dst)
		} else {
			err := verdict(t, done)
			require.ErrorIs(t, err, errs.RankConnectionLost)
			require.ErrorContains(t, err, uuid(1).String())
			in.Close()
		}
		op.Finish(true)
	}
}
