package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
)

const benchPeer = "bench-peer"

// newBenchCmd returns the command that holds the measurements.
func newBenchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure collectives, shared state and hashing",
		Long: `Measure collectives, shared state and hashing on this machine. Peers are processes
of their own, the master runs in the measuring process, all on 127.0.0.1.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchAllReduceCmd(), newBenchCollectiveCmd(), newBenchSyncCmd(), newBenchHashCmd(), newBenchTopologyCmd(), newBenchPlanningCmd(), newBenchParkCmd(), newBenchPostCmd(), newBenchIdleCmd(), newBenchStartCmd(), newBenchPeerCmd())
	return cmd
}

// benchFlags are common to all measurements.
type benchFlags struct {
	worlds, sizes, json string
	rounds              int
	limit               time.Duration
}

func (f *benchFlags) add(cmd *cobra.Command, worlds, sizes string, rounds int) {
	if worlds != "" {
		cmd.Flags().StringVar(&f.worlds, "world", worlds, "numbers of peers, comma separated")
		cmd.Flags().DurationVar(&f.limit, "limit", 10*time.Minute, "give up on a world after this time")
	}
	cmd.Flags().StringVar(&f.sizes, "bytes", sizes, "buffer sizes, comma separated; KB, MB, GB, KiB, MiB, GiB are understood")
	cmd.Flags().IntVar(&f.rounds, "rounds", rounds, "timed rounds, after one that warms up")
	cmd.Flags().StringVar(&f.json, "json", "", "write one JSON object a line to `FILE`, - for standard output, instead of a table")
}

func usageError(format string, args ...any) error {
	return errs.New(errs.InvalidConfig, "bench", fmt.Errorf(format, args...))
}

// lists reads --world, --bytes and --rounds.
func (f *benchFlags) lists(leastWorld int) (worlds, sizes []int, err error) {
	for _, s := range strings.Split(f.worlds, ",") {
		if f.worlds == "" {
			break
		}
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < leastWorld || n > 1024 {
			return nil, nil, usageError("--world %q: want numbers from %d to 1024", f.worlds, leastWorld)
		}
		worlds = append(worlds, n)
	}
	for _, s := range strings.Split(f.sizes, ",") {
		n, err := parseBytes(strings.TrimSpace(s))
		if err != nil {
			return nil, nil, err
		}
		sizes = append(sizes, n)
	}
	if f.rounds < 1 || f.rounds > 100000 {
		return nil, nil, usageError("--rounds %d: want 1 to 100000", f.rounds)
	}
	return worlds, sizes, nil
}

// parseBytes reads a size such as 400000, 4KiB or 64MB.
func parseBytes(s string) (int, error) {
	digits, unit := s, 1.0
	for _, u := range []struct {
		name string
		unit float64
	}{
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
	} {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.unit
			break
		}
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(v*unit >= 1) || v*unit > 1<<40 {
		return 0, usageError("--bytes %q: want sizes like 400000, 4KiB or 64MB", s)
	}
	return int(math.Round(v * unit)), nil
}

// output writes results as JSON lines or as a table.
type output struct {
	json  *json.Encoder
	table *tabwriter.Writer
	close func() error
}

// open chooses where results go. The header names the columns of the table.
func (f *benchFlags) open(cmd *cobra.Command, header ...string) (*output, error) {
	o := &output{close: func() error { return nil }}
	switch f.json {
	case "":
		o.table = tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
		o.close = o.table.Flush
		o.row(header...)
	case "-":
		o.json = json.NewEncoder(cmd.OutOrStdout())
	default:
		file, err := os.Create(f.json)
		if err != nil {
			return nil, err
		}
		o.json, o.close = json.NewEncoder(file), file.Close
	}
	return o, nil
}

// put writes one result: the value as JSON, or the cells as a row.
func (o *output) put(value any, cells ...string) error {
	if o.json != nil {
		return o.json.Encode(value)
	}
	return o.row(cells...)
}

func (o *output) row(cells ...string) error {
	_, err := io.WriteString(o.table, strings.Join(cells, "\t")+"\t\n")
	return err
}

func seconds(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.0f us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.2f ms", s*1e3)
	}
	return fmt.Sprintf("%.3f s", s)
}

// benchWorld is the part of a world that does not depend on its size.
func benchWorld(cmd *cobra.Command, limit time.Duration) (bench.World, error) {
	c, err := loadConfig(cmd)
	if err != nil {
		return bench.World{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return bench.World{}, err
	}
	o := c.PeerOptions(nil)
	return bench.World{
		Peer:    bench.PeerConfig{PoolSize: o.PoolSize, FrameBytes: o.FrameBytes, EagerBytes: o.EagerBytes, Backend: o.Backend, Congestion: o.Congestion, Threads: o.Threads, Affinity: o.Affinity, Hasher: o.Hash.Hasher},
		Limit:   limit,
		Command: func(master string) *exec.Cmd { return exec.Command(self, "bench", benchPeer, master) },
	}, nil
}

// reduceBench is what the flags of gopccl bench allreduce say.
type reduceBench struct {
	benchFlags
	dtype, algorithm, wire, frame string
	pool, concurrent              int
	inPlace, secure               bool
}

func newBenchAllReduceCmd() *cobra.Command {
	var b reduceBench
	cmd := &cobra.Command{
		Use:   "allreduce",
		Short: "Time all-reduces between processes",
		Long: `Time all-reduces (sum) between processes. A first round warms up and is verified;
