package world

import (
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// Books is what a crew has counted.
type Books struct {
	Spawned    int
	Steps      int // of the run, each finished by one peer at least
	Operations int // that succeeded, of the run
	Compared   int // results, each compared with the model and with those of the other peers
	Hashes     int // of shared states, each compared with those of the other peers
	Full       int // operations in which everybody was who ran at that moment
	Members    int // of all operations, for the mean
	Present    int // who ran, for all operations
	Hit        int // operations that failed and were repeated
	ByHand     int // failures after which the buffer was compared with what it had been
	Noted      int // members whose optimization failed
	Wrong      int // results
	Dropped    int // honest peers that ended
	Lone       int // results that somebody had before it died, and nobody else
	Deaths     Recoveries
	Silences   Recoveries

	Optimizations Optimizations

	steps map[uint64]*outcome
	done  uint64 // the highest step
}

// outcome is what the peers of a step have to agree on.
type outcome struct {
	sets, results []uint64
	state         uint64
	retries       int
	by            *Proc
}

func newOutcome(p *Proc, r Report) *outcome {
	return &outcome{r.Sets, r.Results, r.State, r.Retries, p}
}

// agrees reports whether r is of the same operations with the same results.
func (o *outcome) agrees(r Report) bool {
	return slices.Equal(o.sets, r.Sets) && slices.Equal(o.results, r.Results) && o.state == r.State
}

// Recoveries are how long the others took to a step without somebody.
type Recoveries struct {
	Struck int
	Took   Times
	open   map[uint64]time.Time
}

// Optimizations are the times for which members waited for measurements of the links between them, and
// for the ring that was made of these or could not be: of each step the longest. No operation runs
// meanwhile.
type Optimizations struct {
	Took Times
	step uint64 // the last one
}

// member takes what one of the members of a step says.
func (o *Optimizations) member(step uint64, took time.Duration) {
	switch n := len(o.Took); {
	case n == 0 || step > o.step:
		o.Took, o.step = append(o.Took, took), step
	case step == o.step:
		o.Took[n-1] = max(o.Took[n-1], took)
	}
}

func (b *Books) init() {
	b.steps = map[uint64]*outcome{}
	b.Deaths.open, b.Silences.open = map[uint64]time.Time{}, map[uint64]time.Time{}
}

func (r *Recoveries) begin(bit uint64, at time.Time) {
	r.Struck++
	r.open[bit] = at
}

// step says that an operation without some peers was finished.
func (r *Recoveries) step(set uint64, at time.Time) {
	for bit, since := range r.open {
		if set&bit == 0 && at.After(since) {
			r.Took = append(r.Took, at.Sub(since))
			delete(r.open, bit)
		}
	}
}

// Times are how long things of one kind took.
type Times []time.Duration

// Median is 0 if there were none.
func (ts Times) Median() time.Duration {
	if len(ts) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(ts))[len(ts)/2]
}

// Max is 0 if there were none.
func (ts Times) Max() time.Duration {
	if len(ts) == 0 {
		return 0
	}
	return slices.Max(ts)
}

// kept is how many steps are remembered for peers that report late.
const kept = 2000

// step takes in that a peer has finished a step; present are those who run now.
// It returns what the peer and others do not agree on.
func (b *Books) step(p *Proc, r Report, present uint64) string {
	if p.lone {
		return fmt.Sprintf("peer %d goes on after step %d, whose result nobody else had", p.ID, p.last.Step)
	}
	b.Compared += len(r.Results)
	b.Hashes++
	o := b.steps[r.Step]
	if o == nil {
		if r.Step+kept < b.done {
			return fmt.Sprintf("peer %d is at step %d, others at %d", p.ID, r.Step, b.done)
		}
		b.steps[r.Step] = newOutcome(p, r)
		delete(b.steps, r.Step-kept)
		b.done = max(b.done, r.Step)
		b.Steps++
		b.Operations += len(r.Sets)
		b.Hit += r.Retries
		for _, set := range r.Sets {
			if set&present == present {
				b.Full++
			}
			b.Members += bits.OnesCount64(set)
			b.Present += bits.OnesCount64(present)
		}
		last := r.Sets[len(r.Sets)-1]
		b.Deaths.step(last, time.Unix(0, r.At))
		b.Silences.step(last, time.Unix(0, r.At))
		return ""
	}
	if r.Forward && (p.doomed != "" || o.by.doomed != "") && !o.agrees(r) {
		// The one that lives on is right, and the others must have the same as it.
		b.Lone++
		if p.doomed == "" {
			p, b.steps[r.Step] = o.by, newOutcome(p, r)
		}
		p.lone = true
		return ""
	}
	if r.Retries > o.retries {
		b.Hit += r.Retries - o.retries
		o.retries = r.Retries
	}
	for i := range r.Sets {
		switch {
		case len(r.Sets) != len(o.sets):
			return fmt.Sprintf("step %d has %d operations at peer %d, %d at peer %d", r.Step, len(r.Sets), p.ID, len(o.sets), o.by.ID)
		case r.Sets[i] != o.sets[i]:
			return fmt.Sprintf("step %d, operation %d: peer %d has the sum of %s, peer %d that of %s",
				r.Step, i, p.ID, members(r.Sets[i]), o.by.ID, members(o.sets[i]))
		case r.Results[i] != o.results[i]:
			return fmt.Sprintf("step %d, operation %d: peers %d and %d have different bits", r.Step, i, p.ID, o.by.ID)
		}
	}
	if r.State != o.state {
		return fmt.Sprintf("peers %d and %d have different states after step %d", p.ID, o.by.ID, r.Step)
	}
	return ""
}
