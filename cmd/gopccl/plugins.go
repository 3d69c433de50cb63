package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/plugin/host"
)

// pluginSpec is what the host of plugins needs to know of one.
func pluginSpec(p conf.Plugin, log *slog.Logger) host.Spec {
	return host.Spec{
		Name: p.Name, Kind: host.Kind(p.Kind), Command: p.Command, Args: p.Args, SHA256: p.SHA256, Insecure: !p.MTLS,
		StartTimeout: p.StartTimeout, TimeLimit: p.TimeLimit, MemoryLimit: int64(p.MemoryLimit), Logger: log,
	}
}

// ringSolver is the ring solver of a master, which can be exchanged while the
// master runs, with the plugins of its configuration.
type ringSolver struct {
	log *slog.Logger
	set *host.Set
	now *host.Switch // nil if rings are not ordered
}

// newRingSolver starts the plugins of c. Errors: *errs.Error with code InvalidConfig.
func newRingSolver(c *conf.Config, log *slog.Logger) (*ringSolver, error) {
	auto, err := topo.Lookup("auto")
	if err != nil {
		return nil, errs.New(errs.Internal, "run master", err)
	}
	r := &ringSolver{log: log, set: host.NewSet(auto)}
	if _, err := r.set.Apply(r.specs(c)); err != nil {
		return nil, err
	}
	if c.Topology.Solver == "none" {
		return r, nil
	}
	s, err := r.lookup(c.Topology.Solver)
	if err != nil {
		r.Close()
		return nil, err
	}
	r.now = host.NewSwitch(s)
	return r, nil
}

// specs lists the plugins that a master has a use for.
func (r *ringSolver) specs(c *conf.Config) (specs []host.Spec) {
	for _, p := range c.Plugins {
		if p.Kind == string(host.Solver) {
			specs = append(specs, pluginSpec(p, r.log))
		}
	}
	return specs
}

// lookup finds a solver among the plugins and the built-in ones.
func (r *ringSolver) lookup(name string) (topo.Solver, error) {
	if p := r.set.Solver(name); p != nil {
		return p, nil
	}
	s, err := topo.Lookup(name)
	if err != nil {
		return nil, errs.New(errs.InvalidConfig, "find ring solver", err).
			WithHint("built in: " + strings.Join(topo.Names(), ", ") + "; plugins: " + strings.Join(r.set.Names(), ", "))
	}
	return s, nil
}

// solver is what the master gets; nil if rings are not ordered.
func (r *ringSolver) solver() topo.Solver {
	if r.now == nil {
		return nil
	}
	return r.now
}

// apply takes over plugins and solver of c. After an error everything is as it was.
func (r *ringSolver) apply(c *conf.Config) error {
	if (c.Topology.Solver == "none") != (r.now == nil) {
		return errs.New(errs.InvalidConfig, "take over configuration", fmt.Errorf("topology.solver changes from or to none")).WithHint("restart the master")
	}
	known := map[string]bool{}
	for _, p := range c.Plugins {
		known[p.Name] = known[p.Name] || p.Kind == string(host.Solver)
	}
	if r.now != nil && !known[c.Topology.Solver] {
		if _, err := topo.Lookup(c.Topology.Solver); err != nil {
			return errs.New(errs.InvalidConfig, "take over configuration", err)
		}
	}
	retire, err := r.set.Apply(r.specs(c))
	if err != nil {
		return err
	}
	if r.now != nil {
		s, err := r.lookup(c.Topology.Solver)
		if err != nil {
			return err
		}
		r.now.Set(s)
	}
	retire()
	return nil
}

// Close ends the plugins.
func (r *ringSolver) Close() error { return r.set.Close() }

// reload reads the configuration again and takes over what can be.
func (r *ringSolver) reload(cmd *cobra.Command, m *core.Master, opt *core.MasterOptions) {
	c, err := loadConfig(cmd)
	if err == nil {
		err = r.apply(c)
	}
	if err == nil {
		opt.BeginAnew, opt.DropLost = c.Master.LostState == "anew", c.Master.LostMembers == "drop"
		err = m.SetBeginAnew(opt.BeginAnew)
	}
	if err == nil {
		err = m.SetDropLost(opt.DropLost)
	}
	if err != nil {
		r.log.Error("configuration not taken over: "+err.Error(), "kind", "reload")
		return
	}
	setLevels(c)
	r.log.Info("configuration taken over", "kind", "reload", "solver", c.Topology.Solver, "plugins", strings.Join(r.set.Names(), ","))
}

// startTensorPlugins starts and registers the quantizer and the backend that a
// trainer's configuration names, if they are plugins. stop ends them when
// nothing computes any more.
func startTensorPlugins(c *conf.Config, log *slog.Logger) (stop func(), err error) {
	var running []io.Closer
	stop = func() {
		for _, p := range running {
			p.Close()
		}
	}
	for _, p := range c.Plugins {
		switch {
		case p.Kind == string(host.Quantizer) && p.Name == c.Quantize.Algorithm:
			q, err := host.StartQuantizer(pluginSpec(p, log))
			if err != nil {
				stop()
				return nil, err
			}
			running = append(running, q)
			quant.Register(q)
		case p.Kind == string(host.Backend) && p.Name == c.Data.Backend:
			builtIn, _, err := backend.Select("auto")
			if err != nil {
				stop()
				return nil, errs.New(errs.Internal, "start plugins", err)
			}
			b, err := host.StartBackend(pluginSpec(p, log), builtIn)
			if err != nil {
				stop()
				return nil, err
			}
			running = append(running, b)
			backend.Register(p.Name, b)
		}
	}
	return stop, nil
}

