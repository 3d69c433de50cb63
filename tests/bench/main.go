// Command bench times all-reduces of gopccl, of the original PCCL 1.0.0 (where
// it is set up, see tests/compat) and of bare TCP that moves the same bytes
// around the same ring, in turns on this machine, and prints one table.
//
//	go run ./tests/bench
//	go run ./tests/bench -world 2 -bytes 64MiB -turns 5 -rounds 10
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gopccl/gopccl/tests/compat/pccl"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == floorPeerArg {
		if err := floorPeer(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	worlds := flag.String("world", "2,4", "numbers of peers, comma separated")
	sizes := flag.String("bytes", "4KiB,400000,64MiB", "buffer sizes in bytes, KiB or MiB, comma separated")
	turns := flag.Int("turns", 3, "turns of each contestant")
	rounds := flag.Int("rounds", 5, "timed rounds in a turn, after one that warms up")
	program := flag.String("gopccl", "", "the gopccl program (default: built from this tree)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *worlds, *sizes, *program, *turns, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// contestant times rounds of a float32 sum of count elements among world
// processes; each time is that of the slowest process.
type contestant struct {
	name string
	time func(ctx context.Context, world, count, rounds int) ([]float64, error)
}

func run(ctx context.Context, worlds, sizes, program string, turns, rounds int) error {
	if turns < 1 || rounds < 1 {
		return errors.New("-turns and -rounds are at least 1")
	}
	dir, err := os.MkdirTemp("", "gopccl-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if program == "" {
		program = filepath.Join(dir, "gopccl")
		build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/gopccl/gopccl/cmd/gopccl")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build gopccl: %w\n%s", err, out)
		}
	}
	contestants := []contestant{{"gopccl", gopccl(program)}}
	if d, ok := pccl.Find(); ok {
		driver, err := pccl.Open(d)
		if err != nil {
			return err
		}
		contestants = append(contestants, contestant{"original", original(driver)})
	} else {
		fmt.Fprintf(os.Stderr, "The original PCCL is not set up (make original): no comparison with it.\n")
	}
	contestants = append(contestants, contestant{"bare TCP", floor})

	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer table.Flush()
	fmt.Fprint(table, "world\tbytes\t")
	for i, c := range contestants {
		fmt.Fprintf(table, "%s\t", c.name)
		if i > 0 {
			fmt.Fprintf(table, "gopccl / it\t")
		}
	}
	fmt.Fprintln(table)
	for _, ws := range strings.Split(worlds, ",") {
		world, err := strconv.Atoi(ws)
		if err != nil || world < 2 {
			return fmt.Errorf("-world %q: want numbers above 1", worlds)
		}
		for _, ss := range strings.Split(sizes, ",") {
			size, err := parseSize(ss)
			if err != nil {
				return err
			}
			times := make([][]float64, len(contestants))
			for range turns {
				for i, c := range contestants {
					t, err := c.time(ctx, world, size/4, rounds)
					if err != nil {
						return fmt.Errorf("%s, world %d, %d bytes: %w", c.name, world, size, err)
					}
					times[i] = append(times[i], t...)
				}
			}
			fmt.Fprintf(table, "%d\t%d\t", world, size/4*4)
			for i := range contestants {
				m := median(times[i])
				fmt.Fprintf(table, "%s\t", seconds(m))
				if i > 0 {
					fmt.Fprintf(table, "%.2f\t", median(times[0])/m)
				}
			}
			fmt.Fprintln(table)
		}
	}
	return nil
}

func parseSize(s string) (int, error) {
	digits, unit := s, 1
	if d, ok := strings.CutSuffix(s, "KiB"); ok {
		digits, unit = d, 1<<10
	} else if d, ok := strings.CutSuffix(s, "MiB"); ok {
		digits, unit = d, 1<<20
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n*unit < 4 {
		return 0, fmt.Errorf("-bytes %q: want sizes like 400000, 4KiB or 64MiB", s)
	}
	return n * unit, nil
}

// gopccl runs `gopccl bench allreduce`, which gives the median of its rounds.
func gopccl(program string) func(ctx context.Context, world, count, rounds int) ([]float64, error) {
	return func(ctx context.Context, world, count, rounds int) ([]float64, error) {
		cmd := exec.CommandContext(ctx, program, "bench", "allreduce", "--json", "-", "--world", strconv.Itoa(world),
			"--bytes", strconv.Itoa(4*count), "--rounds", strconv.Itoa(rounds), "--limit", "2m")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, stderr.String())
		}
		var res struct {
			Median float64 `json:"median_s"`
		}
		if err := json.Unmarshal(out, &res); err != nil {
			return nil, err
		}
		return []float64{res.Median}, nil
	}
}

func original(d *pccl.Driver) func(ctx context.Context, world, count, rounds int) ([]float64, error) {
	return func(_ context.Context, world, count, rounds int) ([]float64, error) {
		// It crashes now and then while a world forms (quirk Q25 and others).
		r, err := pccl.Bench(d, world, count, 1, rounds, time.Minute)
		for try := 1; err != nil && try < 5; try++ {
			fmt.Fprintf(os.Stderr, "the original failed, once more: %v\n", err)
			r, err = pccl.Bench(d, world, count, 1, rounds, time.Minute)
		}
		if err != nil {
			return nil, err
		}
		times := make([]float64, len(r.Rounds))
		for i, t := range r.Rounds {
			times[i] = t.Seconds()
		}
		return []float64{median(times)}, nil
	}
}

func median(times []float64) float64 {
	s := slices.Sorted(slices.Values(times))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func seconds(s float64) string {
	if s < 1e-3 {
		return fmt.Sprintf("%.0f us", s*1e6)
	}
	return fmt.Sprintf("%.2f ms", s*1e3)
}
