package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/topo"
)

// wanderer is a ring solver that finds nothing at once, and beside the run one
// ring after another that is better by its numbers.
type wanderer struct{}

func (wanderer) Name() string { return "wanderer" }

func (wanderer) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	best, ok := p.Solution(p.Start)
	if !ok {
		return best, topo.ErrNoRing
	}
	for ctx.Err() == nil {
		if s, ok := p.Solution(rand.Perm(p.Matrix.N)); ok && p.Objective.Better(s, best) {
			best = s
			better(s)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return best, nil
}

// Rings change while a run reduces and nobody calls anything for it: no
// operation fails, every sum is right, and all agree on the ring in the end.
func TestRingsSwitchUnderLoad(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var switched, rounds atomic.Int64
	synced := make(chan struct{}, 1)
	m, err := newMaster(core.MasterOptions{
		Listen: "127.0.0.1:0", RingSolver: wanderer{}, SolverBudget: time.Millisecond, SearchBudget: 300 * time.Millisecond,
		Noise: 1e-9, Patience: time.Microsecond, MaxLinkAge: time.Microsecond, HeartbeatTimeout: patience,
		OnFact: func(f core.Fact) {
			switch {
			case f.Kind == "ring" && strings.HasSuffix(f.Text, "installed"):
				switched.Add(1)
			case f.Kind == "round":
				rounds.Add(1)
			case f.Kind == "sync":
				synced <- struct{}{}
			}
		},
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, <-ended)
	})
	const n = 5
	comms := world(t, ctx, m.Addr().String(), n, func(_ int, o *core.Options) {
		o.Probe.Connections, o.PoolSize = 1, 2
		o.HeartbeatTimeout, o.UserTimeout, o.DialTimeout, o.HandshakeTimeout = patience, patience, patience, patience // nobody dies
	})
	// Facts come in order, and later than what they tell of: told waits for those so far.
	var state uint64
	told := func() {
		for _, err := range each(comms, func(_ int, c *core.Communicator) error {
			_, err := c.SyncSharedState(ctx, &core.SharedState{Revision: state, Tensors: []core.Tensor{core.TensorOf("x", []int32{1})}}, core.SyncOptions{})
			return err
		}) {
			require.NoError(t, err)
		}
		state++
		<-synced
	}
	// Whether there is a better ring, what was measured decides: every time.
	var reduced atomic.Int64
	want := int64(counts(20))
	for switched.Load() < want {
		for _, err := range each(comms, func(_ int, c *core.Communicator) error { return c.OptimizeTopology(ctx) }) {
			require.NoError(t, err)
		}
		told()
		before := rounds.Load()
		for _, err := range each(comms, func(i int, c *core.Communicator) error {
			for range 50 {
				if err := severalSums(ctx, c, i, n); err != nil {
					return err
				}
				reduced.Add(1)
			}
			return nil
		}) {
			require.NoError(t, err)
		}
		told()
		require.Equal(t, before, rounds.Load(), "no round was needed")
	}
	t.Logf("%d rings, %d operations, none failed", switched.Load(), 3*reduced.Load()/n)
	ring := comms[0].Attributes().Ring
	for _, c := range comms {
		a := c.Attributes()
		require.Equal(t, ring, a.Ring)
		require.Equal(t, a.UUID, a.Ring[a.Rank])
	}
}

// severalSums reduces three vectors at once, so that rings change while some are
// under way, and checks every sum.
func severalSums(ctx context.Context, c *core.Communicator, id, n int) error {
	var handles []*core.Handle
	var data [3][]float64
	for k := range data {
		data[k] = make([]float64, 60000)
		for j := range data[k] {
			data[k][j] = float64(id + j + k)
		}
		r := core.ReduceOf(data[k], data[k], core.Sum)
		r.Tag = uint64(k)
		h, err := c.AllReduceAsync(ctx, r)
		if err != nil {
			return err
		}
		handles = append(handles, h)
	}
	for k, h := range handles {
		if _, err := h.Wait(ctx); err != nil {
			return err
		}
		for j, v := range data[k] {
			if want := float64(n*(j+k) + n*(n-1)/2); v != want {
				return fmt.Errorf("operation %d, element %d is %v instead of %v", k, j, v, want)
			}
		}
	}
	return nil
}
