package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
	"github.com/gopccl/gopccl/core/topo"
)

// topologyBench is what the flags of gopccl bench topology say.
type topologyBench struct {
	dir, solver, only string
	budgets           []time.Duration
	reference         time.Duration
	heldOut           uint64
	isHeldOut         bool
	from              []string
	seed              uint64
	quick, chatty     bool
	counting          string               // wall or cpu
	clock             func() time.Duration // nil: the wall's
	verbose           io.Writer            // nil: be quiet
}

func newBenchTopologyCmd() *cobra.Command {
	var f benchFlags
	var b topologyBench
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Compare ring solvers with the best rings known",
		Long: `Run a ring solver on public instances, one after the other on one thread, and
compare its rings with the best ones known and with the targets: TSPLIB, wide-area
bandwidth matrices, and synthetic classes. Only a quiet machine gives a solver the
time that its budget promises; --clock cpu counts the processor time of the
program instead, so that others on the machine cost it no more than their share
of the caches.

--held-out SEED makes other instances of the same kinds, which nobody tuned a
solver on; what is best of them is looked for first (--reference). --from prints
the table from the rings that earlier runs wrote with --json.`,
		Example: `  gopccl bench topology --quick
  gopccl bench topology --budget 1s --only dc512 --verbose
  gopccl bench topology --budget 1s --held-out 7 --clock cpu
  gopccl bench topology --json rings.json; gopccl bench topology --from rings.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd, &f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&b.dir, "data", "tests/bench/topology/data", "`DIRECTORY` with the instances")
	fl.StringVar(&b.solver, "solver", "auto", "ring solver: "+strings.Join(topo.Names(), ", "))
	fl.StringVar(&b.only, "only", "", "only instances with this in their name; targets do not count then")
	fl.DurationSliceVar(&b.budgets, "budget", bench.TopologyBudgets(), "budgets, comma separated; there are targets for the default ones")
	fl.BoolVar(&b.quick, "quick", false, "leave the longest budget out")
	fl.BoolVarP(&b.chatty, "verbose", "v", false, "show every ring on standard error")
	fl.StringVar(&b.counting, "clock", "wall", "what budgets are counted by: wall, or cpu for the processor time of this program")
	fl.Uint64Var(&b.heldOut, "held-out", 0, "instances made from this `SEED` instead of the public ones")
	fl.DurationVar(&b.reference, "reference", 30*time.Second, "time to look for the best rings of an instance of --held-out")
	fl.StringSliceVar(&b.from, "from", nil, "solve nothing, take the rings from these `FILES`")
	fl.Uint64Var(&b.seed, "seed", 0, "varies the random choices")
	fl.StringVar(&f.json, "json", "", "write one JSON object a line to `FILE`, - for standard output, instead of a table")
	return cmd
}

// run solves the instances with each budget, or reads what earlier runs solved,
// and compares with the targets.
func (b *topologyBench) run(cmd *cobra.Command, f *benchFlags) (err error) {
	if err := b.check(cmd); err != nil {
		return err
	}
	if b.counting == "cpu" {
		// What runs beside the solver in this program counts, too.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		b.clock = bench.CPUClock(50 * time.Microsecond)
	}
	s, err := topo.Lookup(b.solver)
	if err != nil {
		return usageError("%w; there are %s", err, strings.Join(topo.Names(), ", "))
	}
	all, err := b.instances()
	if err != nil {
		return err
	}
	read, err := b.read(all)
	if err != nil {
		return err
	}
	out, err := f.open(cmd, "budget", "what", "measured", "target", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	if b.isHeldOut {
		if err := b.refer(cmd.Context(), s, all); err != nil {
			return err
		}
	}
	missed := false
	for _, budget := range b.budgets {
		rings := read[budget]
		if b.from == nil {
			if rings, err = b.solve(cmd.Context(), s, all, budget, out); err != nil {
				return err
			}
		}
		if len(rings) == 0 {
			continue
		}
		miss, err := judge(rings, budget, out)
		if err != nil {
			return err
		}
		missed = missed || miss
	}
	if missed && b.only == "" && b.solver == "auto" {
		return bench.ErrTargets
	}
	return nil
}

// check refuses flags that do not fit, and fills in what follows from others.
func (b *topologyBench) check(cmd *cobra.Command) error {
	if b.counting != "wall" && b.counting != "cpu" {
		return usageError("--clock %q: want wall or cpu", b.counting)
	}
	if b.quick && !cmd.Flags().Changed("budget") {
		b.budgets = b.budgets[:2]
	}
	for _, budget := range append([]time.Duration{b.reference}, b.budgets...) {
		if budget <= 0 {
			return usageError("--budget %v: want more than 0", budget)
		}
	}
	if b.isHeldOut = cmd.Flags().Changed("held-out"); b.isHeldOut && b.from != nil {
		return usageError("--from and --held-out exclude each other: rings are compared with the public instances")
	}
	if b.chatty {
		b.verbose = cmd.ErrOrStderr()
	}
	return nil
}

// judge writes how the rings of one budget compare with the targets, and says
// whether a target is missed.
func judge(rings []bench.Ring, budget time.Duration, out *output) (missed bool, err error) {
	for _, m := range bench.Marks(rings, budget) {
		verdict := "holds"
		if !m.Holds {
			verdict, missed = "misses", true
		}
		if err := out.put(m, budget.String(), m.Row, m.Measured, m.Target, verdict); err != nil {
			return missed, err
		}
	}
	return missed, nil
}

// instances returns those that the flags name.
func (b *topologyBench) instances() ([]bench.Instance, error) {
	var all []bench.Instance
	if b.isHeldOut {
		for _, in := range bench.HeldOut(b.heldOut) {
			if strings.Contains(in.Name, b.only) {
				all = append(all, in)
			}
		}
	} else {
		var err error
		if all, err = bench.Instances(b.dir, b.only); err != nil {
			return nil, usageError("--data: %w (the instances are in tests/bench/topology/data of the sources)", err)
		}
	}
	if len(all) == 0 {
		return nil, usageError("--only %q: no instance has that in its name", b.only)
	}
	return all, nil
}

// read returns the rings of the files of --from by their budget.
func (b *topologyBench) read(all []bench.Instance) (map[time.Duration][]bench.Ring, error) {
	rings := map[time.Duration][]bench.Ring{}
	for _, name := range b.from {
		file, err := os.Open(name)
		if err != nil {
			return nil, usageError("--from: %w", err)
		}
		some, err := bench.ReadRings(file, all)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, usageError("--from %s: %w", name, err)
		}
		for _, r := range some {
			budget := time.Duration(math.Round(r.Budget * float64(time.Second)))
			rings[budget] = append(rings[budget], r)
		}
	}
	return rings, nil
}

// refer looks for the best rings of held-out instances, from another seed than
// the one that is compared with them.
func (b *topologyBench) refer(ctx context.Context, s topo.Solver, all []bench.Instance) error {
	for i := range all {
		if err := all[i].Refer(ctx, s, b.seed+1, b.reference, b.clock); err != nil {
			return err
		}
		if b.verbose != nil {
			fmt.Fprintf(b.verbose, "%-20s %4d reference  sum %.9g  bottleneck %.9g, sum there %.9g\n",
				all[i].Name, all[i].Matrix.N, all[i].Sum, all[i].Bottleneck, all[i].SumAt)
		}
	}
	return nil
}

// solve runs the solver on all instances with one budget.
func (b *topologyBench) solve(ctx context.Context, s topo.Solver, all []bench.Instance, budget time.Duration, out *output) ([]bench.Ring, error) {
	var rings []bench.Ring
	for i := range all {
		objectives := []topo.Objective{topo.Sum}
		if all[i].Kind == "wan" {
			objectives = append(objectives, topo.BottleneckThenSum)
		}
		for _, o := range objectives {
			r, err := all[i].Solve(ctx, s, o, b.seed, budget, b.clock)
			if err != nil {
				return nil, err
			}
			if b.verbose != nil {
				fmt.Fprintf(b.verbose, "%-20s %4d %-10s %6.3f s  gap %8.5f%%  bottleneck %.4f  excess there %8.5f%%  root gap %6.2f%%  proved %-5v %s\n",
					r.Name, r.N, r.Objective, r.Seconds, r.Gap, r.Ratio, r.ExcessAt, r.RootGap, r.Optimal, r.Invalid)
			}
			if out.json != nil {
				if err := out.json.Encode(r); err != nil {
					return nil, err
				}
			}
			rings = append(rings, r)
		}
	}
	return rings, nil
}
