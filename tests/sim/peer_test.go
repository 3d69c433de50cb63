package sim

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// peer is one process: a session, an engine and a small trainer.
type peer struct {
	w      *world
	id     int
	group  uint32
	native bool
	ip     netip.Addr
	uuid   wire.UUID
	m      *pfsm.Machine

	dead      bool // the process is gone
	lostPower bool // ... without a word
	over      bool // the session ended
	stopped   bool
	suspect   bool        // was stopped or cut off: it may be dropped
	met       bool        // has heard what others heard as well: how something ended that they did together
	dropped   []wire.UUID // of whom the master has told it so
	backlog   []func()
	tickAt    time.Duration

	line     line
	calls    map[pfsm.CallID]func(pfsm.Done)
	launches map[pfsm.CallID]*op
	nextCall pfsm.CallID
	nextOp   pfsm.OpID
	ops      []*op
	busy     map[uint64]bool // tags of operations that were launched and not released
	mesh     mesh
	probing  uint64 // round of the scheduled probe under way, 0: none
	transfer transfer
	memory   memory
	trainer  trainer
	papers   papers
}

// line is the connection to the master. Packets on their way stay in order.
type line struct {
	client          mfsm.ClientID
	to              *master
	cut             bool // it ended here
	hole            bool // it swallows everything
	dialing         bool // the first packet answers a session that looks for a master
	lastOut, lastIn time.Duration
	tries           int  // to find another one
	bereft          bool // it has ended, and the session does not go on without
	flying          int  // packets of the master on their way
	final           bool // it has died: as many of them as grant still arrive
	grant           int
	remote          bool          // the peer takes the master for one that is far away
	away            time.Duration // which it is by so much, one way

	// Where there are several masters.
	turn, dials int
	last        int   // that was dialled last
	first       []int // to dial before the others
}

// mesh is what a peer knows of the connections to others.
type mesh struct {
	inbox      map[frame][]int64
	passed     uint64 // one more than the highest sequence number that it has heard
	ahead      ahead
	deaf, dumb bool   // no peer can connect to it for good; it can connect to none
	preparing  uint64 // the ring that is connected for, 0: none
	meshing    uint64 // the mesh that is connected for, 0: none
	late       wire.Packet
	mail       *mail
	awake      time.Duration // since then
}

// transfer is the part in a synchronisation that moves a state.
type transfer struct {
	serving  pfsm.CallID // whose state is handed out, 0: none
	fetching pfsm.CallID
	stop     bool // of the fetch
}

// memory is what a trainer has computed. It may outlive its process.
type memory struct {
	state    [2]uint64
	torn     bool   // a fetch has overwritten part of state and was not confirmed
	revision uint64 // of the next synchronisation
	sync     int    // the synchronisation that completed last
}

// trainer is where the program stands.
type trainer struct {
	doing    string
	current  pfsm.CallID            // the call whose answer it waits for
	awaiting *op                    // ... if it is an await
	early    *early                 // a pending query that overlaps with the reductions
	loops    int                    // to go
	again    int                    // synchronisations repeated in a row
	lives    int                    // processes before this one that ended with a torn state
	returned bool                   // a PCCL peer that connects again
	mute     bool                   // connects and never votes
	kept     map[pfsm.OpID]op       // results that it has before their verdict
	lone     bool                   // it has returned what the others repeat
	old      []wire.ReportedVerdict // of the last use of each tag
}

