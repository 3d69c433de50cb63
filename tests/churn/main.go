// Command churn is a run that is disturbed as runs over the internet are, and
// nothing may go wrong: real processes on loopback that join, are killed, leave,
// are stopped and lose their links while they reduce, plain and quantized,
// several operations at a time, order their ring and synchronise their state.
// Every result is compared with a model that says who took part, and with the
// bits of all other peers. It ends with 1 if a condition does not hold.
//
//	go run ./tests/churn                                   # a minute
//	go run ./tests/churn -for 8h -write docs/churn.md      # make churn
//	go run ./tests/churn -for 10m -seed 7
//	go run ./tests/churn -secure                           # in TLS
//	go run ./tests/churn -network lossy -for 10m           # over an emulated wide area; Linux, root
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/process"
	"github.com/gopccl/gopccl/tests/internal/world"
)

func main() {
	world.Serve()
	var o options
	flag.DurationVar(&o.length, "for", time.Minute, "how long the run lasts")
	flag.Uint64Var(&o.seed, "seed", 1, "of the schedule")
	flag.IntVar(&o.most, "most", 0, "trainers at most; 0: 12, or 6 over a network")
	flag.IntVar(&o.count, "count", 0, "elements of the largest operations; 0: 262144, or 16384 over a network")
	flag.DurationVar(&o.compute, "compute", 0, "how long a step computes; 0: 60ms, or 200ms over a network")
	flag.StringVar(&o.network, "network", "", "spread the processes over this emulated wide area (a `profile` of tests/internal/lab; Linux, root)")
	secure := flag.Bool("secure", false, "every connection in TLS, each process with a credential of its own")
	write := flag.String("write", "", "write what came out to this `FILE`, in Markdown")
	flag.Parse()
	if *secure {
		issued.SwitchOn()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o.tell = func(text string) { fmt.Println(text) }
	res, err := run(ctx, o.usual())
	if err == nil {
		fmt.Print(res.table())
		err = res.conditions()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "churn: seed %d: %v\n", o.seed, err)
		os.Exit(1)
	}
	if *write != "" {
		if err := os.WriteFile(*write, []byte(res.page(strings.Join(os.Args[1:], " "))), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "churn:", err)
			os.Exit(1)
		}
	}
	fmt.Println("churn: nothing went wrong")
}

// options of a run.
type options struct {
	length  time.Duration
	seed    uint64
	most    int
	count   int
	compute time.Duration
	network string       // the profile of an emulated wide area; "": loopback
	tell    func(string) // takes a line each minute
}

// usual fills in what is not given.
func (o options) usual() options {
	trainers, count, compute := most, 256<<10, 60*time.Millisecond
	if o.network != "" {
		trainers, count, compute = 6, 16<<10, 200*time.Millisecond
	}
	o.most, o.count, o.compute = cmp.Or(o.most, trainers), cmp.Or(o.count, count), cmp.Or(o.compute, compute)
	return o
}

// usage is what a process needs, at the start and at the end of a run.
type usage struct {
	name          string
	memory, final int64
	peak          int64
	files, open   int
	known         bool
}

const (
	// memoryGrowth and fileGrowth bound what a process may need more at the end
	// of a run than at its start, with the same number of peers.
	memoryGrowth = 192 << 20
	fileGrowth   = 16
)

func run(ctx context.Context, o options) (*result, error) {
	order := world.Order{Compute: o.compute, SyncEvery: 5, OptimizeEvery: 50, Count: o.count, Pool: 2}
	var crew *world.Crew
	var net *network
	var err error
	if o.network == "" {
		crew, err = world.NewCrew(order)
	} else {
		if net, err = newNetwork(o.network, o.seed); err != nil {
			return nil, err
		}
		defer net.Close()
		crew, err = world.NewCrewAt(net.place, order)
	}
	if err != nil {
		return nil, err
	}
	defer crew.Close()
	s := newStorm(crew, net, o)
	if err := crew.Begin(elders); err != nil {
		return nil, err
	}
	began := time.Now()
	end := began.Add(o.length)
	if err := s.calm(earlier(began.Add(3*time.Second), end)); err != nil {
		return nil, err
	}
	res := &result{options: o, began: began, steps: crew.Books.Steps}
	measure(crew, res)
	told := 0
	for n := int(o.seed); time.Now().Before(end) && ctx.Err() == nil; n++ {
		if err := s.cycle(n, end); err != nil {
			return nil, fmt.Errorf("after %v: %w", time.Since(began).Round(time.Second), err)
		}
		measure(crew, res)
		if m := int(time.Since(began).Minutes()); m > told && o.tell != nil {
			told = m
			b := &crew.Books
			o.tell(fmt.Sprintf("%4d min: %d steps, %d operations, %d hit in flight, recovery at most %s; %v",
				m, b.Steps, b.Operations, b.Hit, ms(b.Deaths.Took.Max()), s.counts))
		}
	}
	if err := s.settle(); err != nil {
		return nil, fmt.Errorf("at the end, after %v: %w", time.Since(began).Round(time.Second), err)
	}
	measure(crew, res)
	res.took, res.busy, res.books, res.faults, res.dark = time.Since(began), s.busy, crew.Books, s.counts, s.dark
	return res, nil
}

// measure notes what the master and the elders need now.
func measure(crew *world.Crew, res *result) {
	procs := append([]*world.Proc{crew.Master}, crew.Trainers(func(p *world.Proc) bool { return p.Elder })...)
	for i, p := range procs {
		memory, files, ok := process.Usage(p.Cmd.Process.Pid)
		if len(res.usage) <= i {
			name := "master"
			if i > 0 {
				name = fmt.Sprintf("peer %d", p.ID)
			}
			res.usage = append(res.usage, usage{name: name, memory: memory, files: files, known: ok})
		}
		u := &res.usage[i]
		u.final, u.open, u.peak = memory, files, max(u.peak, memory)
	}
}
