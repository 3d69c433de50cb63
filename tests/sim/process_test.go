package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// master is one process of a master, and what reaches it.
type master struct {
	w       *world
	m       *mfsm.Machine
	dead    bool
	deposed bool // another one leads: nothing that it asks its authority is answered
	tick    time.Duration
	stops   time.Duration // it stands still until then
	queue   []mfsm.Event  // what happened meanwhile
	conns   map[mfsm.ClientID]*peer
	began   time.Duration
	saying  []*said           // in this step
	writing *mfsm.Registry    // asked for and not written yet
	said    []*said           // lately
	list    int               // the revocation list that it has read
	plans   map[uint32]uint64 // the last job for the plans of each group
	walls   map[*peer]bool    // who does not reach it
	seat    *seat             // of one among several
	watch   *watch            // ... and what it has been told
}

// newMaster starts a master process.
func (w *world) newMaster(cfg mfsm.Config) *master {
	return &master{w: w, m: mfsm.New(cfg), conns: map[mfsm.ClientID]*peer{}, plans: map[uint32]uint64{}, began: w.now, list: len(w.keys.lists) - 1}
}

// take lets the master process take an event.
func (m *master) take(ev mfsm.Event) {
	w := m.w
	if m.dead {
		return
	}
	if w.now < m.stops || len(m.queue) > 0 {
		if m.queue = append(m.queue, ev); len(m.queue) == 1 {
			w.at(m.stops, nil, m.wake)
		}
		return
	}
	m.step(ev)
}

// wake lets the master process go on with what has piled up.
func (m *master) wake() {
	w := m.w
	if w.now < m.stops { // it was stopped again
		w.at(m.stops, nil, m.wake)
		return
	}
	queue := m.queue
	m.queue = nil
	if w.heirs.on {
		queue = w.shuffled(queue)
	}
	for _, ev := range queue {
		m.step(ev)
	}
}

// after does something for the master process, unless it dies before.
func (m *master) after(d time.Duration, do func()) {
	m.w.after(d, nil, func() {
		if !m.dead {
			do()
		}
	})
}

// shut ends a connection.
func (m *master) shut(e mfsm.Close) {
	w := m.w
	if w.keys.thieves[e.Client] {
		m.after(0, func() { m.take(mfsm.Gone{Client: e.Client, Reason: "closed"}) })
		return
	}
	p := m.conns[e.Client]
	delete(m.conns, e.Client)
	w.tracef("master closes peer %d: %s", p.id, e.Reason)
	// PCCL's way with peers that report a failure (quirk Q5).
	reported := !p.native && (strings.Contains(e.Reason, "PEER_REGISTERED/CONNECTING_TO_PEERS_FAILED") ||
		strings.Contains(e.Reason, "no ring of group"))
	if p.line.client != e.Client && w.heirs.on {
		return // it has come back over another one
	}
	// A process that has stood still may read what a peer said over the connection before
	// last: the peer comes once more.
	again := w.heirs.on && e.Reason == "it has come back over another connection"
	// A PCCL peer that connects again may bring a later state than those who have begun without it.
	again = again || p.trainer.returned && strings.HasPrefix(e.Reason, "shared state revision")
	if m.walls[p] {
		return // it does not hear that, and is at another master soon
	}
	if !w.givesWay(e) && p.trainer.doing != "leave" && !w.excused && !p.dead && !p.over && !p.suspect && !p.outlawed() && !w.rough() && !reported && !again && !w.cornered(p) {
		w.failf("the master closed healthy peer %d: %s", p.id, e.Reason)
	}
	p.fromMaster(e.Client, func() { p.masterGone(nil) })
	m.after(w.rng.between(0, time.Millisecond), func() { m.take(mfsm.Gone{Client: e.Client, Reason: "closed"}) })
}