func (w *world) spawn(group uint32, native bool, loops int) {
	p := &peer{
		w: w, id: len(w.peers), group: group, native: native, trainer: trainer{loops: loops},
		calls: map[pfsm.CallID]func(pfsm.Done){}, launches: map[pfsm.CallID]*op{}, mesh: mesh{inbox: map[frame][]int64{}}, busy: map[uint64]bool{},
	}
	p.ip = ip(p.id + 1)
	p.memory.state = [2]uint64{w.rng.next(), w.rng.next()}
	w.collector.sound[p.memory.state] = true
	cfg := pfsm.Config{
		Group: group, P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3,
		RegisterTimeout: registerBound, MaxWithPCCL: 2,
	}
	if native {
		cfg.HeartbeatInterval, cfg.HeartbeatTimeout = beat, silence
	}
	if w.heirs.on && native {
		cfg.ReattachTimeout = reattach
	}
	cfg.EagerBytes = w.eagerBytes
	if cfg.EagerBytes > 0 && w.rng.chance(3) {
		cfg.EagerBytes = 32 // some of what others begin eagerly
		if w.plan.reuse {
			cfg.EagerBytes = 8 // none of it, so that what fails may be its first in an epoch
		}
	}
	if w.plan.apart || w.plan.remote {
		r := rng(w.seed<<8 ^ uint64(p.id))
		p.line.remote = !r.chance(4) // or its system does not tell
		if w.plan.remote {
			p.line.away = r.between(0, 60*time.Millisecond)
		}
	}
	w.certify(p)
	cfg.Secure = p.papers.name != ""
	cfg.Plain = cfg.Secure
	p.m = pfsm.New(cfg)
	p.mesh.mail = w.newMail(p)
	p.dial(w.master)
	if s := w.master.seat; s != nil {
		p.line.turn, p.line.last = s.id, s.id
	}
	w.peers = append(w.peers, p)
	w.tracef("peer %d starts in group %d, native %v", p.id, group, native)
	p.toMaster(mfsm.Connected{Client: p.line.client, Remote: netip.AddrPortFrom(p.ip, 9), Who: p.who()})
	p.connect()
}

// dial opens a connection to a master.
func (p *peer) dial(to *master) {
	w := p.w
	w.lastClient++
	p.line.client, p.line.to, p.line.cut, p.line.hole = w.lastClient, to, false, false
	p.line.flying, p.line.final = 0, false
	to.conns[p.line.client] = p
}

// toMaster puts an event of this peer's connection on its way, in order.
func (p *peer) toMaster(ev mfsm.Event) {
	if p.line.hole {
		return
	}
	w := p.w
	client, to := p.line.client, p.line.to
	if to == nil { // it is looking for one
		return
	}
	p.line.lastOut = max(p.line.lastOut, w.now+p.line.away+w.plan.oneWay+w.rng.between(100*time.Microsecond, 2*time.Millisecond)+w.holds(p, to, false))
	arrives := func() {
		if to.conns[client] == p && !to.refuses(p, ev) {
			to.take(ev)
		}
	}
	w.at(p.line.lastOut, nil, func() {
		if !w.keeps(client, false, arrives) {
			arrives()
		}
	})
}

// fromMaster schedules what the master sent to this peer, in order.
func (p *peer) fromMaster(client mfsm.ClientID, do func()) {
	w := p.w
	p.line.lastIn = max(p.line.lastIn, w.now+p.line.away+w.plan.oneWay+w.rng.between(100*time.Microsecond, 2*time.Millisecond)+w.holds(p, p.line.to, true))
	arrives := func() {
		if p.line.client == client {
			do()
		}
	}
	w.at(p.line.lastIn, p, func() {
		if !w.keeps(client, true, arrives) {
			arrives()
		}
	})
}

func (p *peer) packet(pkt wire.Packet) {
	if c, ok := pkt.(wire.M2CCollectiveCommsComplete); ok {
		p.busy[c.Tag] = false
	}
	if r, ok := pkt.(wire.M2CSessionRegistrationResponse); ok {
		if p.line.dialing {
			p.attach(r)
			return
		}
		p.uuid = r.UUID
	}
	if c, ok := pkt.(wire.M2CCollectiveCommsCommence); ok && p.w.bug == forwardUngranted {
		c.Forward = true
		pkt = c
	}
	if d, ok := pkt.(wire.M2CPeerDropped); ok {
		p.dropped = append(p.dropped, d.UUID)
	}
	p.step(pfsm.PacketIn{Packet: pkt})
}

func (p *peer) masterGone(err error) {
	if !p.line.cut {
		p.line.cut = true
		p.lineEnded(p.line.client, err)
	}
}

