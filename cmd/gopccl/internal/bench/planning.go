package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/gopccl/gopccl/core/topo"
)

// Planning says how long a solver took for a group of data centres.
type Planning struct {
	N        int     `json:"n"`
	First    float64 `json:"first"`    // seconds until there was a ring
	Settled  float64 `json:"settled"`  // until its slowest link was that of the last ring
	Close    float64 `json:"close"`    // until its sum was within a percent of the last one's, too
	Seconds  float64 `json:"seconds"`  // until the search ended
	Ratio    float64 `json:"ratio"`    // slowest link of the first ring by that of the last
	Bound    float64 `json:"bound"`    // slowest link of the last ring by what no ring exceeds
	Optimal  bool    `json:"optimal"`  // proved
	Improved int     `json:"improved"` // rings announced
}

// Plan makes a group of n peers in data centres from a seed and runs a solver
// on it, as the master does: bottleneck first, then the sum.
func Plan(ctx context.Context, s topo.Solver, n int, seed uint64, budget time.Duration, clock func() time.Duration) (Planning, error) {
	rnd := rand.New(rand.NewPCG(seed, uint64(n)))
	p := topo.Problem{Matrix: wideArea(rnd, n, 0, 0), Objective: topo.BottleneckThenSum, Seed: seed}
	limited, cancel := limit(ctx, budget, clock)
	defer cancel()
	if clock == nil {
		start := time.Now()
		clock = func() time.Duration { return time.Since(start) }
	}
	type at struct {
		topo.Solution
		seconds float64
	}
	var all []at
	begin := clock()
	got, err := s.Solve(limited, p, func(x topo.Solution) { all = append(all, at{x, (clock() - begin).Seconds()}) })
	r := Planning{N: n, Seconds: (clock() - begin).Seconds(), Improved: len(all), Optimal: got.Optimal}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return r, err
	}
	if err := p.Verify(got); err != nil {
		return r, err
	}
	all = append(all, at{got, r.Seconds})
	r.First, r.Ratio = all[0].seconds, all[0].Bottleneck/got.Bottleneck
	if got.BottleneckBound > 0 {
		r.Bound = got.Bottleneck / got.BottleneckBound
	}
	r.Settled, r.Close = -1, -1
	for _, x := range all {
		if x.Bottleneck < got.Bottleneck {
			continue
		}
		if r.Settled < 0 {
			r.Settled = x.seconds
		}
		if r.Close < 0 && x.Sum <= 1.01*got.Sum {
			r.Close = x.seconds
		}
	}
	return r, nil
}
