package sim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// heirs is what outlives a master process, and what must hold from one to the next.
type heirs struct {
	on         bool // peers resume
	registry   mfsm.Registry
	life       int           // masters before this one
	former     *master       // that was replaced last
	killed     time.Duration // when the last connection to that had ended
	kills      int
	interrupts int
	lost       int               // peers that were killed with one
	unmissed   bool              // ... of which hardly anybody says that it is missed
	decides    bool              // something does who leads
	seen       map[uint64]string // what a number of a collective was used for
	answers    map[uint64]bool   // to queries
	terms      map[int]uint32    // the highest that a peer has obeyed
	aimed      []fault           // at what masters say
	times      map[wire.ID]int   // how often that was said
	caught     []caught          // what was on its way when a fault struck
	deaths     map[wire.UUID]death
	waits      []time.Duration // for those who were dead
	exact      *exact          // nil: faults are drawn
}

// newHeirs are those of a world in which peers resume.
func newHeirs(decides bool) heirs {
	return heirs{
		on: true, decides: decides, seen: map[uint64]string{}, answers: map[uint64]bool{}, terms: map[int]uint32{},
		times: map[wire.ID]int{},
	}
}

// reattach bounds how long a session goes on without a master.
const reattach = 60 * time.Second

// masterConfig is that of the master of a term.
func (w *world) masterConfig(term uint32) mfsm.Config {
	cfg := mfsm.Config{
		NewUUID: w.newUUID, HeartbeatInterval: beat, HeartbeatTimeout: silence,
		RegisterTimeout: registerBound, RoundTimeout: roundBound, VoteTimeout: voteBound, WarnVoteAfter: voteBound / 2,
		Solver: true, Background: true, Switch: true, Patience: patience, BeginAnew: w.seed%3 == 0,
		Term: term, Authority: w.seed%5 == 4, Registry: w.heirs.registry,
	}
	w.keys.configure(&cfg)
	if w.heirs.on {
		cfg.Linger = 2 * time.Second
		cfg.Resume, cfg.Authority = true, w.heirs.decides
		if !cfg.Authority {
			cfg.Term, cfg.Registry, cfg.DropLost = 0, mfsm.Registry{}, true
		}
		if w.bug == numbersForgotten {
			cfg.Term, cfg.Authority = 0, true
		}
	}
	return cfg
}

// endMaster has a fault strike the master, when all peers have a session.
func (w *world) endMaster(f fault) {
	if w.strangers() {
		w.after(5*time.Millisecond, nil, func() { w.inject(f) })
		return
	}
	if w.master.dead {
		return
	}
	w.catch(f.kind)
	down := w.rng.between(0, 50*time.Millisecond)
	if w.rng.chance(4) {
		down = w.rng.between(0, 3*time.Second)
	}
	switch {
	case f.kind == replaceMaster:
		w.replaceMaster()
		return
	case f.kind == killBoth:
		if p := w.victim(); p != nil {
			w.tracef("FAULT: peer %d is killed with the master", p.id)
			w.heirs.lost++
			w.unheard(p)
			w.heirs.unmissed = w.heirs.unmissed || !w.misses(p)
			down = max(down, 6*time.Millisecond) // connections have ended when it is missed
			p.exit()
		}
	}
	w.killMaster(down)
}

// interrupt cuts one peer off from the master, or all for the time that it stands still.
func (w *world) interrupt(f fault) {
	if w.strangers() {
		w.after(5*time.Millisecond, nil, func() { w.inject(f) })
		return
	}
	m := w.master
	if m.dead {
		return
	}
	w.heirs.interrupts++
	if f.kind == pauseMaster {
		d := w.rng.between(0, 20*time.Second)
		w.tracef("FAULT: the master stands still for %v", d)
		m.stops = max(m.stops, w.now+d)
		return
	}
	p := w.victim()
	if p == nil || p.line.to != m || p.line.cut || p.line.dialing {
		return
	}
	w.tracef("FAULT: the connection of peer %d ends", p.id)
	client := p.line.client
	p.line.cut = true
	w.after(w.rng.between(0, 5*time.Millisecond), p, func() { p.lineEnded(client, errors.New("reset")) })
	late := 5 * time.Millisecond
	if w.rng.chance(3) {
		late = time.Second
	}
	w.after(w.rng.between(0, late), nil, func() { m.take(mfsm.Gone{Client: client, Reason: "reset"}) })
}