// step runs the machine and carries out its effects.
func (p *peer) step(ev pfsm.Event) {
	w := p.w
	for _, e := range p.m.Step(w.now, ev) {
		switch e := e.(type) {
		case pfsm.Send:
			p.say(e.Packet)
		case pfsm.Establish:
			p.mesh.ahead.next = max(p.mesh.ahead.next, e.Epoch)
			p.mesh.mail.round(e.Epoch)
			p.establish(e)
		case pfsm.PeerLeft:
			p.mesh.mail.left(e.Peer)
		case pfsm.RoundOver:
			p.mesh.mail.begin()
			if e.Epoch != 0 && w.bug != spoilForgotten {
				p.turn(e.Epoch)
			}
		case pfsm.Preflight:
			p.preflight(e)
		case pfsm.PrepareRing:
			p.prepareRing(e)
		case pfsm.PrepareMesh:
			p.prepareMesh(e)
		case pfsm.StopMesh:
			p.mesh.meshing = 0
		case pfsm.StopPrepare:
			p.mesh.preparing = 0
		case pfsm.SwitchRing:
			w.collector.switches++
			if e.Epoch != 0 {
				p.turn(e.Epoch)
			}
			if w.bug == releasedEarly {
				p.release(e.Neighbours)
			}
		case pfsm.Release:
			if w.bug == waysReleased {
				e.Keep = e.Keep[:min(len(e.Keep), 2)]
			}
			p.release(e.Keep)
		case pfsm.StartData:
			p.op(e.Op).start(e)
		case pfsm.CommenceData:
			for _, op := range p.ops {
				if op.id == e.Op { // or it was given up
					op.commence(e.Seq)
				}
			}
		case pfsm.SkipData:
			p.mesh.passed = max(p.mesh.passed, e.Seq+1)
		case pfsm.ExpectEpoch:
			p.mesh.ahead.next = max(p.mesh.ahead.next, e.Epoch)
		case pfsm.RenewData:
			p.op(e.Op).renew()
		case pfsm.SpoilData:
			p.spoil(e.Tag, e.Epoch)
		case pfsm.AbortData:
			if o := p.op(e.Op); w.bug != abortUnheard || o.job == nil {
				o.end(errors.New(e.Reason))
			}
		case pfsm.Finish, pfsm.GiveResult, pfsm.DropResult:
			p.settles(e)
		case pfsm.Serve:
			p.transfer.serving = e.Call
		case pfsm.Fetch:
			p.fetch(e)
		case pfsm.StopFetch:
			p.transfer.stop = true
			w.after(0, p, func() { p.fetchEnded(pfsm.Fetched{Call: e.Call, Err: errors.New("stopped")}) })
		case pfsm.Probe:
			p.probe(e)
		case pfsm.StopProbe:
			p.stopProbe()
		case pfsm.PrepareProbe:
			p.prepareProbe(e)
		case pfsm.SendProbe:
			p.sendProbe(e)
		case pfsm.Done:
			p.answered(e)
		case pfsm.Reattach:
			p.reattach(e)
		case pfsm.Names, pfsm.Revocations:
			p.hears(e)
		case pfsm.Disconnect:
			p.disconnect(e.Reason)
		case pfsm.Log:
			w.tracef("peer %d: %s", p.id, e.Text)
		}
	}
	if at, ok := p.m.Deadline(); ok && (p.tickAt <= w.now || at < p.tickAt) {
		p.tickAt = max(at, w.now+time.Microsecond)
		due := p.tickAt
		w.at(due, p, func() {
			if p.tickAt == due {
				p.tickAt = 0
				p.step(pfsm.Tick{})
			}
		})
	}
}

// say sends what the machine says, as far as a bug lets it.
func (p *peer) say(pkt wire.Packet) {
	w := p.w
	switch c := pkt.(type) {
	case wire.C2MLinkEnded:
		if w.bug == endsUnsaid {
			return
		}
	case wire.C2MCollectiveCommsComplete:
		if w.bug == resultUnsaid {
			c.Holds = false
			pkt = c
		}
		if w.bug == mismatchUntold {
			c.Reason, c.ReasonCode = "", 0
			pkt = c
		}
	}
	if w.log.tracing {
		w.tracef("peer %d -> %s", p.id, show(pkt))
	}
	p.toMaster(mfsm.PacketIn{Client: p.line.client, Packet: p.forget(p.dialect(pkt))})
}

// dialect takes away from the packets of a PCCL-like peer what PCCL does not say.
func (p *peer) dialect(pkt wire.Packet) wire.Packet {
	if r, ok := pkt.(wire.C2MRequestSessionRegistration); ok && !p.native {
		r.Ext = wire.Ext{}
		return r
	} else if ok && p.w.plan.older && p.id == 0 {
		r.Ext.Forward = 0
		return r
	}
	return pkt
}

func (p *peer) op(id pfsm.OpID) *op {
	for _, op := range p.ops {
		if op.id == id {
			return op
		}
	}
	p.w.failf("peer %d: no operation %d", p.id, id)
	return &op{p: p, finished: true}
}

