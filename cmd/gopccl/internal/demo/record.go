// Package demo runs a small training run on this machine and hurts it: a
// master, four peer processes, one hard kill in the middle of a reduce, two
// joins. It checks that all peers hold the same bits after every step, and
// leaves a page that shows what happened.
package demo

import (
	"fmt"
	"sort"
	"time"

	"github.com/gopccl/gopccl/examples/trainers"
)

// Point is the run after one step of the shared state.
type Point struct {
	At    time.Duration // since the start of the demo
	Step  uint64
	World int
	Loss  float64
	Hash  string
	Tx    uint64 // bytes sent by all peers so far
}

// Mark is something that happened to the run.
type Mark struct {
	At   time.Duration
	Kind string // "start", "join", "kill", "retry", "leave", "trouble"
	Peer int    // -1: none
	Text string
}

// Life is the time that one peer process was in the run.
type Life struct {
	From, To time.Duration
	Killed   bool
	joined   bool
	ended    bool
	name     string
	retried  int
	tx       uint64
}

// Record is what a demo saw.
type Record struct {
	Points []Point // the first one before any step
	Marks  []Mark
	Lives  []Life // by number of the peer process

	Before, After float64 // validation loss of the shared state
	Started       int     // peer processes that the run began with
	Joins, Kills  int
	Compared      int // state hashes compared with another peer's
	Violations    []string
	Sent          uint64 // bytes, by all peers

	hashes   map[uint64]origin
	repeated uint64 // step of the last retry, plus one
}

type origin struct {
	hash string
	peer int
}

// life returns the entry of a peer, making room for it.
func (r *Record) life(peer int) *Life {
	for len(r.Lives) <= peer {
		r.Lives = append(r.Lives, Life{})
	}
	return &r.Lives[peer]
}

// Mark adds something that happened.
func (r *Record) Mark(m Mark) { r.Marks = append(r.Marks, m) }

// Kill notes that a peer was killed.
func (r *Record) Kill(at time.Duration, peer int, step uint64) {
	l := r.life(peer)
	l.To, l.Killed, l.ended = at, true, true
	r.Kills++
	r.Mark(Mark{at, "kill", peer, fmt.Sprintf("peer %d killed in the middle of the reduce after step %d", peer+1, step)})
}

// Add takes in an event of a peer process; it returns the new point if this is
// the first word about a step.
func (r *Record) Add(at time.Duration, peer int, e trainers.Event) (Point, bool) {
	l := r.life(peer)
	if !l.ended {
		l.To = at
	}
	if e.Peer != "" {
		l.name = e.Peer
	}
	r.Sent += e.Tx - l.tx
	l.tx = e.Tx
	switch e.Kind {
	case trainers.Joined:
		l.From, l.joined = at, true
		if r.Before == 0 {
			r.Before = e.Loss
			r.Points = append(r.Points, Point{At: at, Step: e.Step, World: e.World, Loss: e.Loss, Hash: e.Hash})
		}
		if peer < r.Started {
			r.Mark(Mark{at, "start", peer, fmt.Sprintf("peer %d (%s) starts at step %d", peer+1, e.Peer, e.Step)})
		} else {
			r.Joins++
			r.Mark(Mark{at, "join", peer, fmt.Sprintf("peer %d (%s) joins at step %d and adopts the state", peer+1, e.Peer, e.Step)})
		}
		r.compare(peer, e)
	case trainers.Retry:
		n := e.Retried - l.retried
		l.retried = e.Retried
		if r.repeated != e.Step+1 { // all survivors do the same: one line for all
			r.repeated = e.Step + 1
			r.Mark(Mark{at, "retry", -1, fmt.Sprintf("the %d peers in the ring repeat %d aborted operation%s", e.World, n, plural(n))})
		}
	case trainers.Stepped:
		if first := r.compare(peer, e); first {
			p := Point{At: at, Step: e.Step, World: e.World, Loss: e.Loss, Hash: e.Hash, Tx: r.Sent}
			r.Points = append(r.Points, p)
			return p, true
		}
	case trainers.Ended:
		r.After = e.Loss
		l.ended = true
		r.Mark(Mark{at, "leave", peer, fmt.Sprintf("peer %d is done at step %d", peer+1, e.Step)})
		r.compare(peer, e)
	}
	return Point{}, false
}

// compare checks the state hash of a peer against what others reported for the
// same step; it returns true if it is the first one.
func (r *Record) compare(peer int, e trainers.Event) bool {
	if r.hashes == nil {
		r.hashes = map[uint64]origin{}
	}
	first, known := r.hashes[e.Step]
	if !known {
		r.hashes[e.Step] = origin{e.Hash, peer}
		return true
	}
	r.Compared++
	if first.hash != e.Hash {
		r.Violations = append(r.Violations,
			fmt.Sprintf("step %d: peer %d has %s, peer %d has %s", e.Step, peer+1, e.Hash, first.peer+1, first.hash))
	}
	return false
}

// Aborted is the number of operations that failed and were run again. All
// survivors of a failure see the same verdicts, so the peer that saw the most
// saw them all.
func (r *Record) Aborted() int {
	most := 0
	for _, l := range r.Lives {
		most = max(most, l.retried)
	}
	return most
}

// Row is a line of the closing table.
type Row struct{ Name, Value string }

// Table sums the demo up.
func (r *Record) Table() []Row {
	steps := uint64(0)
	if len(r.Points) > 0 {
		steps = r.Points[len(r.Points)-1].Step
	}
	return []Row{
		{"loss before", fmt.Sprintf("%.4f", r.Before)},
		{"loss after", fmt.Sprintf("%.4f", r.After)},
		{"steps of the shared state", fmt.Sprint(steps)},
		{"joins", fmt.Sprint(r.Joins)},
		{"kills", fmt.Sprint(r.Kills)},
		{"aborted and retried operations", fmt.Sprint(r.Aborted())},
		{"bytes sent by all peers", trainers.Size(r.Sent)},
		{"state hashes compared", fmt.Sprint(r.Compared)},
		{"parity violations", fmt.Sprint(len(r.Violations))},
	}
}

// Verdict returns nil if the run went as it should, else everything that did not.
func (r *Record) Verdict() []string {
	problems := append([]string{}, r.Violations...)
	if r.Compared == 0 {
		problems = append(problems, "no two peers ever reported the same step")
	}
	if !(r.After < r.Before-minimumFall) {
		problems = append(problems, fmt.Sprintf("the loss did not fall: %.4f before, %.4f after", r.Before, r.After))
	}
	for _, m := range r.Marks {
		if m.Kind == "trouble" {
			problems = append(problems, m.Text)
		}
	}
	return problems
}

// minimumFall is how far the loss must fall for the demo to succeed.
const minimumFall = 0.1

// sorted returns the marks in the order of time.
func (r *Record) sorted() []Mark {
	marks := append([]Mark{}, r.Marks...)
	sort.SliceStable(marks, func(i, j int) bool { return marks[i].At < marks[j].At })
	return marks
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
