package sim

import (
	"errors"
	"time"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
)

// How faults strike a master. Each divides the connections to it: over some what is on its
// way still arrives, and over the others it is lost, or comes late.

// share says who still gets what is on its way when a fault strikes.
type share int

const (
	anybody share = iota // as it happens
	nobody
	somebody
	everybody
)

// Bounds of faults, so that nobody is silent for the time after which one counts as dead
// if it does not have to be.
const (
	mostHold    = 5 * time.Second
	mostNew     = 700 * time.Millisecond // of one that no ring has: others do not wait for it for longer than a second
	mostAway    = 100 * time.Millisecond
	mostBrief   = silence - beat - 100*time.Millisecond
	leastPause  = silence + 500*time.Millisecond
	mostPause   = 20 * time.Second
	mostReign   = 3 * time.Second // of a master that does not know that another one leads
	noAnswer    = time.Second     // is how long peers wait for a master that they cannot reach
	briefInMix  = time.Second     // where there are PCCL peers, sessions do not outlive more
	endsWithin  = 5 * time.Millisecond
	justArrived = 1 // behind what is on its way
)

// part is a connection to a master that a fault strikes.
type part struct {
	p    *peer
	lost bool          // what is on its way does not arrive, or not in time
	at   time.Duration // from now on, when the connection ends
}

// divide returns the connections to m, and what becomes of each.
func (w *world) divide(m *master, s share, within time.Duration) (parts []part) {
	for _, p := range w.peers {
		if p.line.to == m && m.conns[p.line.client] == p && !p.line.cut && !p.dead {
			parts = append(parts, part{p: p})
		}
	}
	for i := len(parts) - 1; i > 0; i-- {
		j := w.rng.n(i + 1)
		parts[i], parts[j] = parts[j], parts[i]
	}
	for i := range parts {
		r := &parts[i]
		switch {
		case s == anybody:
			r.lost, r.at = w.rng.chance(2), w.rng.between(0, within)
			continue
		case s == nobody || s == somebody && i == 0:
			r.lost = true
		case s == everybody || i == 1:
		default:
			r.lost = w.rng.chance(2)
		}
		if !r.lost {
			r.at = max(0, r.p.line.lastIn-w.now) + justArrived
		}
	}
	return parts
}

// strikeMaster has a fault strike the master, when all peers have a session.
func (w *world) strikeMaster(f fault) {
	if w.strangers() {
		w.after(5*time.Millisecond, nil, func() { w.inject(f) })
		return
	}
	m := w.master
	if m.dead || m.walls != nil { // it has ended, or is about to
		return
	}
	w.catch(f.kind)
	switch f.kind {
	case killMaster:
		w.killMaster(w.divide(m, f.share, w.within(endsWithin)), w.outage())
	case killBoth:
		down := w.outage()
		if p := w.victim(); p != nil {
			w.diesWith(p)
			down = max(down, 6*time.Millisecond) // connections have ended when it is missed
		}
		w.killMaster(w.divide(m, f.share, w.within(endsWithin)), down)
	case replaceMaster:
		w.replaceMaster(f.share)
	case pauseBriefly:
		w.pauseMaster(f.share, w.rng.between(0, w.atMost(mostBrief)))
	case pauseMaster:
		w.pauseMaster(f.share, w.rng.between(leastPause, mostPause))
	case blip:
		w.blip(f.share)
	case holdUp:
		w.holdUp(f.share)
	case cutOff:
		w.cutMasterOff(f.share)
	}
	w.someoneLeaves()
}

// diesWith has p die together with the master.
func (w *world) diesWith(p *peer) {
	w.tracef("FAULT: peer %d is killed with the master", p.id)
	w.heirs.lost++
	w.unheard(p)
	w.heirs.unmissed = w.heirs.unmissed || !w.misses(p)
	p.exit()
}

// outage is for how long there is no master.
func (w *world) outage() time.Duration {
	if w.rng.chance(4) {
		return w.rng.between(0, 3*time.Second)
	}
	return w.rng.between(0, 50*time.Millisecond)
}

// atMost bounds how long packets are late where not all sessions can be taken up again.
func (w *world) atMost(d time.Duration) time.Duration {
	if w.plan.natives == 1 {
		return min(d, briefInMix)
	}
	return d
}

// someoneLeaves has a peer leave soon, or in the middle of a call, while the others cope.
func (w *world) someoneLeaves() {
	if !w.plan.parts || !w.rng.chance(3) {
		return
	}
	p := w.victim()
	if p == nil {
		return
	}
	if !w.rng.chance(4) {
		w.tracef("peer %d has only this loop to go", p.id)
		p.trainer.loops = 1
		return
	}
	w.after(w.rng.between(0, 50*time.Millisecond), p, func() {
		if p.over || p.trainer.doing == "leave" || p.trainer.doing == "close" {
			return
		}
		w.tracef("FAULT: peer %d closes", p.id)
		w.heirs.lost++
		w.heirs.unmissed = true
		p.leave()
	})
}