// disconnect ends the session: the master connection and every P2P connection
// at once.
func (p *peer) disconnect(reason string) {
	w := p.w
	w.tracef("peer %d disconnects: %s", p.id, reason)
	if p.over {
		w.failf("peer %d disconnects twice", p.id)
	}
	if code := errs.Protocol.Error(); len(reason) >= len(code) && reason[:len(code)] == code {
		w.failf("peer %d: %s", p.id, reason)
	}
	if w.heirs.on && p.native && !p.suspect && !p.line.bereft && !p.outlawed() && !w.mayEnd(p) && !strings.Contains(reason, "the communicator was closed") && !strings.Contains(reason, "the peer has left the run") {
		w.failf("peer %d ends without its trainer: %s", p.id, reason)
	}
	p.over, p.line.cut = true, true
	p.mesh.mail.stop()
	p.closeAll()
	if p.trainer.mute { // no call of it is pending that would tell its trainer
		w.after(0, p, p.exit)
	}
}

// closeAll closes what the operating system closes when a process ends.
func (p *peer) closeAll() {
	p.toMaster(mfsm.Gone{Client: p.line.client, Reason: "closed"})
	for _, o := range p.w.peers {
		p.w.breakLink(p, o)
		p.w.breakLink(o, p)
	}
}

// exit ends the process.
func (p *peer) exit() {
	if p.dead {
		return
	}
	p.w.tracef("peer %d exits", p.id)
	if !p.over {
		p.closeAll()
	}
	p.dead = true
	p.w.progress = p.w.now
}

// fetch asks the distributors one after another.
func (p *peer) fetch(e pfsm.Fetch) {
	w := p.w
	p.transfer = transfer{fetching: e.Call} // a state that is being overwritten is not handed out
	began := w.now
	todo := e.Distributors
	var next func()
	next = func() {
		if p.transfer.stop {
			return
		}
		if len(todo) == 0 {
			p.fetchEnded(pfsm.Fetched{Call: e.Call, Err: errors.New("no holder answered")})
			return
		}
		from := w.byAddr(todo[0])
		if (from.stopped || from.lostPower) && w.now < began+connectBound {
			w.after(200*time.Millisecond, p, next)
			return
		}
		todo = todo[1:]
		p.fetchFrom(from, e, 0, next)
	}
	w.after(w.rng.between(0, 3*time.Millisecond), p, next)
}

// fetchFrom gets one key after another from a holder, each in two steps: in
// between it is neither old nor new. next goes on if the holder is gone; what it
// has delivered is fetched again, which is the same to the state.
func (p *peer) fetchFrom(from *peer, e pfsm.Fetch, i int, next func()) {
	w := p.w
	serves := func() bool {
		return !from.dead && !from.stopped && from.transfer.serving != 0 && !w.estranged(p, from) && p.knows(from.uuid) && from.knows(p.uuid)
	}
	switch {
	case p.transfer.stop || p.transfer.fetching != e.Call:
		return
	case !serves():
		w.after(w.rng.between(0, 3*time.Millisecond), p, next)
		return
	case from.memory.torn:
		w.failf("peer %d fetches from peer %d, whose state is torn", p.id, from.id)
		return
	case i == len(e.Keys) || w.bug == fetchSkipped:
		w.collector.fetches++
		w.tracef("peer %d fetched from %d", p.id, from.id)
		p.fetchEnded(pfsm.Fetched{Call: e.Call, Revision: from.memory.revision})
		return
	}
	at := int(e.Keys[i][0] - 'a')
	p.memory.torn, p.memory.state[at] = true, w.rng.next()
	if w.plan.tear && w.rng.chance(3) {
		w.tracef("FAULT: peer %d is killed while peer %d fetches from it", from.id, p.id)
		from.exit()
	}
	w.after(w.rng.between(0, time.Millisecond), p, func() {
		if p.transfer.stop || p.transfer.fetching != e.Call {
			return
		}
		if !serves() || from.memory.state[at] != e.Hashes[i] {
			w.after(w.rng.between(0, 3*time.Millisecond), p, next)
			return
		}
		p.memory.state[at] = from.memory.state[at]
		w.after(w.rng.between(0, time.Millisecond), p, func() { p.fetchFrom(from, e, i+1, next) })
	})
}

func (p *peer) fetchEnded(ev pfsm.Fetched) {
	if p.transfer.fetching == ev.Call {
		p.transfer.fetching = 0
		p.step(ev)
	}
}

