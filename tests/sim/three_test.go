package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/quorum"
	"github.com/gopccl/gopccl/internal/wire"
)

// slip is a mistake that masters among several make on purpose.
type slip int

const (
	noSlip         slip = iota
	confirmsAlone       // a leader confirms without asking anybody
	commitsAlone        // ... and takes for committed what nobody else has
	neverAsks           // it drops without asking whether it leads
	ownRegistry         // it begins with what it knew when it led last
	reusesTerm          // its numbers begin with the term before
	staysOn             // it goes on when it has lost the lead
	followerAdmits      // one that does not lead takes peers
	forgetsDisk         // a process comes back with an empty disk
	sendsFirst          // what is to be saved first is sent first
)

// strikes are what can go wrong among masters.
type strike3 int

const (
	crash      strike3 = iota // a process ends
	powerCut                  // a machine is gone without a word
	standstill                // a process stands still, also for longer than it leads
	cutAlone                  // one is cut off from the other masters, not from the peers
	cutOneWay                 // ... in one direction, from some of them
	cutSides                  // the masters are in two parts
	lossyTime                 // messages of masters get lost
	giveWay                   // the lead is given to another one
	orderly                   // a master ends in good order
	reset                     // the connection of a peer ends
	cutPeer                   // a peer is cut off from some masters, maybe in one direction
	cutLeader                 // many peers are cut off from the leader
	killPeer
	numStrikes
)

var strikeNames = [numStrikes]string{
	"crash", "power cut", "standstill", "alone", "one way", "two sides", "losses", "gives way", "in good order", "reset", "peer cut off",
	"leader cut off", "peer killed",
}

// threeWorld is a world of three masters.
func threeWorld(seed uint64, bug mutation, wrong slip) *world {
	w := emptyWorld(seed, bug)
	w.heirs = newHeirs(true)
	w.heirs.interrupts = 1 // so how long a recovery takes has no bound here
	w.council = newCouncil(w, wrong)
	c := w.council
	c.rough = seed%2 == 1
	if w.rng.chance(3) {
		c.delay = 40 * time.Millisecond
	}
	w.plan = scenario{groups: 1, natives: 2, loops: 2 + w.rng.n(3), optimize: w.rng.chance(2), overlap: w.rng.chance(3)}
	w.plan.eager = w.rng.chance(2)
	w.plan.others, w.plan.drain = seed%3 == 0, seed%4 < 2
	w.plan.places(seed)
	n := 2 + w.rng.n(3)
	if seed%10 == 8 {
		w.plan.groups, n = 2, n+2
	}
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, w.spawnOne)
	}
	for range 1 + w.rng.n(4) {
		if w.rng.chance(2) {
			f := fault{kind: strikeMasters, aim: phases[w.rng.n(len(phases))].id, nth: 1 + min(w.rng.n(4), w.rng.n(4))}
			w.heirs.aimed = append(w.heirs.aimed, f)
			continue
		}
		c.faults = append(c.faults, 1+w.rng.n(12*n*w.plan.loops))
	}
	slices.Sort(c.faults)
	c.strikes = 8
	return w
}

// mayStrike reports whether there are faults to come.
func (c *council) mayStrike() bool { return c.opened && c.strikes > 0 }

// strike has one thing go wrong, and maybe another one soon.
func (c *council) strike() {
	w := c.w
	if !c.mayStrike() || w.leaving && w.rng.chance(2) {
		return
	}
	c.strikes--
	s := c.seats[w.rng.n(seatCount)]
	if l := c.leader(); l != nil && !w.rng.chance(3) {
		s = l
	}
	kinds := int(reset) + 1
	if c.rough {
		kinds = int(numStrikes)
	}
	k := strike3(w.rng.n(kinds))
	c.struck[k]++
	long := w.rng.between(0, 2*time.Second)
	if w.rng.chance(4) {
		long = w.rng.between(0, 12*time.Second)
	}
	w.heirs.kills++
	c.hit(k, s, long)
	if w.rng.chance(3) {
		w.after(w.rng.between(0, 1500*time.Millisecond), nil, c.strike)
	}
	c.calm = max(c.calm, w.now+long)
}