before every timed round the peers meet in a tiny all-reduce. The time of a round
is that of its slowest peer. The processor time is that of all peers in the timed
rounds, by peer and by 10^9 bytes of their buffers. MB/s is what a peer contributes
by the median time, rx+tx Gbit/s all that it sends and receives, as PCCL's report
counts them.`,
		Example: `  gopccl bench allreduce --world 2,4 --bytes 4KiB,400000,64MiB
  gopccl bench allreduce --world 4 --bytes 64MiB --quantize minmax --json -
  gopccl bench allreduce --world 4 --bytes 64MiB --quantize blocks   # int4
  gopccl bench allreduce --bytes 64MiB --secure                    # in TLS
  gopccl bench allreduce --bytes 1MiB --concurrent 8 --pool 4 --rounds 20`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	b.add(cmd, "2,4", "4KiB,400000,64MiB", 5)
	fl := cmd.Flags()
	fl.StringVar(&b.dtype, "dtype", "float32", "element type")
	fl.StringVar(&b.algorithm, "quantize", "none", "quantizer: "+strings.Join(quant.Names(), ", "))
	fl.StringVar(&b.wire, "wire", "", "element type on the wire if quantized (default: the narrowest that the quantizer has)")
	fl.IntVar(&b.pool, "pool", 1, "connections to the next peer")
	fl.IntVar(&b.concurrent, "concurrent", 1, "all-reduces in flight at a time, each of --bytes")
	fl.StringVar(&b.frame, "frame-bytes", "", "largest payload of a data frame (default: data.frame_bytes)")
	fl.BoolVar(&b.inPlace, "in-place", false, "reduce in place")
	fl.BoolVar(&b.secure, "secure", false, "every connection in TLS, with credentials that are made for the run")
	return cmd
}

// run measures all buffer sizes in one world after the other.
func (b *reduceBench) run(cmd *cobra.Command) (err error) {
	worlds, sizes, err := b.lists(2)
	if err != nil {
		return err
	}
	w, err := benchWorld(cmd, b.limit)
	if err != nil {
		return err
	}
	w.Secure = b.secure
	if cmd.Flags().Changed("pool") {
		w.Peer.PoolSize = b.pool
	}
	if b.frame != "" {
		if w.Peer.FrameBytes, err = parseBytes(b.frame); err != nil {
			return usageError("--frame-bytes: %w", err)
		}
	}
	if b.concurrent < 1 || cmd.Flags().Changed("pool") && b.pool < 1 {
		return usageError("--concurrent and --pool are at least 1")
	}
	jobs, err := b.jobs(worlds, sizes)
	if err != nil {
		return err
	}
	out, err := b.open(cmd, "world", "bytes", "dtype", "quantize", "median", "min", "max", "MB/s", "rx+tx Gbit/s", "cpu s/GB", "rx bytes", "tx bytes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	for _, size := range worlds {
		w.Size = size
		if err := w.AllReduce(cmd.Context(), jobs, func(r bench.Result) error {
			return out.put(r, strconv.Itoa(r.World), strconv.Itoa(r.Bytes), r.DType, r.Quantize+prefixed(" ", r.Wire),
				seconds(r.Median), seconds(r.Min), seconds(r.Max), fmt.Sprintf("%.1f", r.Contribute), fmt.Sprintf("%.3f", r.Network),
				fmt.Sprintf("%.2f", r.CPUPerGB), fmt.Sprint(r.Rx), fmt.Sprint(r.Tx))
		}); err != nil {
			return err
		}
	}
	return nil
}

// jobs returns the all-reduces that a world measures, one for each buffer size.
// What a quantizer would refuse in any of the worlds is refused here.
func (b *reduceBench) jobs(worlds, sizes []int) (jobs []bench.Reduction, err error) {
	job := bench.Reduction{Rounds: b.rounds, Concurrent: b.concurrent, InPlace: b.inPlace}
	if job.DType, err = dtype.ParseType(b.dtype); err != nil {
		return nil, usageError("--dtype: %w", err)
	}
	q, z, err := quantization(b.algorithm, b.wire, job.DType)
	if err != nil {
		return nil, err
	}
	job.Quantize = z
	for _, n := range sizes {
		if job.Count = n / job.DType.Size(); job.Count < 1 {
			return nil, usageError("--bytes %d is less than one %v", n, job.DType)
		}
		for _, world := range worlds {
			if q == nil {
				continue
			}
			if err := quant.Check(q, job.DType, job.Quantize.Type, dtype.Sum, job.Count/world, true); err != nil {
				return nil, usageError("%d bytes among %d peers: %w", n, world, err)
			}
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

// quantization returns what --quantize and --wire say for elements of type t; a nil
// quantizer is none.
func quantization(algorithm, wire string, t dtype.Type) (q quant.Quantizer, z core.Quantize, err error) {
	if q, err = quant.Lookup(algorithm); err != nil {
		return nil, z, usageError("--quantize: %w; there are %s", err, strings.Join(quant.Names(), ", "))
	}
	z = core.Quantize{Algorithm: algorithm, Type: dtype.Uint8}
	if wire != "" {
		if z.Type, err = dtype.ParseWireType(wire); err != nil {
			return nil, z, usageError("--wire: %w", err)
		}
	} else if q != nil {
		if w, ok := quant.Narrowest(q, t, dtype.Sum); ok {
			z.Type = w // else Check says why there is none
		}
	}
	return q, z, nil
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func newBenchSyncCmd() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Time shared state synchronisation between processes",
		Long: `Time shared state synchronisation between processes: once with one outdated peer
