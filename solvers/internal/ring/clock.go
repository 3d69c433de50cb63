package ring

import (
	"context"
	"math"
	"time"
)

// clock tells how much of a budget is left. The timer of a context may fire
// late on a busy machine, so the deadline is read as well.
type clock struct {
	ctx context.Context
	now func() time.Duration
	end time.Duration
}

// endless is the budget without a deadline.
const endless = time.Duration(math.MaxInt64 / 4)

// newClock reads the deadline of ctx.
func newClock(ctx context.Context) clock {
	begin := time.Now()
	c := clock{ctx: ctx, now: func() time.Duration { return time.Since(begin) }, end: endless}
	if d, ok := ctx.Deadline(); ok {
		c.end = min(endless, d.Sub(begin))
	}
	return c
}

func (c clock) over() bool { return c.ctx.Err() != nil || c.left() <= 0 }

func (c clock) left() time.Duration {
	if c.end == endless {
		return endless
	}
	return c.end - c.now()
}

// part is a clock for a share of the time that is left; unlimited stays
// unlimited.
func (c clock) part(share float64) clock {
	if c.end != endless {
		now := c.now()
		c.end = now + time.Duration(share*float64(max(0, c.end-now)))
	}
	return c
}
