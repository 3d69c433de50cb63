package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// collectiveBench is what the flags of gopccl bench collective say.
type collectiveBench struct {
	benchFlags
	kinds, dtype    string
	algorithm, wire string
}

func newBenchCollectiveCmd() *cobra.Command {
	var b collectiveBench
	cmd := &cobra.Command{
		Use:   "collective",
		Short: "Time the other collectives between processes",
		Long: `Time the collectives besides all-reduce between processes. A first round warms up
and is verified; before every timed round the peers meet in a tiny all-reduce. The
time of a round is that of its slowest peer. --bytes is the size of the buffer with
the blocks of all, or of what is broadcast or reduced; MB/s is that size by the
median time.`,
		Example: `  gopccl bench collective --kind all-gather --world 4 --bytes 64MiB
  gopccl bench collective --kind all-gather,reduce-scatter --quantize minmax
  gopccl bench collective --kind broadcast,barrier --world 2,4 --json -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	b.add(cmd, "2,4", "400000,64MiB", 5)
	all := strings.Join(bench.KindNames(), ",")
	cmd.Flags().StringVar(&b.kinds, "kind", all, "what is timed, comma separated")
	cmd.Flags().StringVar(&b.dtype, "dtype", "float32", "element type")
	cmd.Flags().StringVar(&b.algorithm, "quantize", "none", "quantizer of all-gather and reduce-scatter: "+strings.Join(quant.Names(), ", "))
	cmd.Flags().StringVar(&b.wire, "wire", "", "element type on the wire if quantized (default: the narrowest that the quantizer has)")
	return cmd
}

// run measures all kinds and sizes in one world after the other.
func (b *collectiveBench) run(cmd *cobra.Command) (err error) {
	worlds, sizes, err := b.lists(2)
	if err != nil {
		return err
	}
	jobs := make([][]bench.Exchange, len(worlds))
	for i, n := range worlds {
		if jobs[i], err = b.jobs(n, sizes); err != nil {
			return err
		}
	}
	w, err := benchWorld(cmd, b.limit)
	if err != nil {
		return err
	}
	out, err := b.open(cmd, "kind", "world", "bytes", "dtype", "quantize", "median", "min", "max", "MB/s", "rx bytes", "tx bytes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	for i, size := range worlds {
		w.Size = size
		if err := w.Collective(cmd.Context(), jobs[i], func(r bench.ExchangeResult) error {
			return out.put(r, r.Kind, strconv.Itoa(r.World), strconv.Itoa(r.Bytes), r.DType, r.Quantize+prefixed(" ", r.Wire), seconds(r.Median), seconds(r.Min), seconds(r.Max),
				fmt.Sprintf("%.1f", r.Rate), fmt.Sprint(r.Rx), fmt.Sprint(r.Tx))
		}); err != nil {
			return err
		}
	}
	return nil
}

// jobs returns what a world of n peers measures: every kind with every size, whose blocks
// are whole elements.
func (b *collectiveBench) jobs(n int, sizes []int) (jobs []bench.Exchange, err error) {
	job := bench.Exchange{Rounds: b.rounds}
	if job.DType, err = dtype.ParseType(b.dtype); err != nil {
		return nil, usageError("--dtype: %w", err)
	}
	q, z, err := quantization(b.algorithm, b.wire, job.DType)
	if err != nil {
		return nil, err
	}
	job.Quantize = z
	for _, name := range strings.Split(b.kinds, ",") {
		var ok bool
		if job.Kind, ok = bench.ParseKind(strings.TrimSpace(name)); !ok {
			return nil, usageError("--kind %q: want some of %s", name, strings.Join(bench.KindNames(), ", "))
		}
		if q != nil && job.Kind != core.KindAllGather && job.Kind != core.KindReduceScatter {
			return nil, usageError("--quantize: %s cannot be quantized (pass --kind all-gather,reduce-scatter)", name)
		}
		for i, size := range sizes {
			job.Count = size / job.DType.Size()
			if job.Kind != core.KindBroadcast && job.Kind != core.KindReduce {
				job.Count -= job.Count % n
			}
			switch {
			case job.Kind == 0 && i > 0: // a barrier has no size
				continue
			case job.Kind != 0 && job.Count < 1:
				return nil, usageError("--bytes %d is less than one %v for each of %d peers", size, job.DType, n)
			}
			if q != nil {
				if err := quant.Check(q, job.DType, z.Type, dtype.Sum, job.Count/n, true); err != nil {
					return nil, usageError("%d bytes among %d peers: %w", size, n, err)
				}
			}
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}
