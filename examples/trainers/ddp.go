package trainers

import (
	"context"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/examples/charlm"
)

// DDP is plain data parallelism: every peer computes the gradient of its own
// batch, the gradients are averaged, and every peer takes the same step of
// AdamW. Parameters and both running means of the optimizer are the shared state.
func DDP(ctx context.Context, o Options) error {
	r, err := prepare(o)
	if err != nil {
		return err
	}
	defer r.close()

	params := r.model.Init(o.Seed)
	n := len(params)
	adam := charlm.NewAdamW(n, innerRate)
	r.share("model.", params)
	r.share("adam.mean.", adam.M)
	r.share("adam.square.", adam.V)
	if err := r.resume(); err != nil {
		return err
	}

	grad, mean := make([]float32, n), make([]float32, n)
	welcome := true
	r.now.Step = r.state.Revision
	for r.more() {
		// Let in who waits, then agree on the state: a no-op but for newcomers.
		if _, err := r.admit(ctx, func() error { return nil }); err != nil {
			return err
		}
		if _, err := r.sync(ctx, core.SyncOptions{}); err != nil {
			return err
		}
		r.now.Step = r.state.Revision
		if welcome {
			r.tell(Joined, params)
			welcome = false
		}

		// One batch, one average, one step.
		loss := r.model.Gradient(params, grad, r.data().Next(r.Batch))
		if err := r.average(ctx, mean, grad); err != nil {
			return err
		}
		adam.Steps = r.state.Revision
		adam.Step(params, mean)

		r.state.Revision++
		r.now.Step = r.state.Revision
		if err := r.stepped(params, loss); err != nil {
			return err
		}
	}
	if r.comm != nil {
		r.tell(r.outcome(), params)
	}
	return nil
}
