// Command topology measures what the order of the ring is worth: peers in
// network namespaces behind rate limits that reproduce a wide-area bandwidth
// matrix, scaled down so that the processor is not the limit. It times all-reduces
// in the ring that is ordered by ids, lets the peers measure their links and
// our master choose the ring, times them again, and compares the speed-up with
// what the matrix predicts.
//
//	go run ./tests/wan/topology
//	go run ./tests/wan/topology -peers gopccl -worlds 12
//	go run ./tests/wan/topology -join
//	go run ./tests/wan/topology -shared
//
// It needs root and the programs ip and tc, and for the original PCCL what
// tools/ci/original.sh sets up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	_ "github.com/gopccl/gopccl/backends/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)

// peerArg makes this program a peer that obeys its standard input.
const peerArg = "peer"

func main() {
	if len(os.Args) > 1 && os.Args[1] == peerArg {
		os.Exit(obey(os.Stdin, os.Stdout))
	}
	var o options
	worlds := flag.String("worlds", "6,8,12", "numbers of peers, comma separated: 3 to 12")
	peers := flag.String("peers", "gopccl,original", "whose peers, comma separated: gopccl, original")
	flag.Float64Var(&o.mbps, "mbps", 40, "rate of the slowest link of the best ring, Mbit/s")
	flag.IntVar(&o.bytes, "bytes", 4<<20, "bytes of an all-reduce")
	flag.IntVar(&o.rounds, "rounds", 3, "timed all-reduces with each ring")
	join := flag.Bool("join", false, "a peer joins a world of 12 that reduces all the time: how long until the new ring is installed")
	shared := flag.Bool("shared", false, "two of four peers behind one uplink: what a ring that leaves it once is worth")
	flag.BoolVar(&o.verbose, "v", false, "print the facts of the master")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *join:
		err = joining(ctx, o)
	case *shared:
		err = sharing(ctx, o)
	default:
		err = speedups(ctx, strings.Split(*worlds, ","), strings.Split(*peers, ","), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "topology:", err)
		os.Exit(1)
	}
}

type options struct {
	mbps          float64
	bytes, rounds int
	verbose       bool
}

// within is how far measured and predicted speed-up may be apart.
const within = 0.15

func speedups(ctx context.Context, worlds, kinds []string, o options) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "peers\tof\tmatrix\tids' ring\tour ring\tbest ring\tids' time\tour time\tspeed-up\tpredicted\tratio\tmeasured in\tlinks off by\tstarts within\t")
	missed := 0
	for _, kind := range kinds {
		for _, w := range worlds {
			n, err := strconv.Atoi(w)
			if err != nil || n < 3 || n > 12 {
				return fmt.Errorf("%q is not a number of peers from 3 to 12", w)
			}
			r, err := speedup(ctx, kind, n, o)
			if err != nil {
				table.Flush()
				return fmt.Errorf("%d %s peers: %w", n, kind, err)
			}
			measured, predicted := r.before.Seconds()/r.after.Seconds(), r.ours/r.ids
			ratio := measured / predicted
			if ratio < 1-within || ratio > 1+within {
				missed++
			}
			fmt.Fprintf(table, "%d\t%s\t%s\t%.1f Mbit/s\t%.1f\t%.1f\t%.2f s\t%.2f s\t%.2f\t%.2f\t%.2f\t%.1f s\t%.0f %%\t%v\t\n",
				n, kind, r.matrix, r.ids, r.ours, r.best, r.before.Seconds(), r.after.Seconds(), measured, predicted, ratio,
				r.optimize.Seconds(), 100*r.off, r.skew)
		}
	}
	table.Flush()
	if missed > 0 {
		return fmt.Errorf("%d of the speed-ups are further than %.0f %% from what the matrix predicts", missed, 100*within)
	}
	fmt.Printf("every speed-up is within %.0f %% of what the matrix predicts\n", 100*within)
	return nil
}

// result of one world. Rates are the slowest links of rings in the matrix, Mbit/s.
type result struct {
	matrix          string
	ids, ours, best float64
	before, after   time.Duration // of an all-reduce
	optimize        time.Duration
	off             float64 // median relative error of the measured links that matter
	skew            string
}

func speedup(ctx context.Context, kind string, n int, o options) (r result, err error) {
	name, m, err := load(n)
	if err != nil {
		return r, err
	}
	r.matrix = name
	if r.best, m, err = scale(ctx, m, o.mbps); err != nil {
		return r, err
	}
	w, err := newWorld(m, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.grow(ctx, kind, n); err != nil {
		return r, err
	}
	if r.ids, err = w.slowest(); err != nil {
		return r, err
	}
	if r.before, err = w.reduce(ctx, o); err != nil {
		return r, err
	}
	began := time.Now()
	if err := w.all(ctx, func(p *peer) error { return p.Optimize() }); err != nil {
		return r, err
	}
	r.optimize = time.Since(began)
	r.off, r.skew = w.errorOfLinks(), w.skew()
	if r.ours, err = w.slowest(); err != nil {
		return r, err
	}
	r.after, err = w.reduce(ctx, o)
	return r, err
}

func median[T ~int64 | ~float64](xs []T) T {
	s := slices.Clone(xs)
	slices.Sort(s)
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}