// misses reports whether all others notice that p is gone: a ring stands, and no other one
// is in the making.
func (w *world) misses(p *peer) bool {
	if w.heirs.lost > 1 || w.heirs.times[70] != w.heirs.times[71] {
		return false
	}
	for _, c := range w.heirs.caught {
		if c.id >= 70 && c.id < 80 && c.heard != c.sent {
			return false
		}
	}
	for _, o := range w.peers {
		v := o.m.View()
		quiet := slices.Contains([]string{"sync", "launch", "pending", "await"}, o.trainer.doing)
		if !o.dead && !o.over && (!v.Connected || v.LocalWorldSize < 2 || v.Detached || !quiet) {
			return false
		}
	}
	return true
}

// killMaster ends the master process. Every connection ends at a time of its own: what
// is on its way until then still arrives.
func (w *world) killMaster(down time.Duration) {
	w.tracef("FAULT: the master is killed, and comes back after %v", down)
	w.heirs.kills++
	w.heirs.killed = max(w.heirs.killed, w.now)
	w.master.dead = true
	w.master.hangUp(w.within(5 * time.Millisecond))
	w.after(down, nil, w.startMaster)
}

// replaceMaster has another process lead. The connections to the first one end later, and
// until then it goes on as before.
func (w *world) replaceMaster() {
	w.tracef("FAULT: another master leads")
	old := w.master
	w.heirs.kills++
	w.heirs.former = old
	old.deposed = true
	within := []time.Duration{1, 1, 3 * time.Millisecond, 3 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second}[w.rng.n(6)]
	w.heirs.killed = max(w.heirs.killed, w.now+within)
	w.startMaster()
	old.hangUp(within)
	w.after(within, nil, func() {
		old.dead = true
		old.hangUp(1)
	})
}

// within returns most, and now and then hardly any time.
func (w *world) within(most time.Duration) time.Duration {
	if w.rng.chance(4) {
		return 1
	}
	return most
}

// startMaster begins the next master process.
func (w *world) startMaster() {
	w.heirs.life++
	w.tracef("master %d starts", w.heirs.life)
	w.master = w.newMaster(w.masterConfig(uint32(w.heirs.life)))
	w.master.step(mfsm.Tick{})
}

