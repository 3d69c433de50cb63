package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/ports"
	model "github.com/gopccl/gopccl/tests/internal/world"
)

var soak = flag.Bool("soak", false, "run the full counts")

// counts returns full with -soak and a tenth of it otherwise.
func counts(full int) int {
	if *soak {
		return full
	}
	return max(1, full/10)
}

// trainer is the life of a peer under churn: admit newcomers, agree on the
// state, reduce in place with retry, check against the model, apply, repeat.
func trainer(ctx context.Context, o order, say func(report)) error {
	comm, err := join(ctx, o)
	if err != nil {
		return err
	}
	defer comm.Close()
	say(report{Event: "connected"})
	params := make([]float64, o.Count)
	state := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("params", params)}}
	grad := make([]float64, o.Count)
	mask := make([]uint64, 1)
	for n := 0; o.Steps == 0 || n < o.Steps; n++ {
		// A newcomer was let in by an update: the others go on with the sync,
		// and so does it.
		if n > 0 {
			pending, err := comm.PeersPending(ctx)
			if err == nil && (pending || o.Phases) {
				err = comm.UpdateTopology(ctx)
			}
			if err != nil {
				return fmt.Errorf("update: %w", err)
			}
		}
		info, err := comm.SyncSharedState(ctx, state, core.SyncOptions{})
		if err != nil {
			if errors.Is(err, errs.TransferFailed) {
				continue
			}
			return fmt.Errorf("sync: %w", err)
		}
		if n > 0 && info.RxBytes > 0 {
			// A peer that took part in every step never receives again.
			return fmt.Errorf("received %d bytes at revision %d in step %d", info.RxBytes, state.Revision, n)
		}
		step := state.Revision
		for i := range grad {
			grad[i] = model.Contribution(o.ID, step, 0, i)
		}
		mask[0] = 1 << o.ID
		a, b := core.ReduceOf(grad, grad, core.Sum), core.ReduceOf(mask, mask, core.Sum)
		a.Tag, b.Tag = 1, 2
		if o.Flag {
			err = reduceAndCheckRestore(ctx, comm, a, grad, say)
		} else {
			_, err = comm.AllReduceMultipleWithRetry(ctx, []core.Reduce{a, b}, 2)
		}
		// Alone, what is not reduced is as before.
		if err != nil && !errors.Is(err, errs.TooFewPeers) {
			return fmt.Errorf("reduce: %w", err)
		}
		// The two sums may come from different rings if a peer died between
		// them, so grad has to be the sum of some set of peers, not of mask's.
		if bad := violation(grad, step, o.ID); bad != "" {
			return errors.New("VIOLATION " + bad)
		}
		for i := range params {
			params[i] += grad[i]
		}
		state.Revision++
		if o.Phases && comm.Attributes().GlobalWorldSize > 1 {
			if err := comm.OptimizeTopology(ctx); err != nil {
				return fmt.Errorf("optimize: %w", err)
			}
		}
		say(report{Event: "step", Step: step, Mask: mask[0], Hash: core.StateHash(state), World: comm.Attributes().LocalWorldSize})
	}
	return nil
}

// violation says in what grad is not the sum of the contributions of peers of
// which self is one.
func violation(grad []float64, step uint64, self int) string {
	set, err := model.Contributors(grad, step, 0)
	if err == nil && set>>self&1 == 0 {
		err = fmt.Errorf("%#x does not contain peer %d", set, self)
	}
	if err != nil {
		return fmt.Sprintf("step %d: %v", step, err)
	}
	return ""
}

// reduceAndCheckRestore retries one in-place operation by hand and compares
// the buffer after every failure with what it was, bit by bit.
func reduceAndCheckRestore(ctx context.Context, comm *core.Communicator, r core.Reduce, grad []float64, say func(report)) error {
	was := append([]float64(nil), grad...)
	for {
		_, err := comm.AllReduce(ctx, r)
		if err == nil {
			return nil
		}
		for i := range grad {
			if math.Float64bits(grad[i]) != math.Float64bits(was[i]) {
				return fmt.Errorf("VIOLATION element %d not restored after %w", i, err)
			}
		}
		if !errors.Is(err, errs.RankConnectionLost) {
			return err
		}
		say(report{Event: "aborted", Text: err.Error()})
	}
}

