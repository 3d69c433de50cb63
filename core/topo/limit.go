package topo

import (
	"context"
	"math"
	"time"
)

// Endless is the end of a context without one.
const Endless = time.Duration(math.MaxInt64 / 4)

// Limit returns a context that ends when used, a clock of the caller's, has
// gone on by budget: processor time on a machine that others use as well, or
// the calls of used themselves where a test must not depend on time. It has
// neither a timer nor a deadline of its own, so a solver learns of its end by
// Err or by Clock only; used is called whenever it asks, from its goroutine.
func Limit(parent context.Context, budget time.Duration, used func() time.Duration) context.Context {
	return &limited{Context: parent, used: used, end: used() + budget}
}

type limited struct {
	context.Context
	used func() time.Duration
	end  time.Duration
}

type limitKey struct{}

// Err is that of the parent, or DeadlineExceeded when the budget is used up.
func (l *limited) Err() error {
	if err := l.Context.Err(); err != nil {
		return err
	}
	if l.used() >= l.end {
		return context.DeadlineExceeded
	}
	return nil
}

// Value makes the limit known to Clock.
func (l *limited) Value(key any) any {
	if key == (limitKey{}) {
		return l
	}
	return l.Context.Value(key)
}

// Clock returns the clock by which ctx ends and the time on it when it does:
// that of Limit, else one that starts now and the deadline of ctx, Endless if
// there is none. The timer of a context may fire late on a busy machine;
// solvers read this clock as well.
func Clock(ctx context.Context) (now func() time.Duration, end time.Duration) {
	if l, ok := ctx.Value(limitKey{}).(*limited); ok {
		return l.used, l.end
	}
	begin := time.Now()
	now, end = func() time.Duration { return time.Since(begin) }, Endless
	if d, ok := ctx.Deadline(); ok {
		end = min(Endless, d.Sub(begin))
	}
	return now, end
}
