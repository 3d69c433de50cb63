package trainers

import (
	"math"
	"time"

	"github.com/gopccl/gopccl/core"
)

// Pace chooses how many local steps precede a shared one, from what both took:
// as few as keep averaging within its share of the time.
type Pace struct {
	Share float64 // of the time that averaging may take, between 0 and 1; 0: Options.Inner stays as it is
	Most  int     // local steps, 0: 1000; so few are taken at most, however slow the links are
}

// Steps returns the number of local steps between two averages if one takes
// step and an average takes reduce. It depends on nothing else, so that peers
// that know the same durations, a newcomer among them, take equally many.
func (p Pace) Steps(step, reduce time.Duration) int {
	most := p.Most
	if most <= 0 {
		most = 1000
	}
	if p.Share <= 0 || p.Share >= 1 || step <= 0 {
		return most
	}
	n := math.Ceil(float64(reduce) / float64(step) * (1 - p.Share) / p.Share)
	return int(min(max(n, 1), float64(most)))
}

// pacing is what a trainer keeps for its pace: seconds of a local step, and of
// an average negated, so that their maximum over the peers is the step of the
// slowest peer and the average of the last to come, who waited for nobody.
type pacing struct {
	own, group [2]float32
	began      time.Time // of what is timed
}

func (r *run) clock() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

func (r *run) paced() bool { return r.Pace.Share > 0 }

// pace adds the exchange of durations to the operations of an average. Those of
// the average itself are of the one before.
func (r *run) pace(ops []core.Reduce) []core.Reduce {
	if !r.paced() {
		return ops
	}
	p := &r.pacing
	p.own[0] = float32(r.clock().Sub(p.began).Seconds() / float64(r.Inner))
	op := core.ReduceOf(p.group[:], p.own[:], core.Max)
	op.Tag = uint64(len(ops))
	p.began = r.clock()
	return append(ops, op)
}

// paces takes what the group measured; a peer that was left alone, its own.
func (r *run) paces(alone bool) {
	if !r.paced() {
		return
	}
	p := &r.pacing
	if alone {
		p.group = p.own
	}
	p.own[1] = -float32(r.clock().Sub(p.began).Seconds())
	if p.group[1] < 0 { // somebody has measured an average
		second := func(v float32) time.Duration { return time.Duration(float64(v) * 1e9) }
		r.Inner = r.Pace.Steps(second(p.group[0]), second(-p.group[1]))
	}
}