// hangUp ends the connections to m, each at a time of its own.
func (m *master) hangUp(within time.Duration) {
	w := m.w
	for _, p := range w.peers {
		client := p.line.client
		if p.line.to != m || m.conns[client] != p || p.line.cut {
			continue
		}
		w.after(w.rng.between(0, within), nil, func() {
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

// detached reports whether some session has no master.
func (w *world) detached() bool {
	return slices.ContainsFunc(w.peers, func(p *peer) bool { return !p.over && !p.dead && (p.line.cut || p.m.View().Detached) })
}

// forgotten reports whether what a peer was told may be unknown to the master: it has
// left since one died.
func (w *world) forgotten(id int) bool {
	return w.heirs.kills+w.heirs.interrupts > 0 && (w.peers[id].over || w.peers[id].dead)
}

// strangers reports whether a peer has no session yet.
func (w *world) strangers() bool {
	return slices.ContainsFunc(w.peers, func(p *peer) bool { return p.uuid == wire.UUID{} && !p.over && !p.dead })
}

// lineEnded tells the session that its connection has ended.
func (p *peer) lineEnded(client mfsm.ClientID, err error) {
	if p.line.client != client || p.over {
		return
	}
	p.w.tracef("peer %d: master connection ended", p.id)
	if p.line.dialing {
		p.line.dialing = false
		p.step(pfsm.NotAttached{Err: err})
		return
	}
	p.step(pfsm.MasterGone{Err: err})
}

// reattach looks for a master.
func (p *peer) reattach(e pfsm.Reattach) {
	w := p.w
	p.hangUp()
	p.line.client, p.line.dialing = 0, true
	w.after(e.After+w.rng.between(100*time.Microsecond, 2*time.Millisecond), p, func() {
		to := w.master
		if old := w.heirs.former; old != nil && !old.dead && w.rng.chance(3) {
			to = old
		}
		switch {
		case p.over:
			return
		case to.dead:
			p.line.dialing = false
			p.step(pfsm.NotAttached{Err: errors.New("refused")})
			return
		}
		p.dial(to)
		w.tracef("peer %d -> %s", p.id, show(e.Hello))
		p.stolen(e.Hello)
		p.toMaster(mfsm.Connected{Client: p.line.client, Remote: netip.AddrPortFrom(p.ip, 9), Who: p.who()})
		p.toMaster(mfsm.PacketIn{Client: p.line.client, Packet: e.Hello})
		client := p.line.client
		w.after(w.rng.between(time.Second, 3*time.Second), p, func() {
			if p.line.client == client && p.line.dialing && !p.over {
				p.hangUp()
				p.lineEnded(client, errors.New("no answer"))
			}
		})
	})
}

// hangUp ends what connection there is to a master.
func (p *peer) hangUp() {
	if p.line.client != 0 && !p.line.cut {
		p.toMaster(mfsm.Gone{Client: p.line.client, Reason: "closed"})
	}
	p.line.cut = true
}

// attach takes the first packet of a connection that was dialled.
func (p *peer) attach(r wire.M2CSessionRegistrationResponse) {
	w := p.w
	p.line.dialing = false
	if r.UUID != p.uuid && r.Accepted {
		w.failf("peer %d comes back as %s, and was %s", p.id, r.UUID.Short(), p.uuid.Short())
	}
	p.step(pfsm.Attached{Packet: r})
	if term := r.Ext.Resuming.Term; !p.over && !p.line.dialing && p.line.client != 0 {
		if term < w.heirs.terms[p.id] {
			w.failf("peer %d obeys a master of term %d, and has obeyed one of term %d", p.id, term, w.heirs.terms[p.id])
		}
		w.heirs.terms[p.id] = term
	}
}

// consumed checks what a peer is told, by all masters together.
func (w *world) consumed(p *peer, pkt wire.Packet) {
	if c, ok := pkt.(wire.M2CCollectiveCommsCommence); ok {
		what := fmt.Sprintf("tag %d of group %d", c.Tag, p.group)
		if was, known := w.heirs.seen[c.SeqNr]; known && was != what {
			w.failf("number %d is that of %s, and was that of %s", c.SeqNr, what, was)
		}
		w.heirs.seen[c.SeqNr] = what
		p.trainer.old = slices.DeleteFunc(p.trainer.old, func(v wire.ReportedVerdict) bool { return v.Tag == c.Tag })
		p.trainer.old = append(p.trainer.old, wire.ReportedVerdict{Tag: c.Tag, Seq: c.SeqNr})
	}
	if a, ok := pkt.(wire.M2CPeersPendingResponse); ok && a.Decision != 0 {
		if was, known := w.heirs.answers[a.Decision]; known && was != a.PeersPending {
			w.failf("question %d is answered %v, and was answered %v", a.Decision, a.PeersPending, was)
		}
		w.heirs.answers[a.Decision] = a.PeersPending
	}
	var ring []wire.UUID
	switch pkt := pkt.(type) {
	case wire.M2CP2PConnectionsEstablished:
		if pkt.Success {
			ring = pkt.Ring
		}
	case wire.M2CSwitchRing:
		ring = pkt.Ring
	case wire.M2CRingWithout:
		for _, u := range p.m.View().Ring {
			if o := w.byUUID(u); !slices.Contains(pkt.Ring, u) && o.trainer.doing != "leave" && !o.outlawed() {
				w.failf("peer %d goes on without peer %d", p.id, o.id)
			}
		}
	}
	for _, u := range p.m.View().Ring {
		if o := w.byUUID(u); ring != nil && !o.dead && !o.over && o.trainer.doing != "leave" && !o.outlawed() && !slices.Contains(ring, u) {
			w.failf("peer %d has a ring without peer %d", p.id, o.id)
		}
	}
	w.collector.sent(w, p, pkt)
	w.collector.meshNews(w, p, pkt)
}

// mortalWorld is a world in which the master dies, and nothing else happens.
func mortalWorld(seed uint64, bug mutation) *world {
	w := emptyWorld(seed, bug)
	w.heirs = newHeirs(seed%2 == 0)
	w.master = w.newMaster(w.masterConfig(0))
	w.plan = scenario{groups: 1, natives: 2, loops: 2 + w.rng.n(3), optimize: w.rng.chance(2), overlap: w.rng.chance(3)}
	w.plan.eager = w.rng.chance(2)
	w.plan.others = seed%3 == 0
	w.plan.apart = seed%7 < 2
	w.plan.drain = seed%4 < 2
	if w.plan.drain {
		w.plan.loops++
	}
	n := 2 + w.rng.n(3)
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, w.spawnOne)
	}
	for range 2 + w.rng.n(3) {
		f := fault{at: 1 + w.rng.n(60*n*w.plan.loops), kind: []kind{killMaster, killBoth, replaceMaster, replaceMaster}[w.rng.n(4)]}
		if w.rng.chance(6) {
			f.kind = pauseMaster + kind(min(w.rng.n(4), 1))
		}
		if f.kind == replaceMaster && !w.heirs.decides {
			f.kind = killMaster // nobody says which of two leads
		}
		if !w.rng.chance(3) {
			f.aim, f.nth = phases[w.rng.n(len(phases))].id, 1+min(w.rng.n(4), w.rng.n(4))
			switch w.rng.n(9) { // few worlds change their rings
			case 0:
				f.aim, f.nth, w.plan.eager = 70+wire.ID(w.rng.n(2)), 1, true
			case 1, 2:
				if w.plan.drain {
					f.aim, f.nth = 74+2*wire.ID(w.rng.n(2)), 1
				}
			}
			w.heirs.aimed = append(w.heirs.aimed, f)
			continue
		}
		w.faults = append(w.faults, f)
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// The master dies at every step, and no call fails because of it.
func TestMasterDies(t *testing.T) {
	if *oneSeed != 0 {
		w := mortalWorld(*oneSeed, noBug)
		w.log.tracing = *trace
		failure := w.run()
		t.Log(strings.Join(w.log.lines, "\n"))
		require.Empty(t, failure)
		return
	}
	n, failed := min(*seeds, 100000), 0
	if raceEnabled {
		n = min(n, 500)
	}
	kills, successes, table := 0, 0, map[cell]int{}
	for seed := *first; seed < *first+uint64(n); seed++ {
		w := mortalWorld(seed, noBug)
		failure := w.run()
		if failure == "" && w.unprovoked > 0 && w.heirs.lost == 0 {
			failure = fmt.Sprintf("%d operations have failed", w.unprovoked)
		}
		if failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
			if failed++; failed == 10 {
				t.FailNow()
			}
		}
		w.tally(table)
		kills += w.heirs.kills
		successes += w.collector.successes
	}
	t.Logf("%d seeds, the master died %d times, %d operations", n, kills, successes)
	require.Positive(t, successes)
	covered(t, table, n)
}

// forget takes from a report what a peer with a bug does not say.
func (p *peer) forget(pkt wire.Packet) wire.Packet {
	r, ok := pkt.(wire.C2MReport)
	if !ok {
		return pkt
	}
	switch p.w.bug {
	case verdictsForgotten:
		r.Verdicts = nil
	case answersForgotten:
		r.Query.Decision = 0
	case electionsForgotten:
		if r.Call.Step == wire.StepFetching || r.Call.Step == wire.StepSynced {
			r.Call.Step = wire.StepElection
		}
	case roundsForgotten:
		if r.Call.Step == wire.StepRing {
			r.Call.Decision++
		}
	case endsForgotten:
		r.Synced = 0
	case oldVerdicts:
		for _, v := range p.trainer.old {
			if !slices.ContainsFunc(r.Verdicts, func(o wire.ReportedVerdict) bool { return o.Tag == v.Tag }) {
				r.Verdicts = append(r.Verdicts, v)
			}
		}
	}
	return r
}

// Bugs of the kind that a recovery can have are found.
func TestMasterDiesWithBugs(t *testing.T) {
	for bug, name := range map[mutation]string{
		numbersForgotten: "numbers", verdictsForgotten: "verdicts", answersForgotten: "answers",
		electionsForgotten: "elections", roundsForgotten: "rounds", endsForgotten: "ends",
		dropUnconfirmed: "drops", switchedLate: "switches", oldVerdicts: "newcomers",
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 3000; seed++ {
				w := mortalWorld(seed, bug)
				if failure := w.run(); failure != "" || w.unprovoked > 0 && w.heirs.lost == 0 {
					t.Logf("seed %d: %s", seed, failure)
					return
				}
			}
			t.Fatal("not found")
		})
	}
}
