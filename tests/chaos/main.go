// Command chaos is a run among strangers: four trainers on loopback that
// reduce, with others that join and leave, while thousands of hostile and
// mistaken clients come to every port of the master and of the trainers. It is
// measured in three phases, without them, with them, and without them again,
// and prints one table. It ends with 1 if a result was wrong, an honest peer was
// dropped or not let in, less than 95 percent of the steps were done, or a
// process grew; in TLS also if a client that does not belong to the run was answered a
// byte of the protocol.
//
//	go run ./tests/chaos                      # 10,000 clients of all kinds, five minutes
//	go run ./tests/chaos -each                # every kind by itself, one line for each
//	go run ./tests/chaos -only "deaf,http" -clients 500 -seed 7
//	go run ./tests/chaos -as stranger,group,revoked    # the run is in TLS
//	go run ./tests/chaos -list
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/world"
)

func main() {
	world.Serve()
	var o options
	o.kinds = kinds
	flag.IntVar(&o.clients, "clients", 10_000, "how many clients come")
	flag.IntVar(&o.rate, "rate", 60, "clients a second")
	flag.DurationVar(&o.alone, "alone", 30*time.Second, "how long each phase without them is")
	flag.Uint64Var(&o.seed, "seed", 1, "of what they do")
	flag.DurationVar(&o.compute, "compute", 100*time.Millisecond, "how long a step computes")
	flag.Float64Var(&o.share, "share", 0.95, "of the steps without them that have to be done with them")
	only := flag.String("only", "", "these kinds, comma separated")
	without := flag.String("without", "", "not these kinds, comma separated")
	each := flag.Bool("each", false, "every kind by itself, in a run of its own, with a hundred clients")
	as := flag.String("as", "", "the run is in TLS, and clients are these, comma separated: "+strings.Join(guises, ", "))
	list := flag.Bool("list", false, "say what kinds there are")
	verbose := flag.Bool("v", false, "print the logs of what failed")
	flag.Parse()
	if *list {
		for _, k := range kinds {
			fmt.Println(k)
		}
		return
	}
	err := o.choose(*only, *without)
	if err == nil {
		o.as, err = chooseGuises(*as)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	failed := false
	show := func(name string, r *result, err error) {
		if err == nil {
			err = r.conditions()
		}
		text := "ok"
		if err != nil {
			failed = true
			text = err.Error()
			if first, _, more := strings.Cut(text, "\n"); more && !*verbose {
				text = first
			}
		}
		fmt.Println(r.row(name, text))
		if len(o.as) > 0 {
			fmt.Println(&r.heard)
		}
	}
	fmt.Print(header)
	if !*each {
		r, err := run(ctx, o)
		show(fmt.Sprintf("%d of all", o.clients), r, err)
		if !failed {
			return
		}
		fmt.Print(r.blame())
	} else {
		o.share = 0.85 // short as it is
		o.clients, o.rate, o.alone = min(o.clients, 100), min(o.rate, 8), min(o.alone, 6*time.Second)
		for _, k := range o.kinds {
			if ctx.Err() != nil {
				break
			}
			one := o
			one.kinds = []kind{k}
			r, err := run(ctx, one)
			show(k.name, r, err)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// options of a run.
type options struct {
	clients, rate int
	alone         time.Duration
	seed          uint64
	compute       time.Duration
	share         float64
	kinds         []kind
	as            []string // guises, if the run is in TLS
}

func (o *options) choose(only, without string) error {
	named := func(list string) (names []string, err error) {
		if list == "" {
			return nil, nil
		}
		for name := range strings.SplitSeq(list, ",") {
			if !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == name }) {
				return nil, fmt.Errorf("no clients are called %q (see -list)", name)
			}
			names = append(names, name)
		}
		return names, nil
	}
	in, err := named(only)
	if err != nil {
		return err
	}
	out, err := named(without)
	if err != nil {
		return err
	}
	o.kinds = slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool {
		return len(in) > 0 && !slices.Contains(in, k.name) || slices.Contains(out, k.name)
	})
	if len(o.kinds) == 0 {
		return fmt.Errorf("no kinds are left")
	}
	return nil
}
