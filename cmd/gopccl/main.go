// Command gopccl runs a master, shows gopccl at work, measures it and explains
// its configuration. See `gopccl help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core/errs"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the command ran and failed
	exitUsage  = 2 // wrong arguments or configuration; nothing was done
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), interrupts...)
	quiet := dumpOnSignal(os.Stderr)
	code := execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	quiet()
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRootCmd()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	begun := false
	root.PersistentPreRun = func(*cobra.Command, []string) { begun = true }
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case !begun:
		fmt.Fprintf(errOut, "gopccl: %v\nTry '%s --help'.\n", err, cmd.CommandPath())
		return exitUsage
	}
	text := err.Error()
	if !strings.HasPrefix(text, "gopccl: ") {
		text = "gopccl: " + text
	}
	fmt.Fprintln(errOut, text)
	if errors.Is(err, errs.InvalidConfig) {
		return exitUsage
	}
	return exitFailed
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "gopccl",
		Short: "Fault-tolerant collectives and shared state over the internet",
		Long: `gopccl lets trainers all-reduce and share state while peers join, leave and die.
It speaks the wire protocol of PCCL 1.0.0: one master serves peers of both.

Trainers embed the Go package github.com/gopccl/gopccl/core; this program runs
the master they meet at.`,
		Example: `  gopccl demo                            # see it work, on this machine
  gopccl master --listen 0.0.0.0:48148   # the master of a run
  gopccl bench allreduce --world 2,4     # measure it
  gopccl config explain                  # every setting and where it comes from`,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	addConfigFlags(root)
	root.AddCommand(newMasterCmd(), newDemoCmd(), newDemoPeerCmd(), newBenchCmd(), newTopologyCmd(), newConfigCmd(), newKeysCmd(), newPluginsCmd(), newVerifyCmd(), newVersionCmd())
	return root
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s does not take an argument %q", cmd.CommandPath(), args[0])
	}
	return nil
}