func init() { roles["trainer"] = trainer }

// Hard kills at random points with four peers,
// every result compared with the model, every peer of a step with the same bits.
// How long the survivors take from a kill to their next complete step is
// printed, in milliseconds; what was committed is never rolled back.
// Quirk Q21: what the helper calls done is done.
func TestHardKills(t *testing.T) {
	churn(t, counts(200), order{Role: "trainer", Count: 5000}) // S2-05, S2-14, S2-21
}

// Kills while peers vote, connect, measure, order the ring and fetch the state:
// every call of every step waits for all, so a kill may hit any of them.
func TestHardKillsInEveryPhase(t *testing.T) {
	churn(t, counts(100), order{Role: "trainer", Count: 20_000, Phases: true})
}

// After an abort the in-place buffer is as before, bit by bit; the
// buffers are large, so that kills hit every phase of the data path.
func TestAbortRestoresInPlaceBuffers(t *testing.T) {
	churn(t, counts(100), order{Role: "trainer", Count: 400_000, Flag: true}) // S2-31
}

// churn kills peers of a world of four at random points, replaces them, and
// demands progress and equal bits after every kill.
func churn(t *testing.T, kills int, o order) {
	var m *child
	m, o.Master = startMaster(t)
	rng := rand.New(rand.NewPCG(1, uint64(kills)))
	hashes := map[uint64]uint64{}
	var peers []*child
	used := map[int]bool{}
	spawn := func() {
		for o.ID = 0; used[o.ID]; o.ID++ {
		}
		used[o.ID] = true
		// A peer that listens where one was killed as it joined is kept out for a while in its place.
		var err error
		o.Ports, err = ports.Free(1)
		require.NoError(t, err)
		peers = append(peers, start(t, o))
	}
	for range 4 {
		spawn()
	}
	steps, killed, aborted := 0, 0, 0
	var victim uint64 // bit of the last one killed, until a survivor has gone on
	var at time.Time
	var recovery []time.Duration
	holder := map[*child]bool{} // finished a step, so it holds the state
	drain := func(c *child) {
		for {
			select {
			case r, ok := <-c.lines:
				if !ok {
					t.Fatalf("peer %d ended\n%s", c.order.ID, c.log())
				}
				switch r.Event {
				case "error":
					t.Fatalf("peer %d: %s\n%s", c.order.ID, r.Text, c.log())
				case "aborted":
					aborted++
				case "step":
					steps++
					holder[c] = true
					if victim != 0 && r.Mask&victim == 0 {
						recovery, victim = append(recovery, time.Since(at)), 0
					}
					if h, ok := hashes[r.Step]; ok {
						require.Equal(t, h, r.Hash, "state after step %d at peer %d", r.Step, c.order.ID)
					}
					hashes[r.Step] = r.Hash
				}
			default:
				return
			}
		}
	}
	for killed < kills {
		// Progress first: survivors finish steps after the last kill.
		before, deadline := steps, time.Now().Add(patience)
		for steps < before+4 {
			for _, c := range peers {
				drain(c)
			}
			if time.Now().After(deadline) {
				t.Fatalf("no progress after %d kills and %d steps\n%s", killed, steps, autopsy(append(peers, m)))
			}
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		}
		// With the last holder the state itself would die (control spec,
		// section 9.3), which is another matter.
		k := rng.IntN(len(peers))
		if holder[peers[k]] && len(holder) == 1 {
			continue
		}
		delete(holder, peers[k])
		peers[k].kill()
		victim, at = 1<<peers[k].order.ID, time.Now()
		used[peers[k].order.ID] = false
		peers = append(peers[:k], peers[k+1:]...)
		killed++
		spawn()
	}
	for _, c := range peers {
		drain(c)
	}
	slices.Sort(recovery)
	require.NotEmpty(t, recovery)
	t.Logf("recovery after a kill: median %.0f ms, at most %.0f ms, of %d", 1e3*recovery[len(recovery)/2].Seconds(),
		1e3*recovery[len(recovery)-1].Seconds(), len(recovery))
	t.Logf("%d kills, %d steps compared, %d revisions, %d aborts seen, 0 violations", killed, steps, len(hashes), aborted)
}