// killMaster ends the master process. Every connection ends at a time of its own: what
// is on its way until then still arrives.
func (w *world) killMaster(parts []part, down time.Duration) {
	w.tracef("FAULT: the master is killed, and comes back after %v", down)
	w.heirs.kills++
	w.heirs.killed = max(w.heirs.killed, w.now)
	w.master.dead = true
	w.master.hangUp(parts)
	w.after(down, nil, w.startMaster)
}

// replaceMaster has another process lead. The connections to the first one end later, and
// until then it goes on as before.
func (w *world) replaceMaster(s share) {
	w.tracef("FAULT: another master leads")
	old := w.master
	within := w.reign()
	parts := w.divide(old, s, within)
	w.depose(old)
	old.hangUp(parts)
	w.finish(old, within)
}

// depose has another process lead than old, which does not know.
func (w *world) depose(old *master) {
	w.heirs.kills++
	w.heirs.former = old
	old.deposed = true
	w.startMaster()
}

// reign is how long a master goes on that leads no more.
func (w *world) reign() time.Duration {
	return []time.Duration{1, 1, 3 * time.Millisecond, 3 * time.Millisecond, 300 * time.Millisecond, mostReign}[w.rng.n(6)]
}

// finish ends a master that leads no more within a time.
func (w *world) finish(old *master, within time.Duration) {
	w.heirs.killed = max(w.heirs.killed, w.now+within)
	w.after(within, nil, func() {
		old.dead = true
		old.hangUp(w.divide(old, anybody, justArrived))
	})
}

// within returns most, and now and then hardly any time.
func (w *world) within(most time.Duration) time.Duration {
	if w.rng.chance(4) {
		return 1
	}
	return most
}

// pauseMaster has the master process stand still, and go on after that. What it had not
// written to a connection by then comes when it goes on; the system takes in for it what
// peers say.
func (w *world) pauseMaster(s share, d time.Duration) {
	w.tracef("FAULT: the master stands still for %v", d)
	m := w.master
	w.heirs.interrupts++
	m.stops = max(m.stops, w.now+d)
	for _, r := range w.divide(m, s, 1) {
		if r.lost {
			w.holdLine(r.p, m.stops, true, false)
		}
	}
}

// blip ends connections to a master that lives on.
func (w *world) blip(s share) {
	m := w.master
	w.heirs.interrupts++
	parts := w.divide(m, s, 1)
	if s == anybody && w.rng.chance(2) {
		parts = parts[:min(1, len(parts))] // one of them
	}
	for i, r := range parts {
		if s == somebody && !r.lost || s == everybody && i > 0 && w.rng.chance(2) {
			continue
		}
		p, client := r.p, r.p.line.client
		w.after(r.at, nil, func() {
			if p.line.client != client || p.line.cut || m.dead {
				return
			}
			w.tracef("FAULT: the connection of peer %d ends", p.id)
			p.line.cut = true
			w.after(w.rng.between(0, endsWithin), p, func() { p.lineEnded(client, errors.New("reset")) })
			late := endsWithin
			if w.rng.chance(3) {
				late = time.Second
			}
			w.at(max(p.line.lastOut+1, w.now+w.rng.between(0, late)), nil, func() { m.take(mfsm.Gone{Client: client, Reason: "reset"}) })
		})
	}
}

// holdUp has what travels over connections arrive late, in one direction or in both. Who is
// silent for longer than mostHold looks dead, and is: see blackHole.
func (w *world) holdUp(s share) {
	parts := w.divide(w.master, s, 1)
	if s == anybody && w.rng.chance(2) {
		parts = parts[:min(1, len(parts))]
	}
	most := w.atMost(mostHold)
	if w.rng.chance(2) {
		most = w.atMost(300 * time.Millisecond)
	}
	w.heirs.interrupts++
	for _, r := range parts {
		in, out := r.lost, w.rng.chance(2)
		switch {
		case s == somebody && !r.lost:
			continue
		case s == anybody:
			in = w.rng.chance(2)
		}
		if w.heirs.held[r.p.line.client] != nil {
			continue // twice would be too long
		}
		until := w.now + w.rng.between(0, most)
		switch {
		case r.p.line.dialing: // a member that is away has two seconds
			until = min(until, w.now+mostAway)
		case !r.p.m.View().Connected || r.p.m.View().Detached: // or it has been away for long, and is not back
			until = min(until, w.now+mostNew)
		}
		w.tracef("FAULT: what travels between the master and peer %d is held up until %v, to it %v, from it %v", r.p.id, until, in, out || !in)
		w.holdLine(r.p, until, in, out || !in)
	}
}