func newPluginsCmd() *cobra.Command {
	plugins := &cobra.Command{
		Use:   "plugins",
		Short: "Inspect plugins, the programs that gopccl runs beside itself",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	plugins.AddCommand(newPluginsListCmd(), newPluginsCheckCmd())
	return plugins
}

func newPluginsListCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Print the configured plugins, their executables and digests",
		Example: `  gopccl plugins list --config run.yaml
  GOPCCL_CONFIG=run.yaml gopccl plugins list`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if len(c.Plugins) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no plugins are configured")
				return nil
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tKIND\tEXECUTABLE\tPINNED\tSHA256")
			for _, p := range c.Plugins {
				path, pinned, sum := describePlugin(p)
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, p.Kind, path, pinned, sum)
			}
			return w.Flush()
		},
	}
}

// describePlugin finds the executable of p and compares its digest.
func describePlugin(p conf.Plugin) (path, pinned, sum string) {
	path, err := exec.LookPath(p.Command)
	if err != nil {
		return p.Command, "missing", "-"
	}
	if sum, err = host.Digest(path); err != nil {
		return path, "unreadable", "-"
	}
	switch {
	case p.SHA256 == "":
		return path, "no", sum
	case strings.EqualFold(p.SHA256, sum):
		return path, "yes", sum
	}
	return path, "DIFFERS", sum
}

func newPluginsCheckCmd() *cobra.Command {
	var insecure bool
	var kind string
	cmd := &cobra.Command{
		Use:   "check [NAME|EXECUTABLE [ARG]...]",
		Short: "Run the conformance suite against plugins",
		Long: `Run the conformance suite against all configured plugins, one of them, or the
ring solver plugin in an executable. Faults that a master would mend silently are
printed here.`,
		Example: `  gopccl plugins check --config run.yaml
  gopccl plugins check --config run.yaml moonshot
  gopccl plugins check ./my-solver
  gopccl plugins check --kind quantizer ./absmax
  gopccl plugins check --no-mtls python3 plugins/python/solver.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log := newLogger(c, cmd.ErrOrStderr(), terminal(cmd.ErrOrStderr()))
			if c.Log.Level == "info" { // what happens to the plugin is part of the result
				log = slog.New(slog.DiscardHandler)
			}
			list := c.Plugins
			if len(args) > 0 {
				list = nil
				for _, p := range c.Plugins {
					if p.Name == args[0] && len(args) == 1 {
						list = []conf.Plugin{p}
					}
				}
				if list == nil {
					list = []conf.Plugin{{Name: args[0], Kind: kind, Command: args[0], Args: args[1:], MTLS: !insecure}}
				}
			}
			if len(list) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no plugins are configured")
				return nil
			}
			failures := 0
			for _, p := range list {
				n, err := checkPlugin(cmd, p, log)
				if err != nil {
					return err
				}
				failures += n
			}
			if failures > 0 {
				return fmt.Errorf("%d checks failed", failures)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&insecure, "no-mtls", false, "the executable does not support mutual TLS")
	cmd.Flags().StringVar(&kind, "kind", "solver", "what the executable is: solver, quantizer or backend")
	cmd.Flags().SetInterspersed(false) // the plugin's own flags follow its name
	return cmd
}

// checkLimit bounds the checks of one plugin.
const checkLimit = 5 * time.Minute

func checkPlugin(cmd *cobra.Command, p conf.Plugin, log *slog.Logger) (failures int, err error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), checkLimit)
	defer cancel()
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s (%s)\n", p.Name, p.Kind)
	report := func(r host.Result) {
		switch {
		case r.Err != nil:
			failures++
			fmt.Fprintf(out, "  FAIL  %s: %v\n", r.Name, r.Err)
		case r.Detail != "":
			fmt.Fprintf(out, "  ok    %s: %s\n", r.Name, r.Detail)
		default:
			fmt.Fprintf(out, "  ok    %s\n", r.Name)
		}
	}
	switch host.Kind(p.Kind) {
	case host.Solver:
		s, err := host.StartSolver(pluginSpec(p, log), nil)
		if err != nil {
			return 0, err
		}
		defer s.Close()
		host.CheckSolver(ctx, s, report)
	case host.Backend:
		builtIn, _, err := backend.Select("cpu_generic")
		if err != nil {
			return 0, err
		}
		b, err := host.StartBackend(pluginSpec(p, log), builtIn)
		if err != nil {
			return 0, err
		}
		defer b.Close()
		host.CheckBackend(ctx, b, builtIn, report)
	case host.Quantizer:
		q, err := host.StartQuantizer(pluginSpec(p, log))
		if errors.Is(err, errs.InvalidConfig) {
			return 0, err
		} else if err != nil {
			report(host.Result{Name: "starts", Err: err})
			return failures, nil
		}
		defer q.Close()
		report(host.Result{Name: "starts"})
		host.CheckQuantizer(q, report)
	}
	return failures, nil
}

// reloadOnSignal calls reload at every signal that asks for it (SIGHUP; none on
// Windows) until stop is called.
func reloadOnSignal(reload func()) (stop func()) { return onSignals(reloadSignals, reload) }
