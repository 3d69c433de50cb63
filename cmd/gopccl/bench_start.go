package main

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
)

func newBenchStartCmd() *cobra.Command {
	var f benchFlags
	var worlds string
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Measure the way to the first all-reduce, in plaintext and in TLS",
		Long: `Measure the time from the first call of the peers to the end of their first
all-reduce, of four bytes: they connect with a master that runs, form a world and
connect with each other. Starts in plaintext and in TLS take turns, all in this
process, with credentials that are made for the run. "more" is the median of the
differences.`,
		Example: `  gopccl bench start --world 2,4 --rounds 30
  gopccl bench start --json -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			list, err := numbers("world", worlds)
			if err != nil {
				return err
			}
			for _, n := range list {
				if n < 2 {
					return usageError("--world %d: want 2 or more", n)
				}
			}
			if f.rounds < 1 || f.rounds > 10000 {
				return usageError("--rounds %d: want 1 to 10000", f.rounds)
			}
			out, err := f.open(cmd, "world", "rounds", "plaintext", "TLS", "more")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, out.close()) }()
			for _, n := range list {
				r, err := bench.Start(cmd.Context(), n, f.rounds)
				if err != nil {
					return err
				}
				if err := out.put(r, strconv.Itoa(r.World), strconv.Itoa(r.Rounds), seconds(r.Plain), seconds(r.TLS), seconds(r.More)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&worlds, "world", "2", "numbers of peers, comma separated")
	fl.IntVar(&f.rounds, "rounds", 20, "starts of each kind, after one that warms up")
	fl.StringVar(&f.json, "json", "", "write one JSON object a line to `FILE`, - for standard output, instead of a table")
	return cmd
}
