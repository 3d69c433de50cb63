// Command bench times all-reduces of gopccl, of the original PCCL 1.0.0, of
// PyTorch's Gloo and of bare TCP that moves the same bytes around the same ring,
// in turns on this machine, and prints one table with medians and ratios. The other
// collectives, which the original does not have, are timed beside Gloo and bare TCP. It
// sets up what it compares with: the original library through
// tools/ci/original.sh, PyTorch in a virtual environment (some GB, once).
//
//	go run ./tests/bench                              # some minutes
//	go run ./tests/bench -full                        # worlds 2, 4, 8, 4 KiB to 256 MiB, 1 to 16 at a time
//	go run ./tests/bench -world 2 -bytes 64MiB -turns 5
//	go run ./tests/bench -hash=false -contestants tls -world 2,4 -bytes 400000,64MiB
//	go run ./tests/bench -hash=false -contestants "" -bytes 400000 -rival "GOPCCL_TEST_SECURITY=require /tmp/other-build"    # another build, in TLS
//	go run ./tests/bench -hash=false -contestants gloo,floor -pattern all-gather,barrier
//	go run ./tests/bench -json docs/benchmarks.json -markdown docs/benchmarks.md -svg docs/benchmarks.svg -readme README.md
//	go run ./tests/bench -futex -bytes 4KiB,4MiB      # wake-ups and variance
//	go run ./tests/bench -from docs/benchmarks.json -markdown docs/benchmarks.md    # writes, measures nothing
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	_ "github.com/gopccl/gopccl/backends/defaults"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/process"
)

// roles are the bodies of child processes, by first argument.
var roles = map[string]func(ctx context.Context, args []string) error{
	masterRole: runMaster, peerRole: runPeer, floorRole: runFloorPeer, meshRole: runMeshPeer,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](ctx, os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.worlds, "world", "", "numbers of peers, comma separated (default: a selection)")
	flag.StringVar(&o.sizes, "bytes", "", "buffer sizes in bytes, KiB or MiB, comma separated (default: a selection)")
	flag.StringVar(&o.patterns, "pattern", "", "collectives, comma separated, or all (default: all without -bytes, all-reduce with it)")
	flag.StringVar(&o.quantize, "quantize", "none", "none, minmax or zeropoint, comma separated; with -bytes")
	flag.StringVar(&o.concurrent, "concurrent", "1", "operations in flight, comma separated; with -bytes")
	flag.StringVar(&o.contestants, "contestants", "pccl,gloo,floor", "whom to compare with, of pccl, gloo, gloo-groups (a process group for each operation in flight), floor and tls (gopccl with credentials)")
	flag.StringVar(&o.rival, "rival", "", "commands (`ENV=VALUE.. PROGRAM`, separated by ;) that run other builds of this program, measured as well; in TLS with "+issued.Env+"=require")
	flag.BoolVar(&o.full, "full", false, "measure everything, for about an hour")
	flag.BoolVar(&o.hash, "hash", true, "measure the hash of shared state, too")
	flag.BoolVar(&o.futex, "futex", false, "measure calls of futex and the spread of times instead (Linux, with perf)")
	flag.IntVar(&o.turns, "turns", 6, "turns of each contestant")
	flag.IntVar(&o.sessions, "sessions", 3, "how often the processes are started; the turns are shared among the starts")
	flag.DurationVar(&o.turn, "turn", 200*time.Millisecond, "how long a turn should last")
	flag.StringVar(&o.from, "from", "", "measure nothing, read the results from `FILE`")
	flag.BoolVar(&o.add, "add", false, "keep what the -json file has and this run does not measure")
	flag.StringVar(&o.json, "json", "", "write the results to `FILE`")
	flag.StringVar(&o.markdown, "markdown", "", "write tables to `FILE`")
	flag.StringVar(&o.svg, "svg", "", "write a plot to `FILE`")
	flag.StringVar(&o.readme, "readme", "", "write the short table between the markers of `FILE`")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	worlds, sizes, patterns, quantize, concurrent string
	contestants, rival                            string
	full, hash, add, futex                        bool
	turns, sessions                               int
	turn                                          time.Duration
	from, json, markdown, svg, readme             string
}

