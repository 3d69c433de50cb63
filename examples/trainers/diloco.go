package trainers

import (
	"context"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/examples/charlm"
)

// DiLoCo trains with little communication: every peer takes Inner steps of
// AdamW on its own data, starting from the shared parameters; the difference to
// where it started is its pseudo-gradient; the average of those moves the shared
// parameters by one step of Nesterov momentum, the same on every peer.
//
// Parameters and momentum are the shared state. The inner optimizer stays local.
func DiLoCo(ctx context.Context, o Options) error {
	r, err := prepare(o)
	if err != nil {
		return err
	}
	defer r.close()

	outer := r.model.Init(o.Seed)
	n := len(outer)
	momentum := charlm.NewNesterov(n, o.OuterRate, o.OuterMomentum)
	r.share("outer.", outer)
	r.share("momentum.", momentum.Velocity)
	if err := r.resume(); err != nil {
		return err
	}

	inner := o.Local(n)
	local, grad := make([]float32, n), make([]float32, n)
	pseudo, mean := make([]float32, n), make([]float32, n)
	welcome := true
	r.now.Step = r.state.Revision
	for r.more() {
		// Let in who waits, then agree on the state. Newcomers receive it here;
		// for all others nothing moves.
		if _, err := r.admit(ctx, func() error { return nil }); err != nil {
			return err
		}
		if _, err := r.sync(ctx, core.SyncOptions{}); err != nil {
			return err
		}
		r.now.Step = r.state.Revision
		if welcome {
			r.tell(Joined, outer)
			welcome = false
		}

		// Work alone.
		copy(local, outer)
		loss, err := r.train(ctx, local, grad, inner)
		if err != nil {
			return err
		}

		// Average what was learned. If a peer dies meanwhile, the survivors
		// repeat the operations that failed without it.
		for i := range pseudo {
			pseudo[i] = outer[i] - local[i]
		}
		if err := r.average(ctx, mean, pseudo); err != nil {
			return err
		}

		// The same arithmetic on the same bits: the state stays equal.
		if err := r.Outer.Step(momentum, outer, mean); err != nil {
			return err
		}
		r.state.Revision++
		r.now.Step = r.state.Revision
		if err := r.stepped(outer, loss); err != nil {
			return err
		}
	}
	if r.comm != nil {
		r.tell(r.outcome(), outer)
	}
	return nil
}
