package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/process"
	"github.com/gopccl/gopccl/tests/internal/world"
)

// result is what a run has come to.
type result struct {
	options
	began time.Time
	took  time.Duration
	busy  time.Duration // of took, spent killing
	steps int           // before the schedule began
	usage []usage
	books world.Books
	dark  darkness
	faults
}

// conditions that a run has to meet besides that nothing was wrong, nobody was
// dropped and nothing hung, which end it at once. They are about counts and
// not about times, so that a machine with other things to do meets them, too.
func (r *result) conditions() error {
	var bad []error
	need := func(ok bool, format string, a ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf(format, a...))
		}
	}
	b := &r.books
	need(b.Wrong == 0 && b.Dropped == 0, "%d wrong results, %d honest peers dropped", b.Wrong, b.Dropped)
	need(3*b.Full >= b.Operations, "only %d of %d operations had everybody in them", b.Full, b.Operations)
	need(r.dark.again == 0, "%d steps had more repeats than operations after a blackout", r.dark.again)
	// Kills come every 0.75 s, 80 in a minute of them.
	need(8*b.Hit >= 5*r.kills, "only %d operations were hit in flight by %d kills: 50 for 80 were expected", b.Hit, r.kills)
	need(b.Steps-r.steps >= r.kills, "only %d steps among %d kills", b.Steps-r.steps, r.kills)
	need(len(b.Deaths.Took) > 0, "nobody was killed out of an operation")
	for _, u := range r.usage {
		need(!u.known || u.final-u.memory < memoryGrowth, "the %s grew from %s to %s", u.name, mib(u.memory), mib(u.final))
		need(!u.known || u.open-u.files <= fileGrowth, "the %s has %d descriptors open and had %d", u.name, u.open, u.files)
	}
	return errors.Join(bad...)
}

func mib(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }

func share(part, whole int) float64 { return 100 * float64(part) / float64(max(1, whole)) }

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", 1e3*d.Seconds()) }

// table is what came out, in Markdown.
func (r *result) table() string {
	b := &r.books
	var t strings.Builder
	row := func(what, format string, a ...any) {
		fmt.Fprintf(&t, "| %s | %s |\n", what, fmt.Sprintf(format, a...))
	}
	t.WriteString("| What | Result |\n|---|---|\n")
	row("length", "%v, of it %v with kills; seed %d", r.took.Round(time.Second), r.busy.Round(time.Second), r.seed)
	row("trainers", "%d to %d at a time, %d started", least, r.most, b.Spawned)
	row("steps", "%d, %s each on average", b.Steps, ms(r.took/time.Duration(max(1, b.Steps))))
	row("operations", "%d, of which %.0f %% had every trainer in them that ran at that moment (newcomers on their way included); %.1f of %.1f on average",
		b.Operations, share(b.Full, b.Operations), float64(b.Members)/float64(max(1, b.Operations)), float64(b.Present)/float64(max(1, b.Operations)))
	row("done to it", "%v", r.faults)
	if r.network != "" {
		row("network", "%s", r.network)
		row("blackouts of a pair of hosts", "%v", r.dark)
	}
	row("operations hit in flight", "%d, %.0f a minute of kills; each was repeated by the survivors", b.Hit, float64(b.Hit)/max(1e-9, r.busy.Minutes()))
	row("results compared with the model, and bit by bit with those of the other peers", "%d, %d of them wrong", b.Compared, b.Wrong)
	row("shared states compared", "%d, all the same on all peers", b.Hashes)
	row("buffers compared after an abort", "%d, all as before", b.ByHand)
	row("honest peers dropped", "%d", b.Dropped)
	row("recovery, from a kill to the next operation without the dead", "median %s, at most %s, of %d",
		ms(b.Deaths.Took.Median()), ms(b.Deaths.Took.Max()), len(b.Deaths.Took))
	if len(b.Silences.Took) > 0 {
		row("the same for peers that fall silent", "median %s, at most %s, of %d", ms(b.Silences.Took.Median()), ms(b.Silences.Took.Max()), len(b.Silences.Took))
	}
	if len(b.Optimizations.Took) > 0 {
		row("optimizations of the ring, amid which no operation runs: the times above contain them",
			"median %s, at most %s, of %d", ms(b.Optimizations.Took.Median()), ms(b.Optimizations.Took.Max()), len(b.Optimizations.Took))
	}
	for _, u := range r.usage {
		if u.known {
			row("memory of the "+u.name, "%s at the start, %s at the end, %s at most", mib(u.memory), mib(u.final), mib(u.peak))
			row("descriptors of the "+u.name, "%d at the start, %d at the end", u.files, u.open)
		}
	}
	return t.String()
}

// page is docs/churn.md.
func (r *result) page(args string) string {
	return fmt.Sprintf(`# Churn

A master and trainers as real processes on one machine, disturbed all the time: killed, told to leave, stopped for less and for more than the liveness bound, their links cut, held up or silent for good. They reduce plain and quantized (minmax, zeropoint), up to six operations at a time and up to %s each, let newcomers in, synchronise their state and order their ring by measurements. What every operation gives is compared with a model that tells from the numbers who took part; all that took part must have the same bits.

`+"`go run ./tests/churn %s`"+`, begun %s, on %s.

%s
A part of a minute is in `+"`make test`"+`, ten minutes are in `+"`make soak`"+`, and `+"`make churn HOURS=8`"+` writes this page. `+"`-network lossy`"+` spreads the processes over an emulated wide area, where pairs of hosts are cut off from each other for five seconds, too.
`, mib(int64(8*r.count)), args, r.began.UTC().Format("2006-01-02 15:04 UTC"), process.Machine(), r.table())
}
