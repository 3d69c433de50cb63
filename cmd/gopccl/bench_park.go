package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
)

func newBenchParkCmd() *cobra.Command {
	var f benchFlags
	var gap time.Duration
	cmd := &cobra.Command{
		Use:   "park",
		Short: "Time wake-ups of sleeping threads and goroutines",
		Long: `Time wake-ups: from the call that wakes to the moment when the sleeper runs. The
system's parker (futex, __ulock_wait, WaitOnAddress), the portable one, a channel
and sync.Cond take turns. Having woken the sleeper, the waker keeps computing
or yields its processor.`,
		Example: `  gopccl bench park
  gopccl bench park --rounds 20000 --gap 1ms --json -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if _, _, err := f.lists(0); err != nil {
				return err
			}
			if gap < 0 || gap > time.Second {
				return usageError("--gap %v: want 0 to 1s", gap)
			}
			out, err := f.open(cmd, "sleeper", "waker", "p50 us", "p99 us")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, out.close()) }()
			return bench.Park(f.rounds, gap, func(r bench.ParkResult) error {
				return out.put(r, r.Way, r.Waker, fmt.Sprintf("%.2f", r.P50), fmt.Sprintf("%.2f", r.P99))
			})
		},
	}
	f.add(cmd, "", "1B", 4000)
	_ = cmd.Flags().MarkHidden("bytes")
	cmd.Flags().DurationVar(&gap, "gap", 50*time.Microsecond, "how long the sleeper sleeps at least before it is woken")
	return cmd
}
