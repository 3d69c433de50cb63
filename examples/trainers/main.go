package trainers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/secure"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

// Trainer is one of DDP, DiLoCo and AsyncDiLoCo.
type Trainer func(context.Context, Options) error

// Main reads the command line, runs a trainer until it is done or interrupted,
// and ends the process.
func Main(name string, train Trainer, o Options) {
	os.Exit(execute(name, train, o, os.Args[1:]))
}

func execute(name string, train Trainer, o Options, args []string) int {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	o.Security.Join = secure.Join(os.Getenv("GOPCCL_JOIN"))
	fs.StringVar(&o.Master, "master", o.Master, "`HOST:PORT` of the master")
	fs.Uint64Var(&o.Steps, "steps", o.Steps, "steps of the shared state until the run ends")
	fs.IntVar(&o.MinPeers, "min-peers", o.MinPeers, "wait while fewer peers are there")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of parameters and data order, the same on every peer")
	fs.IntVar(&o.Inner, "inner", o.Inner, "local steps per shared step")
	if name == "diloco" {
		fs.Float64Var(&o.Pace.Share, "share", 0, "choose the local steps so that averaging takes this `SHARE` of the time; 0: -inner stays")
	}
	fs.IntVar(&o.Batch, "batch", o.Batch, "examples per local step")
	fs.StringVar(&o.Checkpoint, "checkpoint", "", "`DIR` to resume from and to write to; one per peer")
	fs.Uint64Var(&o.CheckpointEvery, "checkpoint-every", o.CheckpointEvery, "steps between two checkpoints")
	fs.Uint64Var(&o.LossEvery, "loss-every", o.LossEvery, "steps between two measurements of the validation loss")
	fs.StringVar(&o.Quantize.Algorithm, "quantize", "none", "send averages as small integers, by one of: "+strings.Join(quant.Names(), ", "))
	device := -1
	if name != "ddp" {
		fs.IntVar(&device, "outer-device", device, "`NUMBER` of the CUDA device that takes the outer steps; -1: the processor (same bits)")
	}
	fs.StringVar(&o.Security.File, "credential", os.Getenv("GOPCCL_CREDENTIAL"), "`FILE` of a credential: every connection is in TLS (default: GOPCCL_CREDENTIAL)")
	fs.Func("join", "join `TOKEN`, or @FILE, with which the master grants a credential (default: GOPCCL_JOIN)", func(text string) error {
		o.Security.Join = secure.Join(text)
		return o.Security.Join.Check()
	})
	asJSON := fs.Bool("json", false, "report in JSON, one object a line")
	verbose := fs.Bool("verbose", false, "log what the communicator does to standard error")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if fs.NArg() > 0 || o.Inner < 1 || o.Batch < 1 || o.MinPeers < 1 {
		fmt.Fprintf(os.Stderr, "%s: -inner, -batch and -min-peers are at least 1, and there are no arguments\n", name)
		return 2
	}
	if err := o.quantize(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: -quantize: %v\n", name, err)
		return 2
	}
	o.Report = Lines(os.Stdout, *asJSON)
	if *verbose {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if device >= 0 {
		outer, err := openOuter(device)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			return 1
		}
		defer outer.Close()
		o.Outer = outer
	}
	leaving, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(leaving, stop) // a second signal ends the program at once
	o.Leaving = leaving
	if err := train(context.Background(), o); err != nil && leaving.Err() == nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// quantize chooses the element type of the algorithm that the flags name.
func (o *Options) quantize() error {
	q, err := quant.Lookup(o.Quantize.Algorithm)
	if err != nil {
		return fmt.Errorf("%w; there are %s", err, strings.Join(quant.Names(), ", "))
	}
	if q == nil {
		return nil
	}
	t, ok := quant.Narrowest(q, dtype.Float32, core.Avg)
	if !ok {
		return fmt.Errorf("%s does not average float32", q.Name())
	}
	o.Quantize.Type = t
	return nil
}
