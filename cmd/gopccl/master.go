package main

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

func newMasterCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "master",
		Short: "Run the master of a run, for gopccl and PCCL 1.0.0 peers",
		Long: `Run the master of a run: it holds membership, votes, ring orders and bandwidths
and never sees a tensor. gopccl and PCCL 1.0.0 peers may meet in one run.

It prints where it listens, then one line per membership change and per fault,
and ends at SIGINT or SIGTERM. At SIGUSR1 (not on Windows) it writes the state of
every client and vote to standard error, as peers do for their operations.

With --state it keeps in a directory how far each group has come with its shared
state. Started again with it, it refuses a fresh state where there was a trained one.

With --peers it is one of several masters: one leads, and if it ends, another one goes
on with the run. Each has the same list, its own --self, --state and --listen. Peers are
given the addresses that the masters listen on for them, all of them. With --etcd it is
the same with an etcd cluster in between.

Without a credential it has no authentication: run it where only your peers can
reach it. With one (gopccl keys issue --role master) it takes peers of its run
alone, in TLS.`,
		Example: `  gopccl master
  gopccl master --listen 127.0.0.1:0 --log-format json
  gopccl master --listen 0.0.0.0:48148 --set topology.solver=exact
  gopccl master --state /var/lib/gopccl
  gopccl master --state /var/lib/gopccl --peers a:48147,b:48147,c:48147 --self a:48147`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			defer surviveBrokenPipes()()
			lines := newMasterLog(cmd, c)
			defer lines.Close(time.Second)
			log := newLogger(c, lines, terminal(cmd.OutOrStdout()))
			rings, err := newRingSolver(c, log)
			if err != nil {
				return err
			}
			defer rings.Close()
			opt := c.MasterOptions(log)
			opt.RingSolver = rings.solver()
			others, err := joinMasters(c, &opt)
			if err != nil {
				return err
			}
			defer others()
			for {
				err := runMaster(cmd, &opt, rings, log)
				if opt.Authority == nil || !errors.Is(err, errs.NotLeading) {
					return err
				}
				log.Warn("follows: "+err.Error(), "kind", "masters")
			}
		},
	}
	cmd.AddCommand(newMasterStatusCmd())
	cmd.Flags().String("credential", "", "`FILE` that gopccl keys issue has written: every connection is in TLS")
	cmd.Flags().String("enroll", "", "`DIR` with join tokens (gopccl keys token): who has one gets a credential")
	cmd.Flags().String("state", "", "`DIR` that keeps what outlives the master; one master at a time can have it")
	cmd.Flags().String("peers", "", "all masters of the run, where they talk with each other: `HOST:PORT,...`")
	cmd.Flags().String("self", "", "which of them this one is: `HOST:PORT`")
	cmd.Flags().String("etcd", "", "`URL` of an etcd cluster that says which of several masters leads: http://HOST:2379/PREFIX")
	cmd.Flags().String("listen", "", "`HOST:PORT` to listen on; port 0 lets the system choose (default 0.0.0.0:48148)")
	return cmd
}

// runMaster runs a master until it is told to end, or leads no longer. What an operator
// changes meanwhile is in opt then.
func runMaster(cmd *cobra.Command, opt *core.MasterOptions, rings *ringSolver, log *slog.Logger) error {
	m, err := core.NewMaster(*opt)
	if errors.Is(err, errs.InvalidUsage) {
		return err
	} else if err != nil {
		return errs.New(errs.InvalidConfig, "run master", err)
	}
	defer m.Close()
	defer showInDump(m)()
	defer reloadOnSignal(func() {
		rings.reload(cmd, m, opt)
		if err := m.ReloadSecurity(); err != nil {
			log.Error("keys not taken over: "+err.Error(), "kind", "reload")
		}
	})()
	log.Info("master listens", "kind", "listen", "addr", m.Addr().String())
	if err := m.Run(cmd.Context()); err != nil {
		return err
	}
	log.Info("master ended", "kind", "end")
	return nil
}

// newMasterLog returns the writer of a master's log lines, to standard output.
// If they cannot be written any more, standard error hears of it once.
func newMasterLog(cmd *cobra.Command, c *conf.Config) *lineWriter {
	dropped := func(to io.Writer, lines int) {
		newLogger(c, to, terminal(cmd.OutOrStdout())).Warn("log lines were dropped", "kind", "log", "lines", lines)
	}
	failed := func(err error) {
		newLogger(c, cmd.ErrOrStderr(), terminal(cmd.ErrOrStderr())).Warn("the log cannot be written any more; the master continues: "+err.Error(), "kind", "log")
	}
	return newLineWriter(cmd.OutOrStdout(), 4096, dropped, failed)
}
