package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/demo"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/examples/trainers"
)

const demoPeer = "demo-peer"

func newDemoCmd() *cobra.Command {
	var cfg demo.Config
	inner := trainers.DefaultOptions().Inner
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Train a small language model with processes that join and die",
		Long: `Run a master and 4 peer processes on this machine. They train a character-level
language model on Newton's "Opticks" with DiLoCo. One peer is killed in the
middle of an all-reduce, two more join. The loss falls on, and after every step
all peers hold the same bits.

Shows the progress, ends with a table, and leaves a page (one HTML file that
needs no network). Fails if peers ever disagree or the loss does not fall.`,
		Example: `  gopccl demo
  gopccl demo --duration 20s --page story.html
  gopccl demo --set quantize.algorithm=minmax --set peer.pool_size=2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd, cfg, inner) },
	}
	cmd.Flags().DurationVar(&cfg.Duration, "duration", 55*time.Second, "how long to train")
	cmd.Flags().StringVar(&cfg.Page, "page", "gopccl-demo.html", "`FILE` for the page; empty: none")
	cmd.Flags().IntVar(&inner, "inner", inner, "local steps of a peer per step of the shared state")
	return cmd
}

// runDemo runs the demo with inner local steps of a peer per step of the state.
func runDemo(cmd *cobra.Command, cfg demo.Config, inner int) error {
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	if cfg.Duration < time.Second {
		return errs.New(errs.InvalidConfig, "demo", fmt.Errorf("--duration %v is below 1s", cfg.Duration))
	}
	if inner < 1 {
		return errs.New(errs.InvalidConfig, "demo", fmt.Errorf("--inner %d: want at least one local step", inner))
	}
	if cfg.Page != "" { // said now and not after a minute
		if dir, err := os.Stat(filepath.Dir(cfg.Page)); err != nil || !dir.IsDir() {
			return errs.New(errs.InvalidConfig, "demo", fmt.Errorf("--page %s: no such directory", cfg.Page))
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg.Peers, cfg.Joiners = 4, 2
	cfg.Out, cfg.Terminal = cmd.OutOrStdout(), terminal(cmd.OutOrStdout())
	if c.Log.Level == "debug" {
		cfg.Logger = newLogger(c, cmd.ErrOrStderr(), terminal(cmd.ErrOrStderr()))
	}
	cfg.Command = func(master string) *exec.Cmd {
		return exec.Command(self, append(configArgs(cmd), demoPeer, master, strconv.Itoa(inner))...)
	}
	rec, err := demo.Run(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	demo.Summary(cfg.Out, rec, cfg.Page)
	if problems := rec.Verdict(); len(problems) > 0 {
		return errors.New("demo: " + strings.Join(problems, "; "))
	}
	return nil
}

// newDemoPeerCmd returns the command that the demo's peer processes run.
func newDemoPeerCmd() *cobra.Command {
	return &cobra.Command{
		Use:    demoPeer + " MASTER INNER",
		Short:  "Be a peer of a demo: events on standard output, orders on standard input",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			stop, err := startTensorPlugins(c, newLogger(c, cmd.ErrOrStderr(), terminal(cmd.ErrOrStderr())))
			if err != nil {
				return err
			}
			defer stop()
			o := trainers.DefaultOptions()
			o.Master, o.Steps, o.Quantize = args[0], 1<<62, c.Quantization()
			o.Tune = func(p *core.Options) {
				configured := c.PeerOptions(p.Logger)
				configured.Master = p.Master
				configured.Security = core.SecurityOptions{} // the master of the demo has no credential
				*p = configured
			}
			if o.Inner, err = strconv.Atoi(args[1]); err != nil || o.Inner < 1 {
				return fmt.Errorf("%q is not a number of local steps", args[1])
			}
			return demo.Peer(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
