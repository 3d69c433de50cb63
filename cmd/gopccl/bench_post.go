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

// postBench is what the flags of gopccl bench post say.
type postBench struct {
	benchFlags
	presets, frequencies, batches, bursts string
}

func newBenchPostCmd() *cobra.Command {
	var b postBench
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
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	b.add(cmd, "", "4KiB", 400)
	fl := cmd.Flags()
	fl.StringVar(&b.presets, "preset", "latency,balanced,throughput", "presets, comma separated")
	fl.StringVar(&b.frequencies, "append-frequency", "0", "frequencies, comma separated")
	fl.StringVar(&b.batches, "append-batch", "0", "batches, comma separated")
	fl.StringVar(&b.bursts, "burst", "1,16", "all-reduces that are posted one after the other, comma separated")
	return cmd
}

func (b *postBench) run(cmd *cobra.Command) (err error) {
	settings, err := b.settings()
	if err != nil {
		return err
	}
	out, err := b.open(cmd, "preset", "frequency", "batch", "burst", "bytes", "post p50 us", "p99", "start p50 us", "p99", "verdict p50 us", "burst p50 us")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	return bench.Post(cmd.Context(), settings, func(r bench.PostResult) error {
		us := func(v float64) string { return fmt.Sprintf("%.2f", v) }
		return out.put(r, r.Preset, strconv.Itoa(r.Frequency), strconv.Itoa(r.Batch), strconv.Itoa(r.Burst), strconv.Itoa(r.Bytes),
			us(r.Post50), us(r.Post99), us(r.Start50), us(r.Start99), us(r.End50), us(r.Burst50))
	})
}

// settings returns all combinations of what the flags list.
func (b *postBench) settings() (all []bench.PostSettings, err error) {
	_, sizes, err := b.lists(0)
	if err != nil {
		return nil, err
	}
	frequencies, err := numbers("append-frequency", b.frequencies)
	if err != nil {
		return nil, err
	}
	batches, err := numbers("append-batch", b.batches)
	if err != nil {
		return nil, err
	}
	bursts, err := numbers("burst", b.bursts)
	if err != nil {
		return nil, err
	}
	for preset := range strings.SplitSeq(b.presets, ",") {
		if preset = strings.TrimSpace(preset); preset != "latency" && preset != "balanced" && preset != "throughput" {
			return nil, usageError("--preset %q: want latency, balanced or throughput", preset)
		}
		for _, size := range sizes {
			for _, burst := range bursts {
				for _, frequency := range frequencies {
					for _, batch := range batches {
						all = append(all, bench.PostSettings{
							Preset: preset, Frequency: frequency, Batch: batch, Burst: max(1, burst), Bytes: size, Rounds: b.rounds,
						})
					}
				}
			}
		}
	}
	return all, nil
}
