package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// stateful holds (Flag) or fetches a shared state of o.Count float64 in
// o.Extra tensors at revision o.Steps, in one synchronisation.
func stateful(ctx context.Context, o order, say func(report)) error {
	comm, err := join(ctx, o)
	if err != nil {
		return err
	}
	defer comm.Close()
	tensors := max(1, o.Extra)
	state := &core.SharedState{}
	if o.Flag {
		state.Revision = uint64(o.Steps)
	}
	for k := range tensors {
		data := make([]float64, o.Count/tensors)
		if o.Flag {
			for i := range data {
				data[i] = float64(i*31 + k)
			}
		} else {
			data[0] = float64(o.ID)
		}
		state.Tensors = append(state.Tensors, core.TensorOf(fmt.Sprintf("t%d", k), data))
	}
	say(report{Event: "ready"})
	quarter := false
	info, err := comm.SyncSharedState(ctx, state, core.SyncOptions{Progress: func(done, total uint64, _ string) {
		if !quarter && done >= total/4 {
			quarter = true
			say(report{Event: "quarter", Bytes: done})
		}
	}})
	if err != nil {
		return err
	}
	say(report{Event: "synced", Step: state.Revision, Hash: core.StateHash(state), Bytes: info.RxBytes})
	<-ctx.Done()
	return nil
}

func init() { roles["stateful"] = stateful }

// A holder is killed while it serves a large state: the same
// call fetches the rest from the other holder, and all survivors agree (PCCL:
// 0 of 7).
func TestHolderKilledWhileServing(t *testing.T) {
	count := counts(64 << 20) // float64: 512 MB
	for round := range counts(20) {
		_, master := startMaster(t)
		var holders []*child
		for id := range 2 {
			holders = append(holders, start(t, order{
				Role: "stateful", Master: master, ID: id, Count: count, Extra: 16, Steps: 7, Flag: true, World: 3,
			}))
		}
		fetcher := start(t, order{Role: "stateful", Master: master, ID: 2, Count: count, Extra: 16, World: 3})
		fetcher.await("quarter", patience)
		victim := round % 2
		holders[victim].kill()
		got := fetcher.await("synced", patience)
		kept := holders[1-victim].await("synced", patience)
		require.Equal(t, kept.Hash, got.Hash) // S2-54
		require.EqualValues(t, 7, got.Step)
		t.Logf("round %d: fetched %d bytes of a state of %d", round, got.Bytes, count*8)
		fetcher.kill()
		holders[1-victim].kill()
	}
}

// Quirk Q70: a new master, one trained and two fresh peers: the trained state
// wins every time (PCCL: 17 of 40).
func TestTrainedStateWins(t *testing.T) {
	for round := range counts(40) {
		_, master := startMaster(t)
		var cs []*child
		for id := range 3 {
			cs = append(cs, start(t, order{
				Role: "stateful", Master: master, ID: id, Count: 1000, Steps: 50, Flag: id == round%3, World: 3,
			}))
		}
		trained := cs[round%3].await("synced", patience)
		for _, c := range cs {
			if c != cs[round%3] {
				r := c.await("synced", patience)
				require.Equal(t, trained.Hash, r.Hash, "round %d", round)
				require.EqualValues(t, 50, r.Step)
				require.NotZero(t, r.Bytes, "the fresh peer fetched")
			}
			c.kill()
		}
		require.Zero(t, trained.Bytes, "the trained peer fetched nothing")
	}
}

// The last peer that held the state has left. Those who are left fail to
// synchronise until an operator tells the master to give the state up.
func TestOperatorGivesALostStateUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	require.ErrorIs(t, m.ResetSharedState(0), errs.Closed, "it does not run yet")
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, <-ended)
		require.ErrorIs(t, m.SetBeginAnew(true), errs.Closed)
	})
	first, err := connect(ctx, core.Options{Master: m.Addr().String(), PortBase: -1})
	require.NoError(t, err)
	trained := []float64{1, 2, 3}
	_, err = first.SyncSharedState(ctx, &core.SharedState{Revision: 7, Tensors: []core.Tensor{core.TensorOf("w", trained)}}, core.SyncOptions{})
	require.NoError(t, err)
	comms := []*core.Communicator{first}
	for range 2 {
		comms = append(comms, admit(t, ctx, m.Addr().String(), comms, 0))
	}
	require.NoError(t, first.Close())
	comms = comms[1:]
	for _, c := range comms {
		defer c.Close()
	}
	values := [][]float64{{4, 4, 4}, {5, 5, 5}}
	sync := func(i int, c *core.Communicator) error {
		_, err := c.SyncSharedState(ctx, &core.SharedState{Tensors: []core.Tensor{core.TensorOf("w", values[i])}}, core.SyncOptions{})
		return err
	}
	for _, err := range each(comms, sync) {
		require.ErrorIs(t, err, errs.NoSharedStateAvailable) // S1-25
	}
	require.NoError(t, m.ResetSharedState(0))
	for _, err := range each(comms, sync) {
		require.NoError(t, err)
	}
	require.Equal(t, values[0], values[1])
}