// cutMasterOff has some peers, or all, reach the master no more, which lives. Another one
// leads soon, and the first one does not know at once. Peers may notice that nothing comes by
// the silence alone.
func (w *world) cutMasterOff(s share) {
	old := w.master
	w.tracef("FAULT: the master is cut off")
	w.heirs.interrupts++
	old.walls = map[*peer]bool{}
	for i, r := range w.divide(old, s, 1) {
		if s == somebody && !r.lost || s == anybody && i > 0 && w.rng.chance(2) {
			continue // reaches it
		}
		p, client := r.p, r.p.line.client
		old.walls[p] = true
		w.after(r.at, nil, func() {
			if p.line.client != client || p.line.cut {
				return
			}
			p.line.cut, p.line.hole = true, true
			if w.rng.chance(2) || !p.native { // PCCL peers do not look at the time
				w.tracef("peer %d sees that the master is cut off", p.id)
				w.after(w.rng.between(0, endsWithin), p, func() { p.lineEnded(client, errors.New("no route")) })
			}
		})
	}
	if w.rng.chance(4) && w.plan.natives == 2 {
		old.stops = max(old.stops, w.now+w.rng.between(0, mostReign)) // and it stands still
	}
	w.after(w.rng.between(0, w.within(2*time.Second)), nil, func() {
		w.tracef("another master leads in the place of the one that is cut off")
		within := w.reign()
		w.depose(old)
		old.hangUp(w.divide(old, anybody, within))
		w.finish(old, within)
	})
}

// hold is a connection over which nothing arrives for a while.
type hold struct {
	until    time.Duration
	in, out  bool
	inQueue  []func()
	outQueue []func()
}

// holdLine holds up the connection of p to its master.
func (w *world) holdLine(p *peer, until time.Duration, in, out bool) {
	h, client := &hold{until: until, in: in, out: out}, p.line.client
	if was := w.heirs.held[client]; was != nil {
		was.until, was.in, was.out = max(was.until, until), was.in || in, was.out || out
		return
	}
	if w.heirs.held == nil {
		w.heirs.held = map[mfsm.ClientID]*hold{}
	}
	w.heirs.held[client] = h
	var release func()
	release = func() {
		if w.now < h.until {
			w.at(h.until, nil, release)
			return
		}
		delete(w.heirs.held, client)
		for _, do := range h.outQueue {
			do()
		}
		for _, do := range h.inQueue {
			w.after(0, p, do)
		}
	}
	w.at(until, nil, release)
}

// keeps reports whether a connection is held up in a direction, and keeps do if it is.
func (w *world) keeps(client mfsm.ClientID, in bool, do func()) bool {
	h := w.heirs.held[client]
	switch {
	case h == nil:
		return false
	case in && h.in:
		h.inQueue = append(h.inQueue, do)
	case !in && h.out:
		h.outQueue = append(h.outQueue, do)
	default:
		return false
	}
	return true
}

// hangUp ends connections to m, each at a time of its own.
func (m *master) hangUp(parts []part) {
	w := m.w
	for _, r := range parts {
		p, client := r.p, r.p.line.client
		w.after(r.at, nil, func() {
			if p.line.client == client && !p.line.cut {
				p.line.cut = true // the rest is lost
				w.after(0, p, func() { p.lineEnded(client, errors.New("connection reset")) })
			}
			if !m.dead {
				w.after(w.rng.between(0, time.Millisecond), nil, func() { m.take(mfsm.Gone{Client: client, Reason: "reset"}) })
			}
		})
	}
}

// shuffled returns what has piled up at a process in another order: what comes over one
// connection stays in order, and goroutines that read several go on in any.
func (w *world) shuffled(queue []mfsm.Event) []mfsm.Event {
	by := map[mfsm.ClientID][]mfsm.Event{}
	var order []mfsm.ClientID // of the event of each place
	for _, ev := range queue {
		c := clientOf(ev)
		by[c] = append(by[c], ev)
		order = append(order, c)
	}
	for i := len(order) - 1; i > 0; i-- {
		j := w.rng.n(i + 1)
		order[i], order[j] = order[j], order[i]
	}
	out := make([]mfsm.Event, 0, len(queue))
	for _, c := range order {
		out = append(out, by[c][0])
		by[c] = by[c][1:]
	}
	return out
}

// clientOf returns whose event it is, 0: nobody's.
func clientOf(ev mfsm.Event) mfsm.ClientID {
	switch ev := ev.(type) {
	case mfsm.Connected:
		return ev.Client
	case mfsm.PacketIn:
		return ev.Client
	case mfsm.Gone:
		return ev.Client
	}
	return 0
}

// provoked reports whether operations may fail: somebody was killed, or there are PCCL peers,
// which do not outlive their master, and where one fails another one if tags overlap (quirk Q18).
func (w *world) provoked() bool { return w.heirs.lost > 0 || w.plan.natives != 2 }
