package reduce

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/platform"
)

// Pinned roles have threads of their own, bound to the processors that were
// asked for, with names where the system has them, and all that is visible in
// the state. A sender's begins when it is needed, and all end with the engine.
func TestPinnedThreads(t *testing.T) {
	var cpus []int
	if all, err := platform.Affinity(); err == nil {
		cpus = all[len(all)-1:]
	}
	cfg := Config{Link: link.Config{FrameBytes: 64, Threads: link.Pinned, Affinity: cpus}}
	r := newRing(t, shape{n: 2, cfg: cfg, link: memory(transporttest.Options{Buffer: 100})})
	for range 3 {
		r.run(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 5000, true)
	}
	threads := map[int]bool{}
	for _, e := range r.eng {
		conns := e.State().Conns
		require.Len(t, conns, 2)
		for _, c := range conns {
			require.True(t, c.Runs)
			require.NotNil(t, c.Thread, c.Role)
			if c.Thread.ID != 0 {
				require.False(t, threads[c.Thread.ID], "each has its own") // S4-01
				threads[c.Thread.ID] = true
			}
			if cpus != nil {
				require.Equal(t, cpus, c.Thread.CPUs) // S4-28
			}
			if _, err := platform.Native().ThreadName(); err == nil {
				require.Equal(t, "gopccl-"+c.Role, c.Thread.Name) // S4-04
			}
			if _, err := platform.Native().Node(0); err == nil {
				require.GreaterOrEqual(t, c.Thread.Node, 0) // S4-29
			}
		}
	}
	r.close()
	now, err := platform.Affinity()
	if !errors.Is(err, errors.ErrUnsupported) {
		require.NoError(t, err)
		require.Len(t, now, runtime.NumCPU(), "the binding of a thread ends with it")
	}
}

// Processors that are not there cost the binding, not the operation.
func TestPinnedThreadsWithoutTheirProcessors(t *testing.T) {
	r := newRing(t, shape{n: 2, cfg: Config{Link: link.Config{Threads: link.Pinned, Affinity: []int{60000}}}})
	r.run(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 5000, true)
}

// Both kinds of thread give the same bits, abort in the same way and restore.
func TestThreadsDoNotChangeResults(t *testing.T) {
	for _, threads := range []link.Threads{link.Goroutines, link.Pinned} {
		r := newRing(t, shape{n: 3, pool: 2, cfg: Config{Link: link.Config{FrameBytes: 256, Threads: threads}}, link: memory(transporttest.Options{Buffer: 1000})})
		rng := rand.New(rand.NewPCG(7, 7))
		for _, how := range allOps {
			r.run(rng, dtype.Float32, how, 3001, true)
			r.run(rng, dtype.Float64, how, 1501, false)
		}
		specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, 100_000, true)
		before := keep(specs)
		s := r.start(specs)
		require.Eventually(t, func() bool { return r.eng[0].Stats().RxFrames > 100 }, patience, time.Millisecond)
		for _, op := range s.ops {
			op.Abort(errTest)
		}
		s.wait(t)
		for i, op := range s.ops {
			op.Finish(true)
			require.Equal(t, before[i], specs[i].Src)
		}
		r.close()
	}
}
