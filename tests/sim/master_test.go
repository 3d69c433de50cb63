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
	on       bool // peers resume
	registry mfsm.Registry
	life     int // of the master; events of earlier ones mean nothing
	down     bool
	killed   time.Duration // when the last one was
	kills    int
	seen     map[uint64]string // what a number of a collective was used for
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
	if w.heirs.on {
		cfg.Resume, cfg.Authority = true, w.seed%2 == 0
		if !cfg.Authority {
			cfg.Term, cfg.Registry, cfg.DropLost = 0, mfsm.Registry{}, true
		}
		if w.bug == numbersForgotten {
			cfg.Term, cfg.Authority = 0, true
		}
	}
	return cfg
}

// endMaster kills the master, when all peers have a session.
func (w *world) endMaster(f fault) {
	if w.strangers() {
		w.after(5*time.Millisecond, nil, func() { w.inject(f) })
		return
	}
	if !w.heirs.down {
		down := w.rng.between(0, 50*time.Millisecond)
		if w.rng.chance(4) {
			down = w.rng.between(0, 3*time.Second)
		}
		w.killMaster(down)
	}
}

// killMaster ends the master process. Every connection ends at a time of its own: what
// is on its way until then still arrives.
func (w *world) killMaster(down time.Duration) {
	h := &w.heirs
	w.tracef("FAULT: the master is killed, and comes back after %v", down)
	h.kills++
	h.killed = w.now
	h.life++
	h.down = true
	conns := w.master.conns
	w.master.m, w.master.conns, w.master.queue, w.master.tick, w.master.stops = nil, map[mfsm.ClientID]*peer{}, nil, 0, 0
	for _, p := range w.peers {
		client := p.line.client
		if conns[client] != p || p.line.cut {
			continue
		}
		w.after(w.rng.between(0, 5*time.Millisecond), nil, func() {
			if p.line.client == client {
				p.line.cut = true // the rest is lost
				w.after(0, p, func() { p.lineEnded(client, errors.New("connection reset")) })
			}
		})
	}
	term, life := uint32(h.life), h.life
	w.after(down, nil, func() {
		if h.life == life {
			h.down = false
			w.tracef("master %d starts", term)
			w.master.m = mfsm.New(w.masterConfig(term))
			w.stepMaster(mfsm.Tick{})
		}
	})
}

// detached reports whether some session has no master.
func (w *world) detached() bool {
	return slices.ContainsFunc(w.peers, func(p *peer) bool { return !p.over && !p.dead && (p.line.cut || p.m.View().Detached) })
}

// forgotten reports whether what a peer was told may be unknown to the master: it has
// left since one died.
func (w *world) forgotten(id int) bool { return w.heirs.kills > 0 && w.peers[id].over }

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
		switch {
		case p.over:
			return
		case w.heirs.down:
			p.line.dialing = false
			p.step(pfsm.NotAttached{Err: errors.New("refused")})
			return
		}
		w.master.lastClient++
		p.line.client, p.line.cut = w.master.lastClient, false
		w.master.conns[p.line.client] = p
		w.tracef("peer %d -> %s", p.id, show(e.Hello))
		p.toMaster(mfsm.Connected{Client: p.line.client, Remote: netip.AddrPortFrom(p.ip, 9)})
		p.toMaster(mfsm.PacketIn{Client: p.line.client, Packet: e.Hello})
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
	var broken []wire.UUID
	for _, u := range p.m.View().Ring {
		if o := w.byUUID(u); o != nil && o != p && (w.broken(p, o) || w.broken(o, p)) {
			broken = append(broken, u)
		}
	}
	p.step(pfsm.Attached{Packet: r, Broken: broken})
}

// broken reports whether a connection from one peer to another has stood and ended.
func (w *world) broken(from, to *peer) bool {
	l := w.links[[2]int{from.id, to.id}]
	return l != nil && !l.alive && l.gen > 0
}

// consumed checks what a peer is told, by all masters together.
func (w *world) consumed(p *peer, pkt wire.Packet) {
	if c, ok := pkt.(wire.M2CCollectiveCommsCommence); ok {
		what := fmt.Sprintf("tag %d of group %d", c.Tag, p.group)
		if was, known := w.heirs.seen[c.SeqNr]; known && was != what {
			w.failf("number %d is that of %s, and was that of %s", c.SeqNr, what, was)
		}
		w.heirs.seen[c.SeqNr] = what
	}
	w.collector.sent(w, p, pkt)
	w.collector.meshNews(w, p, pkt)
}

// mortalWorld is a world in which the master dies, and nothing else happens.
func mortalWorld(seed uint64, bug mutation) *world {
	w := emptyWorld(seed, bug)
	w.heirs.on, w.heirs.seen = true, map[uint64]string{}
	w.master.m = mfsm.New(w.masterConfig(0))
	w.plan = scenario{groups: 1, natives: 2, loops: 2 + w.rng.n(3), optimize: w.rng.chance(2), overlap: w.rng.chance(3)}
	w.plan.eager = w.rng.chance(2)
	w.plan.others = seed%3 == 0
	w.plan.apart = seed%7 < 2
	n := 2 + w.rng.n(3)
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, w.spawnOne)
	}
	for range 1 + w.rng.n(3) {
		w.faults = append(w.faults, fault{at: 1 + w.rng.n(60*n*w.plan.loops), kind: killMaster})
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
	n, failed := *seeds/20, 0
	if raceEnabled {
		n = min(n, 500)
	}
	kills, successes := 0, 0
	for seed := *first; seed < *first+uint64(n); seed++ {
		w := mortalWorld(seed, noBug)
		failure := w.run()
		if failure == "" && w.unprovoked > 0 {
			failure = fmt.Sprintf("%d operations have failed", w.unprovoked)
		}
		if failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
			if failed++; failed == 10 {
				t.FailNow()
			}
		}
		kills += w.heirs.kills
		successes += w.collector.successes
	}
	t.Logf("%d seeds, the master died %d times, %d operations", n, kills, successes)
	require.Positive(t, successes)
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
	}
	return r
}

// Bugs of the kind that a recovery can have are found.
func TestMasterDiesWithBugs(t *testing.T) {
	for bug, name := range map[mutation]string{
		numbersForgotten: "numbers", verdictsForgotten: "verdicts", answersForgotten: "answers",
		electionsForgotten: "elections", roundsForgotten: "rounds", endsForgotten: "ends",
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 3000; seed++ {
				w := mortalWorld(seed, bug)
				if failure := w.run(); failure != "" || w.unprovoked > 0 {
					t.Logf("seed %d: %s", seed, failure)
					return
				}
			}
			t.Fatal("not found")
		})
	}
}
