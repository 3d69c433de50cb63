//go:build unix

package e2e

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/plugin/host"
)

// A solver plugin that is killed over and over costs no operation: three peers
// order their ring and reduce all the while, and nothing fails.
func TestKilledPluginsCostNothing(t *testing.T) {
	const long = 120 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), long*time.Duration(counts(100)))
	defer cancel()
	auto, err := topo.Lookup("auto")
	require.NoError(t, err)
	plugin, err := host.StartSolver(host.Spec{Name: "victim", Command: os.Args[0], Args: []string{ringPlugin}, StartTimeout: long, LongestPause: 100 * time.Millisecond}, auto)
	require.NoError(t, err)
	defer plugin.Close()
	require.NoError(t, plugin.Wait(ctx))

	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0", RingSolver: plugin, SolverBudget: 50 * time.Millisecond})
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- m.Run(ctx) }()

	const world = 3
	var over atomic.Bool
	var reduced, ordered atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, world)
	for id := range world {
		wg.Go(func() {
			comm, err := join(ctx, order{ID: id, World: world, Master: m.Addr().String(), Phases: true})
			if err != nil {
				failed <- err
				return
			}
			defer comm.Close()
			data := make([]uint64, 1000)
			for {
				if err := comm.OptimizeTopology(ctx); err != nil {
					failed <- err
					return
				}
				ordered.Add(1)
				// All leave in the same turn: what peer 0 says is summed.
				clear(data)
				if id == 0 && over.Load() {
					data[0] = 1
				}
				data[1] = 1 << id
				if _, err := core.AllReduceSlice(ctx, comm, data, data, core.Sum); err != nil {
					failed <- err
					return
				}
				if data[1] != 1<<world-1 {
					t.Errorf("sum %#x", data[1])
				}
				reduced.Add(1)
				if data[0] != 0 {
					return
				}
			}
		})
	}
	for n := range counts(100) {
		require.NoError(t, plugin.Wait(ctx))
		before := ordered.Load()
		require.Eventually(t, func() bool { return ordered.Load() >= before+world || len(failed) > 0 }, long, time.Millisecond, "the ring was ordered with kill %d to come", n)
		pid := plugin.PID()
		if pid != 0 {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		require.Eventually(t, func() bool { return plugin.PID() != pid }, long, time.Millisecond)
	}
	over.Store(true)
	wg.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, plugin.Starts(), counts(100))
	t.Logf("%d kills, %d ring orders, %d all-reduces, none failed", counts(100), ordered.Load(), reduced.Load())
	require.NoError(t, m.Close())
	require.NoError(t, <-served)
}
