package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gopccl/gopccl/tests/internal/process"
	"github.com/gopccl/gopccl/tests/internal/world"
)

const (
	elders   = 2 // never harmed for good
	least    = 3 // trainers
	atRest   = 4 // at the start and at the end, when memory is compared
	most     = 12
	busyTime = 18 * time.Second // of kills
	calmTime = 3 * time.Second  // without, before somebody falls silent
	// patience is after what time without a step the run counts as hung: a
	// silent peer is found after 8 s, and a round that it holds up ends after 12.
	patience = 60 * time.Second
	// entry is after what time outside, in which others have gone on and the master has not put newcomers
	// off, one counts as forgotten, on loopback. Somebody silent may hold the round up that lets it
	// in. Over a network rounds take seconds.
	entry = 45 * time.Second
	// userTimeout is how long sent data may stay unacknowledged, by default.
	userTimeout = 8 * time.Second
	// slowRecovery is told of, with all that happened meanwhile: it is more than a silent peer takes.
	slowRecovery = 10 * time.Second
	// beyond is how long a stopped peer stays stopped: well beyond the liveness bound.
	beyond = 11 * time.Second
)

// storm is the schedule: everything that is done to a crew, drawn from a seed.
type storm struct {
	crew   *world.Crew
	rng    *rand.Rand
	target int // trainers to have, changed from time to time
	most   int
	relays bool
	net    *network      // nil: loopback
	slow   time.Duration // how many times as long as on loopback times between two deeds are
	dark   darkness
	counts faults
	busy   time.Duration // spent killing

	slowest time.Duration // of the recoveries that were told of
	tell    func(string)

	later []deed // in any order
	hunt  bool   // the next beginning of a step is the time to kill
}

func newStorm(crew *world.Crew, net *network, o options) *storm {
	s := &storm{crew: crew, rng: rand.New(rand.NewPCG(o.seed, 0)), target: atRest, most: o.most, tell: o.tell, relays: world.CanRelay(), slow: 1}
	if net != nil {
		s.net, s.slow, s.relays = net, distance, false // relays stand on loopback
	}
	return s
}

// faults are what was done, by kind.
type faults struct{ kills, leaves, pauses, stops, cuts, stalls, holes, islands int }

// deed is something to do at a time.
type deed struct {
	at time.Time
	do func()
}

func (s *storm) after(d time.Duration, do func()) {
	s.later = append(s.later, deed{time.Now().Add(d), do})
}

func (s *storm) between(low, high time.Duration) time.Duration {
	return low + time.Duration(s.rng.Int64N(int64(high-low)+1))
}

