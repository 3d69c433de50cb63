package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
	"github.com/gopccl/gopccl/core/topo"
)

// planningBench is what the flags of gopccl bench planning say.
type planningBench struct {
	benchFlags
	sizes  []int
	solver string
	seed   uint64
	budget time.Duration
}

func newBenchPlanningCmd() *cobra.Command {
	var b planningBench
	cmd := &cobra.Command{
		Use:   "planning",
		Short: "Measure how long ring solvers take, by number of peers",
		Long: `Run a ring solver on groups of growing size, made from a seed: data centres
around the globe, bottleneck first, as the master does. The table says when there
was a first ring and how fast its slowest link was by that of the last one, when
that of the last one was reached, when the sum was within a percent of the last
one as well, and when the search ended. Times are processor time of this program.`,
		Example: `  gopccl bench planning
  gopccl bench planning --sizes 64,1024 --solver bottleneck --budget 10s`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	fl := cmd.Flags()
	fl.IntSliceVar(&b.sizes, "sizes", []int{4, 8, 16, 32, 64, 128, 256, 512, 1024}, "numbers of peers, comma separated")
	fl.StringVar(&b.solver, "solver", "auto", "ring solver: "+strings.Join(topo.Names(), ", "))
	fl.DurationVar(&b.budget, "budget", time.Second, "time that the solver may take for each")
	fl.Uint64Var(&b.seed, "seed", 1, "varies groups and random choices")
	fl.StringVar(&b.json, "json", "", "write one JSON object a line to `FILE`, - for standard output, instead of a table")
	return cmd
}

func (b *planningBench) run(cmd *cobra.Command) (err error) {
	s, err := topo.Lookup(b.solver)
	if err != nil {
		return usageError("%w; there are %s", err, strings.Join(topo.Names(), ", "))
	}
	if b.budget <= 0 {
		return usageError("--budget %v: want more than 0", b.budget)
	}
	for _, n := range b.sizes {
		if n < 2 || n > 4096 {
			return usageError("--sizes %d: want 2 to 4096", n)
		}
	}
	out, err := b.open(cmd, "peers", "first ring", "slowest link", "slowest link settled", "sum within 1%", "ended", "of the bound", "proved")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, n := range b.sizes {
		r, err := bench.Plan(cmd.Context(), s, n, b.seed, b.budget, bench.CPUClock(0))
		if err != nil {
			return fmt.Errorf("%d peers: %w", n, err)
		}
		if err := out.put(r, fmt.Sprint(n), seconds(r.First), fmt.Sprintf("%.3f", r.Ratio), seconds(r.Settled), seconds(r.Close),
			seconds(r.Seconds), fmt.Sprintf("%.3f", r.Bound), fmt.Sprint(r.Optimal)); err != nil {
			return err
		}
	}
	return nil
}
