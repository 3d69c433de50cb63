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

func newBenchTopologyCmd() *cobra.Command {
	var f benchFlags
	var dir, solver, only, clockName string
	var budgets []time.Duration
	var quick, verbose bool
	var seed uint64
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Compare ring solvers with the best rings known",
		Long: `Run a ring solver on public instances, one after the other on one thread, and
compare its rings with the best ones known and with the targets: TSPLIB, wide-area
bandwidth matrices, and synthetic classes. Only a quiet machine gives a solver the
time that its budget promises; --clock cpu counts the processor time of the
program instead, so that others on the machine cost it no more than their share
of the caches.`,
		Example: `  gopccl bench topology --quick
  gopccl bench topology --budget 1s --only dc512 --verbose`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, err := topo.Lookup(solver)
			if err != nil {
				return usageError("%w; there are %s", err, strings.Join(topo.Names(), ", "))
			}
			if quick && !cmd.Flags().Changed("budget") {
				budgets = budgets[:2]
			}
			var clock func() time.Duration
			switch clockName {
			case "wall":
			case "cpu":
				// What runs beside the solver in this program counts, too.
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
				clock = bench.CPUClock()
			default:
				return usageError("--clock %q: want wall or cpu", clockName)
			}
			all, err := bench.Instances(dir, only)
			if err != nil {
				return usageError("--data: %w (the instances are in tests/bench/topology/data of the sources)", err)
			}
			if len(all) == 0 {
				return usageError("--only %q: no instance is called so", only)
			}
			out, err := f.open(cmd, "budget", "what", "measured", "target", "")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, out.close()) }()
			missed := false
			for _, budget := range budgets {
				if budget <= 0 {
					return usageError("--budget %v: want more than 0", budget)
				}
				var rings []bench.Ring
				for i := range all {
					objectives := []topo.Objective{topo.Sum}
					if all[i].Kind == "wan" {
						objectives = append(objectives, topo.BottleneckThenSum)
					}
					for _, o := range objectives {
						r, err := all[i].Solve(cmd.Context(), s, o, seed, budget, clock)
						if err != nil {
							return err
						}
						if verbose {
							fmt.Fprintf(cmd.ErrOrStderr(), "%-20s %4d %-10s %6.3f s  gap %8.5f%%  bottleneck %.4f  excess there %8.5f%%  root gap %6.2f%%  proved %-5v %s\n",
								r.Name, r.N, r.Objective, r.Seconds, r.Gap, r.Ratio, r.ExcessAt, r.RootGap, r.Optimal, r.Invalid)
						}
						if out.json != nil {
							if err := out.json.Encode(r); err != nil {
								return err
							}
						}
						rings = append(rings, r)
					}
				}
				for _, m := range bench.Marks(rings, budget) {
					missed = missed || !m.Holds
					verdict := "holds"
					if !m.Holds {
						verdict = "misses"
					}
					if out.json != nil {
						err = out.json.Encode(m)
					} else {
						err = out.row(budget.String(), m.Row, m.Measured, m.Target, verdict)
					}
					if err != nil {
						return err
					}
				}
			}
			if missed && only == "" && solver == "auto" {
				return bench.ErrTargets
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&dir, "data", "tests/bench/topology/data", "`DIRECTORY` with the instances")
	fl.StringVar(&solver, "solver", "auto", "ring solver: "+strings.Join(topo.Names(), ", "))
	fl.StringVar(&only, "only", "", "only instances with this in their name; targets do not count then")
	fl.DurationSliceVar(&budgets, "budget", bench.TopologyBudgets(), "budgets, comma separated; there are targets for the default ones")
	fl.BoolVar(&quick, "quick", false, "leave the longest budget out")
	fl.BoolVarP(&verbose, "verbose", "v", false, "show every ring on standard error")
	fl.StringVar(&clockName, "clock", "wall", "what budgets are counted by: wall, or cpu for the processor time of this program")
	fl.Uint64Var(&seed, "seed", 0, "varies the random choices")
	fl.StringVar(&f.json, "json", "", "write one JSON object a line to `FILE`, - for standard output, instead of a table")
	return cmd
}
