package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
)

func newBenchIdleCmd() *cobra.Command {
	var f benchFlags
	var counts, threads string
	var span time.Duration
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "Measure what communicators cost while they wait",
		Long: `Measure what communicators of one process cost while nothing is reduced: memory,
goroutines, threads and processor time. Each has reduced once; worlds have two
members and their own master in the same process, and exchange heartbeats.`,
		Example: `  gopccl bench idle --communicators 2,20,200
  gopccl bench idle --communicators 20 --threads pinned --span 10s`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			list, err := numbers("communicators", counts)
			if err != nil {
				return err
			}
			if span <= 0 || span > time.Minute {
				return usageError("--span %v: want up to 1m", span)
			}
			if threads != "goroutine" && threads != "pinned" {
				return usageError("--threads %q: want goroutine or pinned", threads)
			}
			out, err := f.open(cmd, "communicators", "threads", "goroutines each", "KiB each", "core each")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, out.close()) }()
			for _, n := range list {
				r, err := bench.Idle(cmd.Context(), max(1, n), threads, span)
				if err != nil {
					return err
				}
				if err := out.put(r, strconv.Itoa(r.Communicators), strconv.Itoa(r.Threads), fmt.Sprintf("%.1f", r.Goroutines),
					fmt.Sprintf("%.0f", r.KiB), fmt.Sprintf("%.3f %%", 100*r.Core)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.json, "json", "", "write one JSON object a line to `FILE`, - for standard output, instead of a table")
	fl.StringVar(&counts, "communicators", "2,20,200", "communicators in the process, comma separated")
	fl.StringVar(&threads, "threads", "goroutine", "goroutine or pinned")
	fl.DurationVar(&span, "span", 5*time.Second, "how long to measure")
	return cmd
}
