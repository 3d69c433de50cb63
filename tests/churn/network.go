package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/lab/netem"
	"github.com/gopccl/gopccl/tests/internal/world"
)

const (
	// distance is how many times as much time as on loopback there is between two
	// things that are done to a run over a network, where a step takes as much longer.
	distance = 6
	// blackoutLength is how long two hosts hear nothing of each other: below the user
	// timeout, so that nobody may be given up for it.
	blackoutLength = 5 * time.Second
	// answerAfter is how long the run is watched after a blackout, at least.
	answerAfter = 5 * time.Second
)

// network is an emulated wide area that trainers are spread over, several in a host
// if there are more of them. The master has the last host for itself.
type network struct{ *lab.Lab }

func newNetwork(profile string, seed uint64) (*network, error) {
	p, err := lab.Load(profile)
	if err != nil {
		return nil, err
	}
	l, err := lab.Start(p, seed)
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", profile, err)
	}
	return &network{l}, nil
}

func (n *network) trainers() int { return len(n.Hosts) - 1 }

// place is where a crew starts its processes.
func (n *network) place(trainer int) world.Place {
	host := n.Hosts[n.trainers()]
	if trainer != world.Master {
		host = n.Hosts[trainer%n.trainers()]
	}
	return world.Place{Host: host.Addr.String(), Begin: host.Start}
}

// darken has everything between two hosts be lost, or ends that.
func (n *network) darken(a, b int, down bool) {
	n.Change(func(net *netem.Net) {
		net.Change(a, b, func(p *netem.Path) { p.Down = down })
		net.Change(b, a, func(p *netem.Path) { p.Down = down })
	})
}

// darkness is what blackouts of a pair of hosts have done to a run in which nothing
// else was done meanwhile.
type darkness struct {
	blackouts int
	repeated  int             // operations that failed and were repeated
	again     int             // steps with more repeats than operations
	longest   []time.Duration // of each blackout, what the operations of a step took at most
}

// blackout cuts a pair of hosts off from each other for a while, both of which have
// trainers. No trainer may end for it, and no step may repeat more than each of its operations
// once.
func (s *storm) blackout() error {
	hosts := map[int]bool{}
	for _, p := range s.crew.Trainers(world.Well) {
		hosts[p.ID%s.net.trainers()] = true
	}
	if len(hosts) < 2 {
		return nil
	}
	var pair []int
	for h := range s.net.trainers() {
		if hosts[h] {
			pair = append(pair, h)
		}
	}
	s.rng.Shuffle(len(pair), func(i, j int) { pair[i], pair[j] = pair[j], pair[i] })
	d := &s.dark
	d.blackouts++
	before := s.crew.Books.Hit
	longest := time.Duration(0)
	s.crew.OnStep = func(r world.Report, took time.Duration) {
		if r.Retries > len(r.Sets) {
			d.again++
		}
		longest = max(longest, took)
	}
	defer func() { s.crew.OnStep = nil }()
	// It strikes operations: a round or a measurement waits for its own deadlines.
	begins := false
	s.crew.OnBegin = func(*world.Proc) { begins = true }
	defer func() { s.crew.OnBegin = nil }()
	for waited := time.Now(); !begins && time.Since(waited) < patience; {
		if err := s.turn(); err != nil {
			return err
		}
	}
	s.net.darken(pair[0], pair[1], true)
	s.crew.Remark("hosts %d and %d of %d lose each other", pair[0], pair[1], s.net.trainers())
	began, lit := time.Now(), false
	steps := s.crew.Books.Steps // when there was light again
	for time.Since(began) < blackoutLength+answerAfter || s.crew.Books.Steps == steps {
		if !lit && time.Since(began) >= blackoutLength {
			lit, steps = true, s.crew.Books.Steps
			s.net.darken(pair[0], pair[1], false)
			s.crew.Remark("... and find each other")
		}
		if err := s.turn(); err != nil {
			return err
		}
	}
	d.repeated += s.crew.Books.Hit - before
	d.longest = append(d.longest, longest)
	return nil
}

// String says what came of it.
func (d darkness) String() string {
	if len(d.longest) == 0 {
		return "none"
	}
	longest := slices.Sorted(slices.Values(d.longest))
	return fmt.Sprintf("%d of %v: %d operations repeated; the operations of a step took at most %.1f s (median), %.1f s (longest)",
		d.blackouts, blackoutLength, d.repeated, longest[len(longest)/2].Seconds(), longest[len(longest)-1].Seconds())
}