func (p *peer) probe(e pfsm.Probe) {
	w := p.w
	t := w.now
	for _, q := range e.Requests {
		t += w.rng.between(0, 20*time.Millisecond)
		mbps := float64(w.rng.n(1000))
		if w.rng.chance(10) {
			mbps = math.NaN()
		}
		w.at(t, p, func() { p.step(pfsm.Measured{Call: e.Call, To: q.To, Mbps: mbps}) })
	}
	w.at(t, p, func() { p.step(pfsm.ProbesDone{Call: e.Call}) })
}

// prepareProbe connects to a target, which may be gone.
func (p *peer) prepareProbe(e pfsm.PrepareProbe) {
	w := p.w
	if p.probing != 0 {
		w.failf("peer %d: probe of round %d while that of round %d runs", p.id, e.Round, p.probing)
	}
	p.probing = e.Round
	to := w.byAddr(e.Addr)
	took, ev := w.rng.between(0, 20*time.Millisecond), pfsm.ProbeReady{Round: e.Round}
	switch {
	case to.stopped || to.lostPower:
		took, ev.Err = connectBound, errors.New("no answer")
	case to.dead:
		ev.Err = errors.New("refused")
	case w.rng.chance(20):
		ev.Busy, ev.Err = true, errors.New("busy")
	}
	w.after(took, p, func() {
		if p.probing == e.Round {
			if ev.Err != nil {
				p.probing = 0
			}
			p.step(ev)
		}
	})
}

func (p *peer) sendProbe(e pfsm.SendProbe) {
	w := p.w
	if p.probing != e.Round {
		w.failf("peer %d: told to send in round %d, prepared for %d", p.id, e.Round, p.probing)
	}
	w.after(e.Delay+w.rng.between(0, 50*time.Millisecond), p, func() {
		if p.probing == e.Round {
			p.probing = 0
			ev := pfsm.Probed{Round: e.Round, Mbps: float64(w.rng.n(1000))}
			if w.rng.chance(10) {
				ev.Err = errors.New("cut")
			}
			p.step(ev)
		}
	})
}

func (p *peer) stopProbe() {
	n := p.probing
	p.w.after(p.w.rng.between(0, time.Millisecond), p, func() {
		if n != 0 && p.probing == n {
			p.probing = 0
			p.step(pfsm.Probed{Round: n, Err: errors.New("stopped")})
		}
	})
}

// call makes a call; then runs when it is answered.
func (p *peer) call(doing string, ev func(pfsm.CallID) pfsm.Event, then func(pfsm.Done)) {
	p.nextCall++
	id := p.nextCall
	p.calls[id] = then
	p.trainer.doing, p.trainer.current, p.trainer.awaiting = doing, id, nil
	p.step(ev(id))
}

// background makes a call that the trainer does not wait for.
func (p *peer) background(doing string, ev func(pfsm.CallID) pfsm.Event, then func(pfsm.Done)) {
	was, current, awaiting := p.trainer.doing, p.trainer.current, p.trainer.awaiting
	p.call(doing, ev, then)
	p.trainer.doing, p.trainer.current, p.trainer.awaiting = was, current, awaiting
}

// early is the answer of a query that was made before it is needed.
type early struct {
	done *pfsm.Done
	then func(pfsm.Done)
}

func (e *early) take(d pfsm.Done) {
	e.done = &d
	if e.then != nil {
		e.then(d)
	}
}

func (e *early) wait(then func(pfsm.Done)) {
	e.then = then
	if e.done != nil {
		then(*e.done)
	}
}

func (p *peer) answered(d pfsm.Done) {
	then, ok := p.calls[d.Call]
	if !ok {
		p.w.failf("peer %d: call %d is answered twice or was never made", p.id, d.Call)
		return
	}
	delete(p.calls, d.Call)
	if p.transfer.serving == d.Call {
		p.transfer.serving = 0
	}
	if o := p.launches[d.Call]; o != nil && d.Err != nil {
		// A launch that was postponed may find that the world has shrunk.
		o.finished, o.restored, o.refused = true, true, true
	}
	p.w.progress = p.w.now
	p.w.tracef("peer %d: %s: %+v", p.id, p.trainer.doing, d)
	p.w.after(p.w.rng.between(0, 2*time.Millisecond), p, func() { then(d) })
}

// ended reports whether the session is over, which a trainer answers by exiting.
func (p *peer) ended(err error) bool {
	if p.over {
		for _, op := range p.ops {
			if op.open { // its buffers are still touched
				p.w.after(time.Millisecond, p, func() { p.ended(err) })
				return true
			}
		}
		p.exit()
		p.comeBack()
		return true
	}
	return false
}