// cycle is a time of kills, a quiet one, over a network a blackout of two of its
// hosts, and a time in which somebody falls silent for good. It ends at limit at the latest.
func (s *storm) cycle(n int, limit time.Time) error {
	began := time.Now()
	if err := s.rage(earlier(began.Add(busyTime), limit)); err != nil {
		return err
	}
	s.busy += time.Since(began)
	if err := s.calm(earlier(time.Now().Add(calmTime), limit)); err != nil {
		return err
	}
	if s.net != nil && time.Until(limit) > blackoutLength+answerAfter {
		if err := s.blackout(); err != nil {
			return err
		}
	}
	if time.Until(limit) < beyond+4*time.Second {
		return s.rage(limit)
	}
	return s.silence(n)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// rage kills somebody each 0.5 to 1 s (on loopback), mostly in the middle of an operation,
// and does smaller things in between.
func (s *storm) rage(until time.Time) error {
	s.crew.OnBegin = func(*world.Proc) {
		if s.hunt {
			s.hunt = false
			s.after(s.slow*s.between(0, 12*time.Millisecond), s.killOne)
		}
	}
	defer func() { s.crew.OnBegin, s.hunt = nil, false }()
	kill := func() time.Time { return time.Now().Add(s.slow * s.between(500*time.Millisecond, time.Second)) }
	small := func() time.Time { return time.Now().Add(s.slow * s.between(time.Second, 3*time.Second)) }
	next, minor := kill(), small()
	for time.Now().Before(until) {
		if err := s.turn(); err != nil {
			return err
		}
		if time.Now().After(next) {
			next = kill()
			if s.rng.IntN(5) == 0 {
				s.killOne() // wherever the run is
			} else {
				s.hunt = true
			}
		}
		if time.Now().After(minor) {
			minor = small()
			s.minor()
		}
	}
	return nil
}

func (s *storm) calm(until time.Time) error {
	for time.Now().Before(until) {
		if err := s.turn(); err != nil {
			return err
		}
	}
	return nil
}

// turn hears what was reported, does what is due and keeps the number of trainers.
func (s *storm) turn() error {
	if err := s.crew.Run(time.Now().Add(2 * time.Millisecond)); err != nil {
		return err
	}
	if stalled := s.crew.Stalled(); stalled > patience {
		s.crew.Fail("no step for %v\n%s", stalled.Round(time.Second), s.crew.Autopsy())
		return s.crew.Failure()
	}
	if p := s.crew.Outside(entry); p != nil && s.net == nil {
		s.crew.Fail("peer %d (joined %v) has not come to a step while others went on for %v\n%s", p.ID, p.Joined(), entry, s.crew.Autopsy())
		return s.crew.Failure()
	}
	now := time.Now()
	if took := s.crew.Books.Deaths.Took.Max(); took > max(slowRecovery, s.slowest) && s.tell != nil {
		s.slowest = took
		s.tell(fmt.Sprintf("from a kill to the next operation without the dead it took %v; from two seconds before it on, in ms:\n%s",
			took.Round(time.Millisecond), s.crew.Since(now.Add(-took-2*time.Second))))
	}
	rest := s.later[:0]
	var ready []deed
	for _, d := range s.later {
		if now.Before(d.at) {
			rest = append(rest, d)
		} else {
			ready = append(ready, d)
		}
	}
	s.later = rest
	for _, d := range ready {
		d.do()
	}
	for len(s.crew.Trainers(world.Well)) < s.target {
		if _, err := s.crew.Spawn(s.relays && s.rng.IntN(3) == 0); err != nil {
			return err
		}
	}
	return nil
}

// victim draws a trainer that may be done something to: it is well and no
// elder, and enough others hold the state.
func (s *storm) victim(fit func(*world.Proc) bool) *world.Proc {
	ps := s.crew.Trainers(func(p *world.Proc) bool { return world.Well(p) && !p.Elder && fit(p) })
	if len(ps) == 0 {
		return nil
	}
	return ps[s.rng.IntN(len(ps))]
}

func anybody(*world.Proc) bool { return true }

func relayed(p *world.Proc) bool { return p.Relay != nil && p.Holder() }

func (s *storm) killOne() {
	p := s.victim(anybody)
	if p == nil {
		return
	}
	s.counts.kills++
	s.crew.Kill(p)
	// Mostly somebody takes the place; now and then the world grows or shrinks.
	if s.rng.IntN(4) == 0 {
		s.target = least + s.rng.IntN(s.most-least+1)
	}
}

// minor does what nobody need die of, or lets somebody leave.
func (s *storm) minor() {
	switch s.rng.IntN(5) {
	case 0: // two die at once
		s.killOne()
		s.killOne()
	case 1:
		if p := s.victim((*world.Proc).Holder); p != nil {
			s.counts.leaves++
			s.crew.Dismiss(p)
		}
	case 2: // stopped for less than the liveness bound
		p := s.victim((*world.Proc).Holder)
		if p != nil && process.CanPause {
			s.counts.pauses++
			s.crew.Pause(p)
			s.after(s.between(100*time.Millisecond, 1500*time.Millisecond), func() { s.crew.Resume(p) })
		}
	case 3: // the connections to the other peers end, and are made again
		if p := s.victim(relayed); p != nil {
			s.counts.cuts++
			p.Relay.Cut(false)
		}
	case 4: // nothing comes through for a while
		if p := s.victim(relayed); p != nil {
			s.counts.stalls++
			p.Relay.Hold(true)
			s.after(s.between(100*time.Millisecond, 1500*time.Millisecond), p.Relay.Release)
		}
	}
}

// silence makes somebody fall silent for good, and waits until the others are
// on their way again.
func (s *storm) silence(n int) error {
	kinds := []func() *world.Proc{s.stop}
	if s.relays {
		kinds = append(kinds, s.hole, s.sever, s.cutOff)
	}
	if !process.CanPause {
		kinds = kinds[1:]
	}
	if len(kinds) == 0 {
		return nil
	}
	for end := time.Now().Add(patience); kinds[n%len(kinds)]() == nil; {
		if time.Now().After(end) {
			return nil // nobody fits, which is drawn in turns
		}
		if len(s.crew.Trainers(func(p *world.Proc) bool { return p.Relay != nil })) == 0 {
			s.makeRelayed()
		}
		if err := s.turn(); err != nil {
			return err
		}
	}
	silences := &s.crew.Books.Silences
	for end := time.Now().Add(patience); len(silences.Took) < silences.Struck; {
		if err := s.turn(); err != nil {
			return err
		}
		if time.Now().After(end) {
			s.crew.Fail("nobody went on within %v without a silent peer\n%s", patience, s.crew.Autopsy())
		}
	}
	return nil
}

// makeRelayed adds a trainer behind a relay, if there may be one.
func (s *storm) makeRelayed() {
	if s.relays {
		if _, err := s.crew.Spawn(true); err != nil {
			s.crew.Fail("%v", err)
		}
	}
}

// settle brings the crew to what it was at the start: as many trainers, and
// nobody that something was done to.
func (s *storm) settle() error {
	s.target = atRest
	for len(s.crew.Trainers(world.Well)) > s.target {
		p := s.victim(anybody)
		s.crew.Dismiss(p)
	}
	for end := time.Now().Add(patience); len(s.crew.Trainers(func(p *world.Proc) bool { return !world.Well(p) })) > 0; {
		if err := s.turn(); err != nil {
			return err
		}
		if time.Now().After(end) {
			s.crew.Fail("peers that were done something to are still there\n%s", s.crew.Autopsy())
		}
	}
	return s.calm(time.Now().Add(4 * time.Second))
}

// stop is SIGSTOP for longer than the liveness bound. When it goes on, the peer
// finds that it was given up, and ends.
func (s *storm) stop() *world.Proc {
	p := s.victim((*world.Proc).Holder)
	if p == nil {
		return nil
	}
	s.counts.stops++
	s.crew.Doom(p, "stopped", true)
	s.crew.Pause(p)
	s.after(beyond, func() { s.crew.Resume(p) })
	s.after(beyond+30*time.Second, func() { s.gone(p, "stopped") })
	return p
}

// hole lets nothing of a peer through any more, to anybody.
func (s *storm) hole() *world.Proc { return s.lose(&s.counts.holes, "in a black hole", true, true) }

// cutOff lets nothing through to the other peers; the master still hears of it.
// Where packets are lost senders give connections up after the user timeout; the
// relay, which has acknowledged what it keeps, closes them then, and the other ends,
// which would notice later.
// A peer that connects again gets no answer.
func (s *storm) cutOff() *world.Proc {
	p := s.lose(&s.counts.islands, "on an island", false, true)
	if p != nil {
		s.after(userTimeout, func() { p.Relay.Cut(false) })
	}
	return p
}

// sever closes all connections of a peer.
func (s *storm) sever() *world.Proc { return s.lose(&s.counts.cuts, "cut off", true, false) }

func (s *storm) lose(count *int, why string, master, hold bool) *world.Proc {
	p := s.victim(relayed)
	if p == nil {
		return nil
	}
	*count++
	s.crew.Doom(p, why, hold)
	if hold {
		p.Relay.Hold(master)
	} else {
		p.Relay.Cut(master)
	}
	s.after(45*time.Second, func() { s.gone(p, why) })
	return p
}

// gone demands that a peer has found out by itself that it is out.
func (s *storm) gone(p *world.Proc, why string) {
	if p.Cmd.ProcessState == nil && len(s.crew.Trainers(func(q *world.Proc) bool { return q == p })) > 0 {
		s.crew.Fail("peer %d was %s and is still there, after %v without a step\n%s\n%s",
			p.ID, why, s.crew.Stalled().Round(time.Second), s.crew.Dissect(p), s.crew.Autopsy())
	}
}

func (f faults) String() string {
	return fmt.Sprintf("%d kills, %d leaves, %d short and %d long stops, %d cuts, %d short stalls, %d black holes, %d islands",
		f.kills, f.leaves, f.pauses, f.stops, f.cuts, f.stalls, f.holes, f.islands)
}
