package ring

import (
	"context"
	"time"

	"github.com/gopccl/gopccl/core/topo"
)

// clock tells how much of a budget is left.
type clock struct {
	ctx context.Context
	now func() time.Duration
	end time.Duration
}

// endless is the budget without a deadline.
const endless = topo.Endless

func newClock(ctx context.Context) clock {
	now, end := topo.Clock(ctx)
	return clock{ctx: ctx, now: now, end: end}
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