that gets the state from the others, once with equal peers, where only hashes
travel. A first round warms up; the content is verified in every round.`,
		Example: `  gopccl bench sync --world 3 --bytes 64MiB
  gopccl bench sync --world 4,8 --bytes 1MiB,256MiB --json sync.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			worlds, sizes, err := f.lists(3)
			if err != nil {
				return err
			}
			w, err := benchWorld(cmd, f.limit)
			if err != nil {
				return err
			}
			out, err := f.open(cmd, "world", "bytes", "outdated", "median", "min", "max", "GB/s", "rx bytes", "tx bytes")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, out.close()) }()
			for _, size := range worlds {
				w.Size = size
				for _, n := range sizes {
					for _, outdated := range []bool{true, false} {
						r, err := w.Sync(cmd.Context(), bench.Transfer{Bytes: n, Outdated: outdated, Rounds: f.rounds})
						if err != nil {
							return err
						}
						if err := out.put(r, strconv.Itoa(r.World), strconv.Itoa(r.Bytes), strconv.Itoa(r.Outdated),
							seconds(r.Median), seconds(r.Min), seconds(r.Max), fmt.Sprintf("%.3f", r.Rate), fmt.Sprint(r.Rx), fmt.Sprint(r.Tx)); err != nil {
							return err
						}
					}
				}
			}
			return nil
		},
	}
	f.add(cmd, "3", "64MiB", 5)
	return cmd
}

func newBenchHashCmd() *cobra.Command {
	var f benchFlags
	var name string
	cmd := &cobra.Command{
		Use:   "hash",
		Short: "Time the hashes of shared state",
		Long: `Time the hashes of shared state on all cores of this machine, next to reading the
same bytes ("read").`,
		Example: `  gopccl bench hash --bytes 1GiB
  gopccl bench hash --hasher cpu_generic --json -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			_, sizes, err := f.lists(0)
			if err != nil {
				return err
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			h, _, err := digest.Select(cmp.Or(name, c.Peer.Hasher))
			if err != nil {
				return usageError("--hasher: %w", err)
			}
			out, err := f.open(cmd, "hash", "hasher", "bytes", "median", "GB/s")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, out.close()) }()
			for _, n := range sizes {
				if err := bench.Hash(cmd.Context(), h, n, f.rounds, func(r bench.HashResult) error {
					return out.put(r, r.Hash, dash(r.Hasher), strconv.Itoa(r.Bytes), seconds(r.Median), fmt.Sprintf("%.2f", r.Rate))
				}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f.add(cmd, "", "256MiB", 5)
	cmd.Flags().StringVar(&name, "hasher", "", "what computes them: auto, "+strings.Join(digest.Names(), ", ")+" (default: peer.hasher)")
	return cmd
}

// newBenchPeerCmd returns the command that the peer processes of a measurement run.
func newBenchPeerCmd() *cobra.Command {
	return &cobra.Command{
		Use:    benchPeer + " MASTER",
		Short:  "Be a peer of a measurement: the order on standard input, reports on standard output",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.Peer(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
