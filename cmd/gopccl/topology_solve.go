package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/topofile"
)

// solved is the result of topology solve, in the units of the file.
type solved struct {
	Name            string   `json:"name"`
	N               int      `json:"n"`
	Solver          string   `json:"solver"`
	Objective       string   `json:"objective"`
	Unit            string   `json:"unit"` // of the bottleneck: mbps or cost
	Ring            []int    `json:"ring"`
	Peers           []string `json:"peers"` // names in the order of the ring
	Sum             float64  `json:"sum"`
	Bottleneck      float64  `json:"bottleneck"`
	SumLowerBound   float64  `json:"sum_lower_bound"`
	BottleneckBound *float64 `json:"bottleneck_bound"` // null: unknown
	Optimal         bool     `json:"optimal"`
	Seconds         float64  `json:"seconds"`
}

func newSolved(f *topofile.File, s topo.Solution) solved {
	r := solved{
		Name: f.Name, N: f.Matrix.N, Unit: "mbps", Ring: s.Ring,
		Sum: f.Sum(s.Sum), Bottleneck: f.Bottleneck(s.Bottleneck), SumLowerBound: f.Sum(s.SumLowerBound), Optimal: s.Optimal,
	}
	if f.Costs {
		r.Unit = "cost"
	}
	if s.BottleneckBound > 0 {
		b := f.Bottleneck(s.BottleneckBound)
		r.BottleneckBound = &b
	}
	for _, i := range s.Ring {
		r.Peers = append(r.Peers, f.Peers[i])
	}
	return r
}

// topologySolve is what the flags of gopccl topology solve say.
type topologySolve struct {
	solver, objective, start, output string
	budget                           time.Duration
	seed                             uint64
	asJSON, quiet                    bool
}

func newTopologySolveCmd() *cobra.Command {
	var b topologySolve
	cmd := &cobra.Command{
		Use:   "solve FILE",
		Short: "Find the best ring for a bandwidth matrix",
		Long: `Find the best ring for a bandwidth matrix: the one whose slowest link is the
fastest and, of these, that with the least sum of 1000/Mbps over its links
(--objective bottleneck), or just the least sum (--objective sum).

FILE is JSON with rows of Mbit/s ("mbps", null for a missing link), a TSPLIB
.atsp file with a full matrix of costs, or CSV: a square matrix in Mbit/s with or
without names, or lines of from,to,mbps. Results are in the units of the file: of
a file with costs, the bottleneck is the largest cost.

--output saves the ring as a plan: a versioned JSON file with the names of the
peers in the order of the ring. --start begins with the ring of a plan, so that
the answer is no worse; it may be for other bandwidths, but not for other peers.

Improvements are shown on standard error during the search.`,
		Example: `  gopccl topology solve matrix.json
  gopccl topology solve ftv170.atsp --objective sum --budget 100ms --json
  gopccl topology solve links.csv --solver exact --budget 1m
  gopccl topology solve links.csv --output ring.json
  gopccl topology solve newer.csv --start ring.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("want one file with a bandwidth matrix")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVar(&b.solver, "solver", "auto", "ring solver: "+strings.Join(topo.Names(), ", "))
	fl.StringVar(&b.objective, "objective", string(topo.BottleneckThenSum), "bottleneck (then sum) or sum")
	fl.DurationVar(&b.budget, "budget", time.Second, "time that the solver may take")
	fl.Uint64Var(&b.seed, "seed", 0, "varies the random choices")
	fl.StringVar(&b.start, "start", "", "begin with the ring of this plan `FILE`")
	fl.StringVar(&b.output, "output", "", "save the ring as a plan in `FILE`")
	fl.BoolVar(&b.asJSON, "json", false, "print one JSON object")
	fl.BoolVar(&b.quiet, "quiet", false, "do not show progress")
	return cmd
}

func (b *topologySolve) run(cmd *cobra.Command, file string) error {
	s, err := topo.Lookup(b.solver)
	if err != nil {
		return errs.New(errs.InvalidConfig, "solve", fmt.Errorf("%w; there are %s", err, strings.Join(topo.Names(), ", ")))
	}
	if b.objective != string(topo.BottleneckThenSum) && b.objective != string(topo.Sum) {
		return errs.New(errs.InvalidConfig, "solve", fmt.Errorf("--objective %q: want bottleneck or sum", b.objective))
	}
	if b.budget <= 0 {
		return errs.New(errs.InvalidConfig, "solve", fmt.Errorf("--budget %v: want more than 0", b.budget))
	}
	f, err := topofile.Open(file)
	if err != nil {
		return err
	}
	p := topo.Problem{Matrix: f.Matrix, Objective: topo.Objective(b.objective), Seed: b.seed}
	if b.start != "" {
		if p.Start, err = f.OpenPlan(b.start); err != nil {
			return err
		}
	}
	progress := cmd.ErrOrStderr()
	if b.quiet {
		progress = io.Discard
	}
	r, err := solve(cmd.Context(), s, f, p, b.budget, progress)
	if err != nil {
		return err
	}
	if b.output != "" {
		if err := f.SavePlan(b.output, r.Ring); err != nil {
			return err
		}
	}
	if b.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
	}
	return r.print(cmd.OutOrStdout())
}

// solve runs a solver and checks its answer. Progress is shown at most ten
// times a second, and always for the first and the last ring.
func solve(ctx context.Context, s topo.Solver, f *topofile.File, p topo.Problem, budget time.Duration, progress io.Writer) (solved, error) {
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	var shown time.Duration
	var pending *topo.Solution
	show := func(x topo.Solution, at time.Duration) {
		r := newSolved(f, x)
		fmt.Fprintf(progress, "%8.3f s  slowest link %.6g %s  sum %.8g\n", at.Seconds(), r.Bottleneck, r.Unit, r.Sum)
		shown, pending = at, nil
	}
	got, err := s.Solve(limited, p, func(x topo.Solution) {
		if at := time.Since(begin); shown == 0 || at-shown > 100*time.Millisecond {
			show(x, at)
		} else {
			pending = &x
		}
	})
	took := time.Since(begin)
	if pending != nil {
		show(*pending, took)
	}
	if err == nil {
		if err = p.Verify(got); err != nil {
			err = errs.New(errs.Internal, "solve", fmt.Errorf("solver %s: %w", s.Name(), err))
		}
	}
	var no *topo.NoRingError
	switch {
	case ctx.Err() != nil && err != nil:
		return solved{}, errs.New(errs.Canceled, "solve", err)
	case errors.As(err, &no):
		return solved{}, errs.New(errs.TopologyOptimizationFailed, "solve "+f.Name, errors.New(no.Describe(f.Peers)))
	case err != nil:
		return solved{}, err
	}
	r := newSolved(f, got)
	r.Solver, r.Objective, r.Seconds = s.Name(), string(p.Objective), took.Seconds()
	return r, nil
}

func (r solved) print(w io.Writer) error {
	bound, optimal := "unknown", "not proved to be the best"
	if r.BottleneckBound != nil {
		bound = fmt.Sprintf("%.6g", *r.BottleneckBound)
	}
	if r.Optimal {
		optimal = "proved to be the best"
	}
	_, err := fmt.Fprintf(w, `%s: %d peers, %s in %.3f s, %s
slowest link  %.6g %s (bound %s)
sum           %.8g (lower bound %.8g)
ring          %s
`, r.Name, r.N, r.Solver, r.Seconds, optimal, r.Bottleneck, r.Unit, bound, r.Sum, r.SumLowerBound, strings.Join(r.Peers, " "))
	return err
}