// hit is one thing that goes wrong with s, and lasts for some time.
func (c *council) hit(k strike3, s *seat, long time.Duration) {
	w := c.w
	w.tracef("FAULT: %s, master %d, for %v", strikeNames[k], s.id, long)
	part := func(cut func(from, to int) bool) {
		for from := range seatCount {
			for to := range seatCount {
				if from != to && cut(from, to) {
					c.parted[from][to] = w.now + long
				}
			}
		}
	}
	switch k {
	case crash, powerCut:
		back := long
		if w.rng.chance(2) {
			back = w.rng.between(0, 50*time.Millisecond)
		}
		s.down(k == powerCut, back)
	case standstill:
		if s.q == nil {
			break
		}
		s.stop(long)
		if c.rough && w.rng.chance(2) { // it will look gone to one that may lead no longer
			w.after(w.rng.between(0, long+1), nil, func() { c.hit(killPeer, s, 0) })
		}
	case cutAlone:
		part(func(from, to int) bool { return (from == s.id) != (to == s.id) })
	case cutOneWay:
		out := w.rng.chance(2)
		part(func(from, to int) bool {
			return (out && from == s.id || !out && to == s.id) && !w.rng.chance(3)
		})
	case cutSides:
		side := [seatCount]bool{}
		for i := range side {
			side[i] = w.rng.chance(2)
		}
		part(func(from, to int) bool { return side[from] != side[to] })
	case lossyTime:
		c.lossy = w.now + long
	case giveWay:
		s.step(quorum.Yield{})
	case orderly:
		if s.m != nil && s.m.m != nil && s.reign == s.served && w.now >= s.stops {
			s.retire(min(long, time.Second))
		}
	case reset:
		if p := w.victim(); p != nil {
			p.reset()
		}
	case cutPeer:
		if p := w.victim(); p != nil {
			for _, o := range c.seats {
				if o == s || w.rng.chance(3) {
					c.cut(p, o, long)
				}
			}
		}
	case cutLeader:
		for _, p := range w.peers {
			if !w.rng.chance(3) {
				c.cut(p, s, long)
			}
		}
	case killPeer:
		if p := w.victim(); p != nil {
			w.tracef("FAULT: peer %d is killed", p.id)
			p.exit()
		}
	}
}

// cut has nothing pass between a peer and a master for a while, or in one direction.
func (c *council) cut(p *peer, s *seat, long time.Duration) {
	way := c.w.rng.n(4)
	c.w.tracef("FAULT: peer %d and master %d, way %d, for %v", p.id, s.id, way, long)
	for _, back := range []bool{false, true} {
		if way == 0 && back || way == 1 && !back {
			continue
		}
		at := road{p.id, s.id, back}
		c.closed[at] = max(c.closed[at], c.w.now+long)
	}
}

// reset ends the connection of a peer to its master.
func (p *peer) reset() {
	w, m, client := p.w, p.line.to, p.line.client
	if m == nil || p.line.cut || p.line.dialing || m.conns[client] != p || p.uuid == (wire.UUID{}) {
		return
	}
	w.tracef("FAULT: the connection of peer %d ends", p.id)
	p.line.cut = true
	w.after(w.rng.between(0, 5*time.Millisecond), p, func() { p.lineEnded(client, errors.New("reset")) })
	late := 5 * time.Millisecond
	if w.rng.chance(3) {
		late = time.Second
	}
	w.after(w.rng.between(0, late), nil, func() { m.take(mfsm.Gone{Client: client, Reason: "reset"}) })
}

// judge is run for a world of three masters.
func (w *world) judge() string {
	failure := w.run()
	if failure == "" && w.unprovoked > 0 && !w.council.rough {
		failure = fmt.Sprintf("%d operations have failed", w.unprovoked)
	}
	return failure
}

// Three masters, of which one leads, with all that can happen to them and between them:
// no verdict is contradicted, no number means two things, and nobody is dropped by a master
// that has not asked whether it leads.
func TestThreeMasters(t *testing.T) {
	t.Parallel()
	if replays(t, func(seed uint64) *world { return threeWorld(seed, noBug, noSlip) }, (*world).judge) {
		return
	}
	n, failed := min(*seeds, *threeSeeds), 0
	if raceEnabled {
		n = min(n, 100)
	}
	var sum struct{ reigns, commits, confirms, drops, repeats, successes, events int }
	var struck [numStrikes]int
	for seed := *first; seed < *first+uint64(n); seed++ {
		w := threeWorld(seed, noBug, noSlip)
		if failure := w.judge(); failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
			if failed++; failed == 10 {
				t.FailNow()
			}
		}
		b := &w.council.record
		sum.reigns += len(b.reigns)
		sum.commits += b.commits
		sum.confirms += b.confirms
		sum.drops += b.drops
		sum.repeats += b.repeats
		sum.successes += w.collector.successes
		sum.events += w.count
		for k, times := range w.council.struck {
			struck[k] += times
		}
	}
	t.Logf("%d seeds: %+v, struck %v", n, sum, struck)
	if n < 500 {
		return
	}
	require.Greater(t, sum.reigns, n)
	require.Greater(t, sum.commits, 3*n)
	require.Greater(t, sum.confirms, n/2)
	require.Greater(t, sum.drops, n/4)
	require.Greater(t, sum.repeats, n)
	for k, times := range struck {
		require.Greater(t, times, n/50, strikeNames[k])
	}
}

// Mistakes of masters among several are found.
func TestThreeMastersWithBugs(t *testing.T) {
	t.Parallel()
	for wrong, name := range map[slip]string{
		confirmsAlone: "confirms alone", commitsAlone: "commits alone", neverAsks: "never asks", ownRegistry: "its own registry",
		reusesTerm: "a term twice", staysOn: "stays on", followerAdmits: "a follower admits", forgetsDisk: "forgets its disk", sendsFirst: "sends first",
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= uint64(*threeSeeds); seed++ {
				if failure := threeWorld(seed, noBug, wrong).judge(); failure != "" {
					t.Logf("seed %d: %s", seed, failure)
					return
				}
			}
			t.Fatal("not found")
		})
	}
}
