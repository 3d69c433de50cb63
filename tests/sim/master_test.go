package sim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	answers    map[uint64]answer // to queries
	terms      map[int]uint32    // the highest that a peer has obeyed
	aimed      []fault           // at what masters say
	times      map[wire.ID]int   // how often that was said
	caught     []caught          // what was on its way when a fault struck
	deaths     map[wire.UUID]death
	held       map[mfsm.ClientID]*hold // connections over which nothing arrives for a while
	waits      []time.Duration         // for those who were dead
	exact      *exact                  // nil: faults are drawn
	first      newcomersFirst
}

// answer is that to a query, and who heard it last.
type answer struct {
	by      int
	pending bool
}

// newHeirs are those of a world in which peers resume.
func newHeirs(decides bool) heirs {
	return heirs{
		on: true, decides: decides, seen: map[uint64]string{}, answers: map[uint64]answer{}, terms: map[int]uint32{},
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
	if at := w.seed % 8; at == 1 || at == 3 {
		cfg.PlannedInStep = -1
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

// misses reports whether all others notice that p is gone: they are members, and at a master.
func (w *world) misses(p *peer) bool {
	if w.heirs.lost > 1 || w.leaving || w.plan.natives == 1 {
		return false
	}
	for _, o := range w.peers {
		if v := o.m.View(); !o.dead && !o.over && (!v.Connected || v.LocalWorldSize < 2 || v.Detached) {
			return false
		}
	}
	return true
}

// startMaster begins the next master process.
func (w *world) startMaster() {
	w.heirs.life++
	w.tracef("master %d starts", w.heirs.life)
	w.master = w.newMaster(w.masterConfig(uint32(w.heirs.life)))
	w.master.step(mfsm.Tick{})
	w.comesFirst()
}

// detached reports whether some session has no master.
func (w *world) detached() bool {
	return slices.ContainsFunc(w.peers, func(p *peer) bool { return !p.over && !p.dead && (p.line.cut || p.m.View().Detached) })
}

// forgotten reports whether what a peer was told may be unknown to the master: it has
// left since one died.
func (w *world) forgotten(id int) bool {
	if w.council != nil {
		return w.council.record.forgiven(w, id)
	}
	p := w.peers[id]
	return w.heirs.kills+w.heirs.interrupts > 0 && (p.over || p.dead || p.bereft())
}

// bereft reports whether p is a PCCL peer whose master is gone, or leads no more.
func (p *peer) bereft() bool {
	return !p.native && (p.line.cut || p.line.to != p.w.master)
}

// strangers reports whether a peer has no session yet.
func (w *world) strangers() bool {
	return slices.ContainsFunc(w.peers, func(p *peer) bool { return p.uuid == wire.UUID{} && !p.over && !p.dead })
}

// lineEnded tells the session that its connection has ended.
func (p *peer) lineEnded(client mfsm.ClientID, err error) {
	w := p.w
	if p.line.client != client || p.over {
		return
	}
	w.tracef("peer %d: master connection ended", p.id)
	p.line.tries, p.line.bereft = 0, w.heirs.on && err != nil && (!p.native || p.uuid == wire.UUID{})
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
	if w.council != nil {
		p.seek(e)
		return
	}
	p.hangUp()
	p.line.client, p.line.dialing = 0, true
	w.after(e.After+w.rng.between(100*time.Microsecond, 2*time.Millisecond), p, func() {
		to := w.master
		// Those of a list have their turns, and the one that was lost comes first.
		old := w.heirs.former
		listed := old != nil && !old.dead
		if listed && (p.line.tries > 0 || p.line.to == old) && w.rng.chance(3) && (!old.walls[p] || p.line.tries == 0) {
			to = old
		}
		p.line.tries++
		switch {
		case p.over:
			return
		case to.walls[p] && !to.dead:
			w.after(noAnswer, p, func() {
				if !p.over {
					p.line.dialing = false
					p.step(pfsm.NotAttached{Err: errors.New("no answer")})
				}
			})
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
		patience := w.rng.between(noAnswer, 3*noAnswer)
		if listed {
			patience = noAnswer
		}
		w.after(patience, p, func() {
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
	was := p.uuid
	other := r.UUID != was && r.Accepted && !w.startsOver(p, r)
	if r.Accepted {
		p.line.dials = 0
	}
	p.step(pfsm.Attached{Packet: r})
	if other && !p.over { // a peer that was dropped may be told so, and its session ends
		w.failf("peer %d goes on as %s, and was %s", p.id, r.UUID.Short(), was.Short())
	}
	if term := r.Ext.Resuming.Term; !p.over && !p.line.dialing && p.line.client != 0 {
		if term < w.heirs.terms[p.id] {
			w.failf("peer %d obeys a master of term %d, and has obeyed one of term %d", p.id, term, w.heirs.terms[p.id])
		}
		w.heirs.terms[p.id] = term
	}
}

// consumed checks what a peer is told, by all masters together.
func (w *world) consumed(p *peer, pkt wire.Packet) {
	switch pkt.(type) {
	case wire.M2CCollectiveCommsComplete:
		p.met = true
	case wire.M2CSyncSharedStateComplete:
		p.met = p.met || len(p.m.View().Ring) > 1
	}
	if c, ok := pkt.(wire.M2CCollectiveCommsCommence); ok {
		what := fmt.Sprintf("tag %d of group %d", c.Tag, p.group)
		if was, known := w.heirs.seen[c.SeqNr]; known && was != what {
			w.failf("number %d is that of %s, and was that of %s", c.SeqNr, what, was)
		}
		w.heirs.seen[c.SeqNr] = what
		p.trainer.old = slices.DeleteFunc(p.trainer.old, func(v wire.ReportedVerdict) bool { return v.Tag == c.Tag })
		p.trainer.old = append(p.trainer.old, wire.ReportedVerdict{Tag: c.Tag, Seq: c.SeqNr})
	}
	if a, ok := pkt.(wire.M2CPeersPendingResponse); ok && a.Decision != 0 && !w.heirs.first.on {
		// Without a registry a number may come again that only the dead have heard.
		if was, known := w.heirs.answers[a.Decision]; known && was.pending != a.PeersPending && !w.forgotten(was.by) {
			w.failf("question %d is answered %v, and was answered %v", a.Decision, a.PeersPending, was.pending)
		}
		w.heirs.answers[a.Decision] = answer{p.id, a.PeersPending}
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
			if o := w.byUUID(u); !slices.Contains(pkt.Ring, u) && o.trainer.doing != "leave" && !o.bereft() && !o.outlawed() && !w.excuses(o) {
				w.failf("peer %d goes on without peer %d", p.id, o.id)
			}
		}
	}
	for _, u := range p.m.View().Ring {
		if o := w.byUUID(u); ring != nil && !o.dead && !o.over && !o.bereft() && !o.outlawed() && !w.excuses(o) && o.trainer.doing != "leave" && !slices.Contains(ring, u) {
			w.failf("peer %d has a ring without peer %d", p.id, o.id)
		}
	}
	w.collector.sent(w, p, pkt)
	w.collector.meshNews(w, p, pkt)
}

// mortalWorld is a world in which the master dies, and nothing else happens.
func mortalWorld(seed uint64, bug mutation) *world {
	w := emptyWorld(seed, bug)
	// Some are PCCL peers, which know of nothing of that. Without a registry a group of which
	// only these are left begins again with the first numbers.
	mixed := seed%11 == 5
	w.heirs = newHeirs(seed%2 == 0 || mixed)
	w.master = w.newMaster(w.masterConfig(0))
	w.plan = scenario{groups: 1, natives: 2, loops: 2 + w.rng.n(3), optimize: w.rng.chance(2), overlap: w.rng.chance(3)}
	w.plan.eager, w.plan.forward = w.rng.chance(2), seed%4 != 1
	w.plan.others = seed%3 == 0
	w.plan.places(seed)
	w.plan.drain = seed%4 < 2
	w.plan.parts = seed%5 == 2
	if mixed {
		w.plan.natives, w.plan.others, w.plan.drain = 1, false, false
	}
	if w.plan.drain {
		w.plan.loops++
	}
	n := 2 + w.rng.n(3)
	if seed%10 == 8 && !mixed {
		w.plan.groups, n = 2, n+2
	}
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, w.spawnOne)
	}
	for range 2 + w.rng.n(3) {
		w.addStrike(n)
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// addStrike draws a fault of a master of n peers.
func (w *world) addStrike(n int) {
	f := fault{at: 1 + w.rng.n(60*n*w.plan.loops)}
	switch {
	case w.plan.natives == 1:
		// The session of a gopccl peer beside PCCL peers does not outlive its connection to
		// a master that lives: all would have to say again what they hold.
		f.kind = []kind{killMaster, killBoth, pauseBriefly, holdUp, replaceMaster, cutOff}[w.rng.n(6)]
	default:
		kinds := []kind{killMaster, killMaster, killBoth, killBoth, pauseBriefly, pauseMaster, blip, holdUp, replaceMaster, replaceMaster, replaceMaster, cutOff, cutOff}
		if !w.heirs.decides {
			kinds = kinds[:8] // nobody says which of two leads
		}
		f.kind = kinds[w.rng.n(len(kinds))]
	}
	if w.rng.chance(4) {
		w.faults = append(w.faults, f)
		return
	}
	f.aim, f.nth = phases[w.rng.n(len(phases))].id, 1+min(w.rng.n(4), w.rng.n(4))
	f.share = []share{anybody, nobody, nobody, somebody, everybody, everybody}[w.rng.n(6)]
	switch rare := w.rng.chance(2); { // what few worlds come to
	case rare && w.plan.drain:
		f.aim = []wire.ID{74, 74, 76, 76, 70, 71, 71}[w.rng.n(7)]
	case rare:
		f.aim = []wire.ID{2, 3, 5, 6, 8, 70, 70, 70, 70, 71, 71, 71, 71, 71, 88, 88, 89}[w.rng.n(17)]
	}
	switch {
	case f.aim == 74 || f.aim == 76:
		f.nth = 1
	case f.aim == 5 || f.aim == 6 || f.aim == 70 || f.aim == 71:
		f.nth, w.plan.eager = 1, true
		if w.heirs.decides && w.rng.chance(4) { // packets that few see together
			f.kind, f.share = replaceMaster, somebody
		}
	case f.aim >= 88 && w.plan.natives == 2:
		f.nth, w.plan.others = 1, true
	}
	w.heirs.aimed = append(w.heirs.aimed, f)
}

// The master dies at every step, and no call fails because of it.
func TestMasterDies(t *testing.T) {
	t.Parallel()
	if replays(t, func(seed uint64) *world { return mortalWorld(seed, noBug) }, (*world).run) {
		return
	}
	n, failed := min(*seeds*5/2, 100000), 0 // every fault is to be found in every phase
	if raceEnabled {
		n = min(n, 500)
	}
	kills, successes, table := 0, 0, map[cell]int{}
	for seed := *first; seed < *first+uint64(n); seed++ {
		w := mortalWorld(seed, noBug)
		failure := w.run()
		if failure == "" && w.unprovoked > 0 && !w.provoked() {
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
	t.Parallel()
	for bug, name := range map[mutation]string{
		numbersForgotten: "numbers", verdictsForgotten: "verdicts", answersForgotten: "answers",
		electionsForgotten: "elections", roundsForgotten: "rounds", endsForgotten: "ends",
		dropUnconfirmed: "drops", switchedLate: "switches", oldVerdicts: "newcomers",
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 3000; seed++ {
				w := mortalWorld(seed, bug)
				if failure := w.run(); failure != "" || w.unprovoked > 0 && !w.provoked() {
					t.Logf("seed %d: %s", seed, failure)
					return
				}
			}
			t.Fatal("not found")
		})
	}
}
