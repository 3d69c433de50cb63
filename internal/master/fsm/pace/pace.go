// Package pace times the collectives of a group, so that a ring can be compared
// with the one before it: by the time of equal work.
package pace

import (
	"slices"
	"time"
)

const (
	// Enough is how many times of the same work both rings must have before they
	// are compared.
	Enough = 3
	// LeastBytes is the least work that is timed: smaller work measures delays, not
	// the ring.
	LeastBytes = 1 << 20

	maxLoads = 8 // kinds of work that are told apart
	maxTimes = 9 // latest times of each
)

// load is work between the start of a collective, with none under way, and the
// end of the last one under way.
type load struct {
	bytes, ops uint64
}

// times of one kind of work, the latest last.
type times struct {
	load  load
	taken []time.Duration
}

func (t times) median() time.Duration {
	s := slices.Clone(t.taken)
	slices.Sort(s)
	return s[len(s)/2]
}

// Pace is how fast the collectives of a group were with one ring. The zero value
// has seen none.
type Pace struct {
	loads []times
	now   load
	since time.Duration
	spoil bool // the work under way was aborted
	over  bool // all of it began, and may have been over, before it was commenced
}

// Begin books a collective of so many bytes that was commenced. first says that
// no other one is under way, ahead that some member began it before.
func (p *Pace) Begin(bytes uint64, first, ahead bool, now time.Duration) {
	p.over = ahead && (p.over || first)
	if first {
		p.now, p.since, p.spoil = load{}, now, false
	}
	p.now.ops++
	p.now.bytes += bytes
}

// Spoil leaves the work under way out: its time says nothing about the ring.
func (p *Pace) Spoil() { p.spoil = true }

// End books the end of the last collective under way, and reports whether it is
// to be compared with others.
func (p *Pace) End(now time.Duration) bool {
	if p.spoil || p.over || p.now.bytes < LeastBytes {
		return false
	}
	i := slices.IndexFunc(p.loads, func(t times) bool { return t.load == p.now })
	if i < 0 {
		if len(p.loads) == maxLoads {
			p.loads = slices.Delete(p.loads, 0, 1)
		}
		i = len(p.loads)
		p.loads = append(p.loads, times{load: p.now})
	}
	t := &p.loads[i]
	if len(t.taken) == maxTimes {
		t.taken = slices.Delete(t.taken, 0, 1)
	}
	t.taken = append(t.taken, now-p.since)
	return true
}

// Against returns the median times of work that both paces know well enough, 0
// and 0 if there is none.
func (p *Pace) Against(old Pace) (is, was time.Duration) {
	for _, a := range p.loads {
		for _, b := range old.loads {
			if a.load == b.load && len(a.taken) >= Enough && len(b.taken) >= Enough {
				return a.median(), b.median()
			}
		}
	}
	return 0, 0
}
