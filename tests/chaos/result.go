package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/tests/internal/world"
)

const (
	memoryGrowth = 256 << 20 // that a process may need more than at the start, at any time
	fileGrowth   = 8         // descriptors that may be open more when all is over
)

// result is what a run among strangers has come to.
type result struct {
	options
	phases  [3]phase
	twin    [3]phase // of those whom nobody visits
	books   world.Books
	usage   []usage
	seconds []second
	heard   heard

	mu   sync.Mutex
	many map[string]int // clients by kind
}

// usage is what a process needs.
type usage struct {
	name         string
	start, peak  int64
	files, open  int
	most         int      // descriptors at a time
	memoryAmidst []string // kinds at work when it needed most
}

// second is what happened in one.
type second struct {
	at    int64
	steps int
	kinds []string
}

func (r *result) came(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.many == nil {
		r.many = map[string]int{}
	}
	r.many[kind]++
}

func (r *result) second(now time.Time, steps int, kinds func() []string) {
	if n := len(r.seconds); n > 0 && r.seconds[n-1].at == now.Unix() {
		r.seconds[n-1].steps += steps
		return
	}
	r.seconds = append(r.seconds, second{now.Unix(), steps, kinds()})
}

func (r *result) note(i int, name string, memory int64, files int, kinds func() []string) {
	if len(r.usage) <= i {
		r.usage = append(r.usage, usage{name: name, start: memory, files: files})
	}
	u := &r.usage[i]
	if memory > u.peak+u.peak/20 {
		u.peak, u.memoryAmidst = memory, kinds()
	}
	u.open, u.most = files, max(u.most, files)
}

// settled reports whether descriptors are as they were.
func (r *result) settled() bool {
	return !slices.ContainsFunc(r.usage, func(u usage) bool { return u.open > u.files+fileGrowth })
}

// ratio is how many of the steps were done with the clients: beside the twin,
// which had the same machine, and as it is without them.
func (r *result) ratio() float64 {
	alone := float64(r.phases[0].steps+r.phases[2].steps) / float64(max(1, r.twin[0].steps+r.twin[2].steps))
	return float64(r.phases[1].steps) / float64(max(1, r.twin[1].steps)) / max(1e-9, alone)
}

func (r *result) conditions() error {
	var bad []error
	need := func(ok bool, format string, a ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf(format, a...))
		}
	}
	need(r.books.Wrong == 0 && r.books.Dropped == 0, "%d wrong results, %d honest peers dropped", r.books.Wrong, r.books.Dropped)
	need(r.ratio() >= r.share, "%.1f %% of the steps", 100*r.ratio())
	for _, name := range r.as {
		for p := secure.Control; p <= secure.Bench; p++ {
			n := r.heard.bytes(name, p)
			need(n == 0 || mayHear(name, p), "a client as %s was answered %d bytes at %v", name, n, p)
		}
	}
	need(r.phases[1].in > 0, "no honest newcomer came in")
	for _, u := range r.usage {
		need(u.peak-u.start < memoryGrowth, "the %s grew from %s to %s, with %s", u.name, mib(u.start), mib(u.peak), strings.Join(u.memoryAmidst, ", "))
		need(u.open <= u.files+fileGrowth, "the %s has %d descriptors open and had %d", u.name, u.open, u.files)
	}
	return errors.Join(bad...)
}

func mib(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }

const header = "| clients | steps a second before, with them, after | of a twin without them | share | honest newcomers let in, longest wait before and with them | memory at most, start to peak | descriptors at the start, most, end | results compared, wrong | dropped | |\n|---|---|---|---|---|---|---|---|---|---|\n"

// row is what came out, as a row of the table.
func (r *result) row(name, verdict string) string {
	var memory, files string
	worst := int64(-1)
	for _, u := range r.usage {
		if u.peak-u.start > worst {
			worst = u.peak - u.start
			memory = fmt.Sprintf("%s: %s to %s", u.name, mib(u.start), mib(u.peak))
		}
	}
	most := -1
	for _, u := range r.usage {
		if u.most > most {
			most = u.most
			files = fmt.Sprintf("%s: %d, %d, %d", u.name, u.files, u.most, u.open)
		}
	}
	p := r.phases
	return fmt.Sprintf("| %s | %.1f, %.1f, %.1f | %.1f, %.1f, %.1f | %.1f %% | %d, %.1f s and %.1f s | %s | %s | %d, %d | %d | %s |",
		name, p[0].rate(), p[1].rate(), p[2].rate(), r.twin[0].rate(), r.twin[1].rate(), r.twin[2].rate(), 100*r.ratio(), p[1].in, p[0].wait.Seconds(), p[1].wait.Seconds(),
		memory, files, r.books.Compared, r.books.Wrong, r.books.Dropped, verdict)
}

// blame names the kinds that were at work in the seconds without a step.
func (r *result) blame() string {
	idle, seen := map[string]int{}, map[string]int{}
	stalls := 0
	for _, s := range r.seconds {
		for _, k := range s.kinds {
			seen[k]++
			if s.steps == 0 {
				idle[k]++
			}
		}
		if s.steps == 0 {
			stalls++
		}
	}
	if stalls == 0 {
		return "every second had a step\n"
	}
	var names []string
	for k := range idle {
		names = append(names, k)
	}
	rank := func(k string) float64 { return float64(idle[k]) / float64(seen[k]) }
	slices.SortFunc(names, func(a, b string) int {
		if d := rank(b) - rank(a); d > 0 {
			return 1
		} else if d < 0 {
			return -1
		}
		return strings.Compare(a, b)
	})
	var t strings.Builder
	fmt.Fprintf(&t, "%d of %d seconds had no step; at work then, seed %d (see -each and -only):\n", stalls, len(r.seconds), r.seed)
	for _, k := range names[:min(12, len(names))] {
		fmt.Fprintf(&t, "  %-20s %d of the %d seconds in which it was at work\n", k, idle[k], seen[k])
	}
	return t.String()
}
