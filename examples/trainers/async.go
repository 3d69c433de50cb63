package trainers

import (
	"context"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/examples/charlm"
)

// AsyncDiLoCo hides the communication of DiLoCo: the pseudo-gradients of a step
// are averaged while the next step is computed and are applied one step late.
//
//	compute        | step t           | step t+1         | step t+2
//	all-reduce     |  average of t-1  |  average of t    |  average of t+1
//	outer update   |           by t-1 |             by t |          by t+1
//
// Newcomers come in while an average is in flight that they have no part in.
// Everybody asks at the start of a step whether somebody waits. If so, the
// average in flight is awaited but not yet applied, the newcomers are let in,
// and a first synchronisation gives them the parameters of this step, so that
// they compute along. At the end of the step the others apply the average; the
// newcomers skip that and adopt its outcome by a second synchronisation, in
// which they only receive and the others only send.
//
// The shared state's revision counts synchronisations, since these happen only
// when somebody joins; the steps are counted by a tensor of the state. After a
// full stop the run goes on at the step that most checkpoints hold; the average
// that was in flight is lost.
func AsyncDiLoCo(ctx context.Context, o Options) error {
	r, err := prepare(o)
	if err != nil {
		return err
	}
	defer r.close()

	outer := r.model.Init(o.Seed)
	n := len(outer)
	momentum := charlm.NewNesterov(n, o.OuterRate, o.OuterMomentum)
	clock := make([]uint64, 2)
	step, owed := &clock[0], &clock[1] // owed: an average waits to be applied
	r.share("outer.", outer)
	r.share("momentum.", momentum.Velocity)
	r.state.Tensors = append(r.state.Tensors, core.TensorOf("clock", clock))
	if err := r.resume(); err != nil {
		return err
	}
	*owed = 0 // what was in flight when the checkpoint was written is gone

	inner := o.Local(n)
	local, grad := make([]float32, n), make([]float32, n)
	flight := &flight{run: r, mean: make([]float32, n), own: make([]float32, n)}
	pseudo := make([]float32, n)
	welcome := true
	r.now.Step = *step
	for r.more() {
		somebodyNew, err := r.admit(ctx, func() error { return flight.land(ctx) })
		if err != nil {
			return err
		}
		if somebodyNew {
			*owed = 0
			if flight.landed {
				*owed = 1
			}
			if _, err := r.sync(ctx, core.SyncOptions{Strategy: core.EnforcePopular}); err != nil {
				return err
			}
			r.state.Revision++
			r.now.Step = *step
		}
		if welcome {
			r.tell(Joined, outer)
			welcome = false
		}

		// Compute this step, while the average of the last one is in flight.
		copy(local, outer)
		loss, err := r.train(ctx, local, grad, inner)
		if err != nil {
			return err
		}
		for i := range pseudo {
			pseudo[i] = outer[i] - local[i]
		}

		// Apply the average of the last step, one step late.
		if err := flight.land(ctx); err != nil {
			return err
		}
		strategy := core.ReceiveOnly
		if mean, ok := flight.take(); ok {
			if err := r.Outer.Step(momentum, outer, mean); err != nil {
				return err
			}
			strategy = core.SendOnly
		}
		*step++
		if somebodyNew && *owed == 1 {
			if _, err := r.sync(ctx, core.SyncOptions{Strategy: strategy}); err != nil {
				return err
			}
			r.state.Revision++
		}
		*owed = 0
		r.now.Step = *step
		if err := r.stepped(outer, loss); err != nil {
			return err
		}

		// Send this step's pseudo-gradient on its way.
		if err := flight.launch(ctx, pseudo); err != nil {
			return err
		}
	}
	if err := flight.land(ctx); err != nil {
		return err
	}
	if r.comm != nil {
		r.tell(r.outcome(), outer)
	}
	return nil
}
