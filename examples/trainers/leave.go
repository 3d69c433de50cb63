package trainers

import (
	"context"
	"errors"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// leaveWithin bounds how long a trainer that was told to leave tries to do so in order.
// Supervisors kill what has not ended some time after SIGTERM.
const leaveWithin = 20 * time.Second

// told says whether the trainer is to leave.
func (r *run) told() bool { return r.Leaving != nil && r.Leaving.Err() != nil }

// untilTold returns a context that ends with ctx, or when the trainer is to leave.
func (r *run) untilTold(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if r.Leaving == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(r.Leaving, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// outcome is the kind of a trainer's last event.
func (r *run) outcome() string {
	if r.told() {
		return Left
	}
	return Ended
}

// close ends the membership: in order if the trainer was told to leave.
func (r *run) close() {
	if r.comm == nil {
		return
	}
	if r.told() {
		r.leave()
	}
	r.comm.Close()
}

// leave leaves between two steps of the others. If they wait for a shared state that only
// this peer has, it hands that over first.
func (r *run) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	err := r.comm.Leave(ctx)
	for errors.Is(err, errs.NoSharedStateAvailable) {
		if _, err := r.sync(ctx, core.SyncOptions{}); err != nil {
			r.warn("the shared state was not handed over", err)
			return
		}
		err = r.comm.Leave(ctx)
	}
	if err != nil {
		r.warn("left without waiting for the others", err)
	}
}
