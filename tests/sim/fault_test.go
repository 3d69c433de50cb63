package sim

import (
	"errors"
	"slices"
	"time"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// kind is what can go wrong.
type kind int

const (
	kill        kind = iota // the process ends, the system closes its connections
	powerLoss               // the machine is gone without a word
	cutMaster               // the master connection breaks
	blackHole               // the master connection swallows everything
	cutPeers                // a P2P connection breaks
	block                   // two peers cannot connect for a while
	unreachable             // a peer cannot be connected to, or cannot connect, for good
	stop                    // the process stands still for a while
	stopMaster              // the master process stands still for a while
	join                    // a new peer comes
	cancel                  // the caller of the pending call gives up
	closeNow                // the trainer closes in the middle of a call
	numKinds

	killMaster    // the master process ends, and another one begins
	replaceMaster // another one begins to lead, while peers are at the first one
	killBoth      // the process ends, and that of a peer
	pauseBriefly  // it stands still for less than peers wait for a sign of life
	pauseMaster   // ... for longer
	blip          // the connections of one peer or some end, and these come back
	holdUp        // what travels over connections comes late
	cutOff        // peers do not reach it, and another one begins to lead while it lives
	mostKinds
	revoke // the certificate of a peer is revoked; in TLS
	expire // ... expires

	strikeMasters // something happens to one of several masters
)

// fault strikes when the run has handled a number of events: every step of
// every phase is hit by some seed.
type fault struct {
	at   int
	kind kind
	amid bool    // ... or as soon after as a collective other than an all-reduce is under way
	aim  wire.ID // not 0: it strikes when a master says this for the nth time
	nth  int
	// share says who still hears what it was aimed at.
	share share
}

// scenario is what a run begins with.
type scenario struct {
	groups  int
	natives int // 0 none, 1 some, 2 all
	loops   int
	// optimize after every accept round, which all groups share; with one group
	// the revision tells when.
	optimize bool
	// overlap asks for newcomers while the reductions run.
	overlap bool
	// eager: searches beside the run find rings soon.
	eager bool
	// reuse: operations that fail are launched again before the round, if others are not
	// awaited yet; all peers are gopccl peers.
	reuse bool
	// others: one collective other than an all-reduce in each loop; all peers are
	// gopccl peers.
	others bool
	kind   plan.Kind // of them; all-reduce: any
	agree  bool      // they are called with the same arguments by all
	alone  bool      // no mesh can be had
	// messages: members send messages to each other in each loop; all peers are gopccl peers.
	messages bool
	mends    bool // connections that are cut come back without a round
	// apart: the peers are far from each other. oneWay: all of them, and the master, by as
	// much.
	apart  bool
	oneWay time.Duration
	// remote: the peers, or some, are far from the master.
	remote bool
	events int // 0: maxEvents
	// forward: most all-reduces are finished forward.
	forward bool
	// older: the first peer is of a version that knows nothing of finishing forward.
	older bool
	// tear: holders die while others fetch from them.
	tear bool
	// drain: who has done its work leaves between two collectives.
	drain bool
	// parts: peers leave while a master is away, in good order or not.
	parts bool
}

// places draws where the peers are: in some worlds far from each other, or from the master, or both.
func (s *scenario) places(seed uint64) { s.apart, s.remote = seed%7 < 3, 0 < seed%7 && seed%7 < 4 }

// emptyWorld has a master and no peers.
func emptyWorld(seed uint64, bug mutation) *world {
	w := &world{
		seed: seed, rng: rng(seed * 0x2545f4914f6cdd1d), links: map[[2]int]*link{}, blocked: map[[2]int]bool{},
		collector: newBook(), bug: bug, keys: newKeys(),
	}
	if seed%4 != 0 {
		w.eagerBytes = 1 << 20
	}
	w.master = w.newMaster(w.masterConfig(uint32(seed % 3)))
	return w
}

// newWorld draws the scenario of a seed.
func newWorld(seed uint64, bug mutation) *world {
	w := emptyWorld(seed, bug)
	w.plan = scenario{groups: 1, natives: min(w.rng.n(5), 2), loops: 2 + w.rng.n(3), optimize: w.rng.chance(2), overlap: w.rng.chance(3)}
	w.plan.eager, w.plan.forward = w.rng.chance(2), seed%4 != 1
	if w.rng.chance(4) { // with PCCL peers a failed collective stops all groups
		w.plan.groups, w.plan.natives = 2, 2
	}
	w.plan.reuse = w.plan.natives == 2 && w.rng.chance(2)
	w.plan.others = w.plan.natives == 2 && seed%2 == 0
	w.plan.places(seed)
	n := 2 + min(w.rng.n(5), w.rng.n(5))
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, w.spawnOne)
	}
	faults := w.rng.n(5)
	if w.rng.chance(8) {
		faults = w.rng.n(16)
	}
	for range faults {
		w.faults = append(w.faults, fault{at: 1 + w.rng.n(60*n*w.plan.loops), kind: w.someKind(), amid: w.plan.others && w.rng.chance(2)})
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// someKind draws a kind of fault.
func (w *world) someKind() kind {
	if !w.keys.on {
		return kind(w.rng.n(int(numKinds)))
	}
	if k := kind(w.rng.n(int(numKinds) + 2)); k < numKinds {
		return k
	} else {
		return k - numKinds + revoke
	}
}

// allKinds are those that someKind draws, one bit each.
func allKinds() uint {
	kinds := uint(1)<<numKinds - 1
	if inTLS {
		kinds |= 1<<revoke | 1<<expire
	}
	return kinds
}

func (w *world) spawnOne() {
	w.served(func() {
		native := w.plan.natives == 2 || w.plan.natives == 1 && w.rng.chance(2)
		w.spawn(uint32(w.rng.n(w.plan.groups)), native, w.plan.loops+w.rng.n(2))
	})
}

// served starts a peer as soon as there is a master that newcomers find.
func (w *world) served(spawn func()) {
	if w.council != nil {
		if !w.council.open() {
			w.after(20*time.Millisecond, nil, func() { w.served(spawn) })
			return
		}
		w.council.opened = true
		spawn()
		return
	}
	blind := !w.heirs.decides && (w.now < w.heirs.killed+20*time.Millisecond || w.detached())
	if w.heirs.on && (w.now < w.master.stops || w.heirs.kills > 0 && (w.master.dead || blind)) {
		// Only a session can wait for a master, and without a registry the first that comes
		// to one that knows nothing begins a run.
		w.after(20*time.Millisecond, nil, func() { w.served(spawn) })
		return
	}
	spawn()
}

// victim returns some peer that is at work, nil if there is none.
func (w *world) victim() *peer {
	var l []*peer
	for _, p := range w.peers {
		if !p.dead && !p.over && !p.stopped {
			l = append(l, p)
		}
	}
	if len(l) == 0 {
		return nil
	}
	return l[w.rng.n(len(l))]
}

// isolate takes from p for good that it can be connected to (way 1), that it can
// connect (2), or both (3); with cut, connections that stand break, too.
func (w *world) isolate(p *peer, way int, cut bool) {
	w.tracef("FAULT: peer %d is out of reach for good, way %d, cut %v", p.id, way, cut)
	p.mesh.deaf, p.mesh.dumb, p.suspect = p.mesh.deaf || way&1 != 0, p.mesh.dumb || way&2 != 0, true
	for _, o := range w.peers {
		if cut && way&1 != 0 {
			w.breakLink(o, p)
		}
		if cut && way&2 != 0 {
			w.breakLink(p, o)
		}
	}
}

// cornered reports whether p meets hardly any others than peers that are out of
// reach: of two neither can tell whose fault it is, and a newcomer among them
// looks like one.
func (w *world) cornered(p *peer) bool {
	isolated, members := 0, 0
	for _, o := range w.peers {
		if o.group == p.group && (o.mesh.deaf || o.mesh.dumb) {
			isolated++
		}
	}
	if w.master.dead {
		return false
	}
	books := w.master.m.Snapshot()
	for _, g := range books.Groups {
		if g.ID == p.group {
			members = g.Members
		}
	}
	for _, c := range books.Clients { // those whose loss of power it has not noticed show no newcomer that it reaches anybody
		if p.m.View().Connected {
			break
		}
		if o := w.byUUID(c.UUID); o != nil && o.group == p.group && o.lostPower && c.Phase == mfsm.Accepted {
			members--
		}
	}
	return isolated > 1 || isolated == 1 && members <= 2
}

func (w *world) inject(f fault) {
	w.struck |= 1 << f.kind
	w.noteAmid(f.kind)
	switch f.kind {
	case strikeMasters:
		w.council.strike()
	case killMaster, replaceMaster, killBoth, pauseBriefly, pauseMaster, blip, holdUp, cutOff:
		w.strikeMaster(f)
	case revoke, expire:
		w.outlaw(f)
	case join:
		w.spawnOne()
	case stopMaster:
		d := w.rng.between(0, 12*time.Second)
		w.tracef("FAULT: master stands still for %v", d)
		w.master.stops = max(w.master.stops, w.now+d)
	default:
		if p := w.victim(); p != nil {
			w.strike(f, p)
		}
	}
}

// strike injects a fault at a peer.
func (w *world) strike(f fault, p *peer) {
	switch f.kind {
	case kill:
		w.tracef("FAULT: peer %d is killed", p.id)
		w.dies(p)
		p.exit()
	case powerLoss:
		if p.native {
			w.tracef("FAULT: peer %d loses power", p.id)
			p.suspect, p.lostPower, p.dead, p.line.hole = true, true, true, true
			// Keepalives of the others end what is left of its connections.
			w.after(keepalive, nil, func() {
				for _, o := range w.peers {
					w.breakLink(p, o)
					w.breakLink(o, p)
				}
			})
		}
	case cutMaster:
		w.tracef("FAULT: master connection of peer %d breaks", p.id)
		p.toMaster(mfsm.Gone{Client: p.line.client, Reason: "reset"})
		p.fromMaster(p.line.client, func() { p.masterGone(errors.New("connection reset")) })
	case blackHole:
		if p.native {
			w.tracef("FAULT: master connection of peer %d swallows everything", p.id)
			p.suspect, p.line.hole = true, true
		}
	case cutPeers:
		if o := w.victim(); o != nil && o != p {
			w.tracef("FAULT: cut between %d and %d", p.id, o.id)
			w.breakLink(p, o)
			if w.rng.chance(2) {
				w.breakLink(o, p)
			}
			if w.plan.mends {
				w.mends(p, o)
				w.mends(o, p)
			}
		}
	case block:
		if o := w.victim(); o != nil && o != p {
			w.tracef("FAULT: peers %d and %d cannot connect", p.id, o.id)
			w.excused = true
			a, b := [2]int{p.id, o.id}, [2]int{o.id, p.id}
			w.blocked[a], w.blocked[b] = true, true
			w.breakLink(p, o)
			w.breakLink(o, p)
			w.after(w.rng.between(0, time.Second), nil, func() { delete(w.blocked, a); delete(w.blocked, b) })
		}
	case unreachable:
		w.isolate(p, 1+w.rng.n(3), w.rng.chance(2))
	case stop:
		d := w.rng.between(0, 3*time.Second)
		if w.rng.chance(3) {
			d = w.rng.between(0, 20*time.Second)
		}
		w.tracef("FAULT: peer %d stands still for %v", p.id, d)
		p.stopped, p.suspect = true, true
		w.after(d, nil, func() {
			w.tracef("peer %d goes on", p.id)
			p.stopped, p.mesh.awake = false, w.now
			for _, do := range p.backlog {
				w.after(0, p, do)
			}
			p.backlog = nil
		})
	case cancel:
		if _, pending := p.calls[p.trainer.current]; pending {
			w.tracef("FAULT: the caller of %s at peer %d gives up", p.trainer.doing, p.id)
			ev := pfsm.CallCancel{Call: p.trainer.current}
			if p.trainer.awaiting != nil {
				ev.Op = p.trainer.awaiting.id
				p.trainer.awaiting.canceled = true
			}
			p.step(ev)
		}
	case closeNow:
		w.tracef("FAULT: peer %d closes", p.id)
		p.leave()
	}
}