// job is one thing to measure: sums of float32, Concurrent at a time, or another
// collective.
type job struct {
	World int `json:"world"`
	// Bytes of one buffer; of other collectives, of that with the blocks of all.
	Bytes      int    `json:"bytes"`
	Quantize   string `json:"quantize"`
	Concurrent int    `json:"concurrent"`
	Pattern    string `json:"pattern,omitempty"` // empty: all-reduce
}

// sums is the job of all-reduces.
func sums(world, bytes int, quantize string, concurrent int) job {
	return job{World: world, Bytes: bytes, Quantize: quantize, Concurrent: concurrent}
}

func (j job) String() string {
	if j.Pattern == barrier {
		return fmt.Sprintf("world %d, barrier", j.World)
	}
	s := fmt.Sprintf("world %d, %s", j.World, sizeName(j.Bytes))
	if j.Pattern != "" {
		s = fmt.Sprintf("world %d, %s, %s", j.World, j.Pattern, sizeName(j.Bytes))
	}
	if j.Quantize != "none" {
		s += ", " + j.Quantize + " uint8"
	}
	if j.Concurrent > 1 {
		s += fmt.Sprintf(", %d at a time", j.Concurrent)
	}
	return s
}

// jobs are what the options ask for, ordered by world.
func (o options) jobs() (jobs []job, err error) {
	if o.turns < 1 || o.sessions < 1 || o.turn <= 0 {
		return nil, errors.New("-turns, -sessions and -turn are positive")
	}
	worlds, sizes := []int{2, 4}, []int{4 << 10, 64 << 10, 400000, 4 << 20, 64 << 20}
	chosen := o.sizes != ""
	if o.full {
		worlds = append(worlds, 8)
		sizes = append(sizes, 1<<20, 16<<20, 256<<20)
	}
	if o.worlds != "" {
		if worlds, err = numbers(o.worlds, 2); err != nil {
			return nil, fmt.Errorf("-world: %w", err)
		}
	}
	if o.sizes != "" {
		sizes = nil
		for s := range strings.SplitSeq(o.sizes, ",") {
			n, err := parseSize(s)
			if err != nil {
				return nil, err
			}
			sizes = append(sizes, n)
		}
	}
	concurrent, err := numbers(o.concurrent, 1)
	if err != nil {
		return nil, fmt.Errorf("-concurrent: %w", err)
	}
	patterns, err := o.chosenPatterns()
	if err != nil {
		return nil, err
	}
	for _, w := range worlds {
		if len(patterns) > 0 && (w <= 4 || o.worlds != "") {
			jobs = append(jobs, patternJobs(w, patterns, sizes, chosen)...)
		}
		if !o.reduces() {
			continue
		}
		for _, n := range sizes {
			for q := range strings.SplitSeq(o.quantize, ",") {
				if q != "none" && q != "minmax" && q != "zeropoint" {
					return nil, fmt.Errorf("-quantize %q: want none, minmax or zeropoint", q)
				}
				for _, c := range concurrent {
					jobs = append(jobs, sums(w, n, q, c))
				}
			}
		}
		if chosen {
			continue
		}
		for _, q := range []string{"minmax", "zeropoint"} {
			jobs = append(jobs, sums(w, 64<<20, q, 1))
		}
		at := []int{4, 16}
		if o.full {
			at = []int{2, 4, 8, 16}
		}
		for _, c := range at {
			jobs = append(jobs, sums(w, 1<<20, "none", c))
		}
	}
	return jobs, nil
}

