package trainers

import (
	"context"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// flight is an average on its way: launched, then landed, then taken.
type flight struct {
	run       *run
	mean, own []float32
	ops       []core.Reduce
	handles   []*core.Handle
	up        bool // launched and not landed
	landed    bool // landed and not taken
}

// launch starts to average a copy of own over all peers and returns at once.
func (f *flight) launch(ctx context.Context, own []float32) error {
	f.run.report(Reduce, nil)
	copy(f.own, own)
	f.ops, f.handles, f.up, f.landed = f.run.reduces(f.mean, f.own), f.handles[:0], true, false
	for _, op := range f.ops {
		h, err := f.run.comm.AllReduceAsync(ctx, op)
		if errs.CodeOf(err) == errs.TooFewPeers {
			return nil // alone; land does the rest
		} else if err != nil {
			return err
		}
		f.handles = append(f.handles, h)
	}
	return nil
}

// land waits for the average in flight, if there is one. Operations that failed
// because a peer died are repeated by the survivors: all of them see the same
// verdicts, so all repeat the same ones.
func (f *flight) land(ctx context.Context) error {
	if !f.up {
		return nil
	}
	f.up, f.landed = false, true
	var again []core.Reduce
	var done core.ReduceInfo
	for i, h := range f.handles {
		info, err := h.Wait(ctx)
		switch errs.CodeOf(err) {
		case errs.Success:
			done.TxBytes += info.TxBytes
			done.RxBytes += info.RxBytes
		case errs.RankConnectionLost:
			done.Retries++
			again = append(again, f.ops[i])
		default:
			return err
		}
	}
	again = append(again, f.ops[len(f.handles):]...)
	if err := f.run.averaged(done, nil, f.mean, f.own); err != nil || len(again) == 0 {
		return err
	}
	info, err := f.run.comm.AllReduceMultipleWithRetry(ctx, again, 4)
	return f.run.averaged(info, err, f.mean, f.own)
}

// take returns the average that landed, once.
func (f *flight) take() ([]float32, bool) {
	ok := f.landed
	f.landed = false
	return f.mean, ok
}
