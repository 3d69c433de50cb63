// Package world runs a master and trainers as real processes on loopback, or in
// the hosts of a network, for tests that attack them: trainers whose every result is compared with a model
// and with each other's, relays that cut links, and a crew that starts, kills
// and stops them and keeps the books. A program that uses it calls Serve first.
package world

import (
	"context"
	"errors"
	"fmt"
	"os"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core/errs"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
	"github.com/gopccl/gopccl/tests/internal/process"
)

const childEnv = "GOPCCL_WORLD_ORDER"

// Serve does what the order says and ends the process, if this one is a process
// of a crew; otherwise it returns at once.
func Serve() {
	var o Order
	ordered, err := process.Ordered(childEnv, &o)
	if !ordered {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	say := process.Reporter[Report]()
	roles := map[string]func(context.Context, Order, func(Report)) error{
		"trainer": runTrainer,
		"master":  runMaster,
	}
	ctx := process.Context()
	if err := roles[o.Role](ctx, o, say); err != nil && ctx.Err() == nil {
		say(Report{Event: "error", Wrong: errors.Is(err, errWrong), Code: errs.CodeOf(err).Error(), Text: err.Error()})
		os.Exit(1)
	}
	say(Report{Event: "done"})
	os.Exit(0)
}
