package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
)

// numbers reads a list of numbers from 0 to 1024.
func numbers(flag, list string) ([]int, error) {
	var all []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > 1024 {
			return nil, usageError("--%s %q: want numbers from 0 to 1024", flag, list)
		}
		all = append(all, n)
	}
	return all, nil
}

func newBenchPostCmd() *cobra.Command {
	var f benchFlags
	var presets, frequencies, batches, bursts string
	cmd := &cobra.Command{
		Use:   "post",
		Short: "Time the posting of all-reduces",
		Long: `Time the posting of all-reduces, in a world of two peers in this process: how long
a trainer's thread is held up by a post, when the data phase begins (after the
vote of both), and when the verdict is there. Settings take turns. A frequency or
batch of 0 is that of the preset.`,
		Example: `  gopccl bench post
  gopccl bench post --preset balanced --append-frequency 1,8,32 --append-batch 8,16,64 --burst 64`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			_, sizes, err := f.lists(0)
			if err != nil {
				return err
			}
			var settings []bench.PostSettings
			lists := map[string][]int{}
			for flag, list := range map[string]string{"append-frequency": frequencies, "append-batch": batches, "burst": bursts} {
				if lists[flag], err = numbers(flag, list); err != nil {
					return err
				}
			}
			for preset := range strings.SplitSeq(presets, ",") {
				if preset = strings.TrimSpace(preset); preset != "latency" && preset != "balanced" && preset != "throughput" {
					return usageError("--preset %q: want latency, balanced or throughput", preset)
				}
				for _, size := range sizes {
					for _, burst := range lists["burst"] {
						for _, frequency := range lists["append-frequency"] {
							for _, batch := range lists["append-batch"] {
								settings = append(settings, bench.PostSettings{
									Preset: preset, Frequency: frequency, Batch: batch, Burst: max(1, burst), Bytes: size, Rounds: f.rounds,
								})
							}
						}
					}
				}
			}
			out, err := f.open(cmd, "preset", "frequency", "batch", "burst", "bytes", "post p50 us", "p99", "start p50 us", "p99", "verdict p50 us", "burst p50 us")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, out.close()) }()
			return bench.Post(cmd.Context(), settings, func(r bench.PostResult) error {
				if out.json != nil {
					return out.json.Encode(r)
				}
				us := func(v float64) string { return fmt.Sprintf("%.2f", v) }
				return out.row(r.Preset, strconv.Itoa(r.Frequency), strconv.Itoa(r.Batch), strconv.Itoa(r.Burst), strconv.Itoa(r.Bytes),
					us(r.Post50), us(r.Post99), us(r.Start50), us(r.Start99), us(r.End50), us(r.Burst50))
			})
		},
	}
	f.add(cmd, "", "4KiB", 400)
	fl := cmd.Flags()
	fl.StringVar(&presets, "preset", "latency,balanced,throughput", "presets, comma separated")
	fl.StringVar(&frequencies, "append-frequency", "0", "frequencies, comma separated")
	fl.StringVar(&batches, "append-batch", "0", "batches, comma separated")
	fl.StringVar(&bursts, "burst", "1,16", "all-reduces that are posted one after the other, comma separated")
	return cmd
}