func numbers(list string, least int) (ns []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > 1024 {
			return nil, fmt.Errorf("%q: want numbers from %d to 1024", list, least)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func parseSize(s string) (int, error) {
	digits, unit := s, 1
	if d, ok := strings.CutSuffix(s, "KiB"); ok {
		digits, unit = d, 1<<10
	} else if d, ok := strings.CutSuffix(s, "MiB"); ok {
		digits, unit = d, 1<<20
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n*unit < 4 || n > 1<<32 {
		return 0, fmt.Errorf("-bytes %q: want sizes like 400000, 4KiB or 64MiB", s)
	}
	return n * unit / 4 * 4, nil
}

func sizeName(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func run(ctx context.Context, o options) error {
	if o.futex {
		return measureFutexes(ctx, o)
	}
	var res results
	var err error
	if o.from != "" {
		res, err = readResults(o.from)
	} else {
		res, err = measure(ctx, o)
	}
	if err != nil {
		return err
	}
	if o.add {
		old, err := readResults(o.json)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		res = res.onto(old)
	}
	os.Stdout.WriteString(res.markdown())
	return res.write(o)
}

// measure runs every job on every contestant, in turns.
func measure(ctx context.Context, o options) (results, error) {
	res := results{Machine: process.Machine(), Turns: o.turns}
	jobs, err := o.jobs()
	if err != nil {
		return res, err
	}
	all, err := contestants(ctx, o)
	if err != nil {
		return res, err
	}
	for len(jobs) > 0 {
		world := jobs[0].World
		n := 0
		for n < len(jobs) && jobs[n].World == world {
			n++
		}
		cases, err := measureWorld(ctx, o, all, world, jobs[:n])
		if err != nil {
			return res, err
		}
		res.Cases = append(res.Cases, cases...)
		jobs = jobs[n:]
	}
	if o.hash {
		if res.Hash, err = measureHash(ctx); err != nil {
			return res, err
		}
	}
	return res, nil
}

// series is what one contestant measured of one job, turn by turn.
type series struct{ times, roots, cpu []float64 }

// measureWorld starts the processes of all contestants several times, since how
// their memory lies makes a difference for as long as they live, keeps them
// alive beside each other and gives them turns, so that what slows the machine
// down for a while slows all of them.
func measureWorld(ctx context.Context, o options, all []contestant, world int, jobs []job) ([]result, error) {
	measured := make([][]series, len(jobs))
	for k := range measured {
		measured[k] = make([]series, len(all))
	}
	for k := range min(o.sessions, o.turns) {
		turns := o.turns*(k+1)/min(o.sessions, o.turns) - o.turns*k/min(o.sessions, o.turns)
		fmt.Fprintf(os.Stderr, "world %d: processes %d of %d\n", world, k+1, min(o.sessions, o.turns))
		if err := measureSession(ctx, o, all, world, jobs, measured, k, turns); err != nil {
			return nil, err
		}
	}
	var cases []result
	for k, j := range jobs {
		r := result{job: j, Entries: map[string]entry{}}
		ours := measured[k][0]
		for i, c := range all {
			s := measured[k][i]
			if len(s.times) == 0 {
				continue
			}
			e := entry{Median: median(s.times), CPU: median(s.cpu), Root: median(s.roots)}
			if i > 0 {
				e.Ratio, e.CPURatio = ratio(s.times, ours.times), ratio(ours.cpu, s.cpu)
			}
			r.Entries[c.name] = e
		}
		fmt.Fprintln(os.Stderr, r.line(all))
		cases = append(cases, r)
	}
	return cases, nil
}

func measureSession(ctx context.Context, o options, all []contestant, world int, jobs []job, measured [][]series, first, turns int) (err error) {
	sessions := make([]session, len(all))
	defer func() {
		for _, s := range sessions {
			if s != nil {
				err = errors.Join(err, s.close())
			}
		}
	}()
	for k := range all {
		i := (k + first) % len(all)
		if sessions[i], err = all[i].start(ctx, world); err != nil {
			return fmt.Errorf("start %s, world %d: %w", all[i].name, world, err)
		}
	}
	for at, j := range jobs {
		fmt.Fprintf(os.Stderr, "  %v\n", j)
		rounds := make([]int, len(all))
		for turn := range turns {
			for k := range all {
				i := (k + turn + first) % len(all) // who follows whom changes
				c := all[i]
				if !c.can(j) {
					continue
				}
				if rounds[i] == 0 {
					t, err := sessions[i].run(ctx, j, 1)
					if err != nil {
						return fmt.Errorf("%s, %v: %w", c.name, j, err)
					}
					rounds[i] = min(max(1, int(o.turn.Seconds()/max(t.median(), 1e-6))), maxRounds)
				}
				t, err := sessions[i].run(ctx, j, rounds[i])
				if err != nil {
					return fmt.Errorf("%s, %v: %w", c.name, j, err)
				}
				gigabytes := float64(j.Bytes) * float64(j.Concurrent) * float64(rounds[i]) / 1e9
				s := &measured[at][i]
				s.times = append(s.times, t.median())
				if j.Pattern != "" {
					s.roots = append(s.roots, median(t.Root))
				}
				if gigabytes > 0 {
					s.cpu = append(s.cpu, t.CPU/float64(j.World)/gigabytes)
				}
			}
		}
	}
	return nil
}
