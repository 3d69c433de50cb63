package probe

import (
	"context"
	"errors"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// Result of one request: an estimate, or why there is none.
type Result struct {
	To wire.UUID
	Estimate
	Err error
}

// maxBroken is how often the sending to one target may break before Run gives it up.
const maxBroken = 3

// job is one request that is not done.
type job struct {
	req       wire.BandwidthRequest
	notBefore time.Time
	giveUp    time.Time // zero until the first try
	broken    int
}

// Run works off bandwidth requests one at a time in list order and calls
// result, in its own goroutine, once for each (control spec, section 13.3):
// a target that is busy, or whose connection broke, is postponed; one that
// cannot be connected is dropped, as is one that stayed busy for all of
// Options.Patience; both give a Result with Err. Requests whose From is not
// self are ignored. Run returns nil when all are through, or an *errs.Error
// with code Canceled when ctx ended before; the remaining requests have no
// result then.
func Run(ctx context.Context, self wire.UUID, requests []wire.BandwidthRequest, o Options, result func(Result)) error {
	o = o.withDefaults()
	var jobs []*job
	for _, r := range requests {
		if r.From == self {
			jobs = append(jobs, &job{req: r})
		}
	}
	if o.Patience <= 0 {
		o.Patience = 30*time.Second + time.Duration(len(jobs))*4*(o.Duration+o.Postpone)
	}
	for len(jobs) > 0 {
		i, err := next(ctx, jobs)
		if err != nil {
			return errs.New(errs.Canceled, opMeasure, err)
		}
		j := jobs[i]
		if j.giveUp.IsZero() {
			j.giveUp = time.Now().Add(o.Patience)
		}
		e, err := Measure(ctx, j.req.Addr, self, o)
		switch {
		case err != nil && ctx.Err() != nil:
			return err
		case errors.Is(err, errs.TransferFailed):
			j.broken++
			fallthrough
		case errors.Is(err, ErrBusy):
			j.notBefore = time.Now().Add(o.Postpone)
			if j.broken < maxBroken && j.notBefore.Before(j.giveUp) {
				continue
			}
		}
		result(Result{To: j.req.To, Estimate: e, Err: err})
		jobs = append(jobs[:i], jobs[i+1:]...)
	}
	return nil
}

// next returns the first job that may be tried, after waiting for it if all
// are postponed.
func next(ctx context.Context, jobs []*job) (int, error) {
	for {
		now := time.Now()
		wait := time.Duration(-1)
		for i, j := range jobs {
			d := j.notBefore.Sub(now)
			if d <= 0 {
				return i, ctx.Err()
			}
			if wait < 0 || d < wait {
				wait = d
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return 0, ctx.Err()
		}
	}
}