// commit writes the registry.
func (m *master) commit(e mfsm.Commit) {
	w := m.w
	if m.seat != nil {
		m.seat.ask(ask{m.seat.keeps(e.Registry), func() { m.take(mfsm.Committed{Number: e.Number}) }})
		return
	}
	r := &e.Registry
	m.writing = r
	m.after(w.rng.between(0, 5*time.Millisecond), func() {
		if m.deposed {
			return
		}
		if w.heirs.registry = *r; m.writing == r {
			m.writing = nil
		}
		told := func() { m.take(mfsm.Committed{Number: e.Number}) }
		if !w.heirs.on {
			told()
			return
		}
		m.after(w.rng.between(0, time.Millisecond), told)
	})
}

// switches is 1 if e tells a peer of a ring.
func switches(e mfsm.Effect) int {
	if s, ok := e.(mfsm.Send); ok && s.Packet.ID() == (wire.M2CSwitchRing{}).ID() {
		return 1
	}
	return 0
}

func (m *master) step(ev mfsm.Event) {
	w := m.w
	if m.dead {
		return
	}
	g, gone := ev.(mfsm.Gone)
	if m.watch != nil {
		m.watch.takes(m, ev)
	}
	if gone {
		delete(m.conns, g.Client)
	}
	effects := m.m.Step(w.now, ev)
	if w.bug == switchedLate {
		slices.SortStableFunc(effects, func(a, b mfsm.Effect) int { return cmp.Compare(switches(a), switches(b)) })
	}
	forgot := false
	syncDone := map[uint32]int{} // by group
	m.saying = nil
	for _, e := range effects {
		if m.watch != nil {
			m.does(ev, e)
		}
		switch e := e.(type) {
		case mfsm.Send:
			p := m.conns[e.Client]
			if m.toThief(e) {
				continue
			}
			if p == nil {
				w.failf("the master sends %T to a connection it closed", e.Packet)
				return
			}
			if w.misdoes(&e, gone, &forgot) {
				continue
			}
			if !w.heirs.on {
				w.collector.sent(w, p, e.Packet)
				w.collector.meshNews(w, p, e.Packet)
			}
			if _, ok := e.Packet.(wire.M2CSyncSharedStateComplete); ok {
				if syncDone[p.group] == 0 {
					syncDone[p.group] = w.collector.newSync()
				}
			}
			s := m.says(p, e.Packet)
			for _, pkt := range w.disguise(p, e.Packet) {
				m.deliver(e.Client, p, pkt, syncDone[p.group], s)
			}
		case mfsm.Close:
			m.shut(e)
		case mfsm.Solve:
			m.solve(e)
		case mfsm.Commit:
			m.commit(e)
		case mfsm.Confirm:
			if m.seat != nil {
				m.seat.ask(ask{nil, func() { m.take(mfsm.Confirmed(e)) }})
				continue
			}
			m.after(w.rng.between(0, 5*time.Millisecond), func() {
				if !m.deposed || w.bug == dropUnconfirmed {
					m.take(mfsm.Confirmed(e))
				}
			})
		case mfsm.StopSolve: // what comes late must mean nothing
		case mfsm.MakePlans:
			m.makePlans(e)
		case mfsm.Log:
			w.rounds(e.Fact)
			m.recovered(e.Fact)
			w.buried(e.Fact)
			if w.log.keep {
				w.log.facts = append(w.log.facts, e.Fact.Kind+": "+e.Fact.Text)
				w.log.factAt = append(w.log.factAt, w.now)
			}
			if w.log.tracing {
				w.tracef("master: %s: %s", e.Fact.Kind, e.Fact.Text)
			}
		}
	}
	m.struck()
	m.exactly()
	if at, ok := m.m.Deadline(); ok && !m.dead && (m.tick <= w.now || at < m.tick) {
		due := max(at, w.now+time.Microsecond)
		m.tick = due
		w.at(due, nil, func() {
			if m.tick == due {
				m.tick = 0
				m.take(mfsm.Tick{})
			}
		})
	}
}

// misdoes is what a master with a bug does to what it sends; it reports whether that is left out.
func (w *world) misdoes(e *mfsm.Send, gone bool, forgot *bool) bool {
	abort, verdict := e.Packet.(wire.M2CCollectiveCommsAbort)
	ring, switches := e.Packet.(wire.M2CSwitchRing)
	aborted := verdict && abort.Aborted && !*forgot
	switch {
	case w.bug == abortForgotten && aborted, w.bug == switchForgotten && switches && ring.Ring != nil && !*forgot:
		*forgot = true
		return true
	case w.bug == verdictFlipped && aborted:
		*forgot, abort.Aborted = true, false
		e.Packet = abort
	case w.bug == voteForgotten:
		return gone && e.Packet.ID() < 10
	}
	return false
}

// deliver puts a packet on its way to a peer.
func (m *master) deliver(client mfsm.ClientID, p *peer, pkt wire.Packet, sync int, s *said) {
	w := m.w
	if r, ok := pkt.(wire.M2CSessionRegistrationResponse); ok && !r.Accepted && m.watch != nil {
		m.watch.turned[client] = true
	}
	if p.line.hole {
		return
	}
	p.line.flying++
	var due time.Duration
	p.fromMaster(client, func() {
		if p.line.cut {
			return
		}
		defer p.arrived()
		if w.council != nil {
			w.council.consumed(p, pkt)
		}
		if w.now <= due {
			s.heardBy(p)
		}
		if _, ends := pkt.(wire.M2CSyncSharedStateComplete); ends {
			p.memory.sync = sync
		}
		if w.heirs.on {
			w.consumed(p, pkt)
		}
		if w.log.tracing {
			w.tracef("peer %d <- %s", p.id, show(pkt))
		}
		p.packet(pkt)
	})
	due = p.line.lastIn
}

// solve answers with some ring or with none.
func (m *master) solve(e mfsm.Solve) {
	w := m.w
	draw := func() mfsm.Solved {
		ev := mfsm.Solved{Job: e.Job}
		if w.rng.chance(4) {
			ev.Err = fmt.Errorf("no ring found")
			return ev
		}
		order := make([]int, len(e.Members))
		for i := range order {
			order[i] = i
		}
		tries := 1
		if w.plan.eager {
			tries = 20 // some ring whose links are known
		}
		for range tries {
			for i := len(order) - 1; i > 0; i-- {
				j := w.rng.n(i + 1)
				order[i], order[j] = order[j], order[i]
			}
			if _, _, ok := e.Matrix.Value(order); ok {
				break
			}
		}
		for _, i := range order {
			ev.Ring = append(ev.Ring, e.Members[i])
		}
		return ev
	}
	ev := draw()
	took := w.rng.between(time.Millisecond, 50*time.Millisecond)
	if e.Background {
		took = w.rng.between(0, 40*time.Second)
		if w.plan.eager {
			took = w.rng.between(0, 60*time.Millisecond)
		}
		more := []mfsm.Solved{ev}
		for w.plan.eager && len(more) < 8 {
			more = append(more, draw())
		}
		for _, r := range more {
			if r.Ring != nil {
				r.More = true
				m.after(w.rng.between(0, took+1), func() { m.take(r) })
			}
		}
	}
	m.after(took, func() { m.take(ev) })
}

// makePlans answers with the plans of a group. What nobody asks for any more may be given up,
// or made all the same: it must mean nothing.
func (m *master) makePlans(e mfsm.MakePlans) {
	w := m.w
	r := rng(w.seed<<32 ^ e.Job) // apart from the others: most worlds have no such plans
	took := r.between(0, 20*time.Millisecond)
	if r.chance(4) {
		took = r.between(0, 300*time.Millisecond)
	}
	m.plans[e.Group] = e.Job
	w.collector.jobs++
	m.after(took, func() {
		ev := mfsm.PlansMade{Job: e.Job, Direct: e.Basis.Make(nil)}
		if last := m.plans[e.Group]; last != e.Job {
			if w.collector.stale++; r.chance(3) {
				return
			}
			if w.bug == staleTaken {
				ev.Job = last
			}
		}
		m.take(ev)
	})
}
