package sim

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	mfsm "github.com/gopccl/gopccl/core/master/fsm"
	pfsm "github.com/gopccl/gopccl/core/peer/fsm"
	"github.com/gopccl/gopccl/core/wire"
)

// peer is one process: a session, an engine and a small trainer.
type peer struct {
	w      *world
	id     int
	group  uint32
	native bool
	ip     netip.Addr
	client mfsm.ClientID
	uuid   wire.UUID
	m      *pfsm.Machine

	dead      bool // the process is gone
	lostPower bool // ... without a word to anybody
	over      bool // the session ended
	cut       bool // the master connection ended at this end
	hole      bool // the master connection swallows everything
	stopped   bool
	suspect   bool // was stopped or cut off: it may be dropped
	backlog   []func()

	lastOut, lastIn time.Duration
	tickAt          time.Duration
	calls           map[pfsm.CallID]func(pfsm.Done)
	launches        map[pfsm.CallID]*op
	nextCall        pfsm.CallID
	nextOp          pfsm.OpID
	ops             []*op
	inbox           map[frame][]int64
	ahead           ahead
	preparing       uint64 // the ring that is connected for, 0: none
	probing         uint64 // round of the scheduled probe under way, 0: none
	fetching        pfsm.CallID
	stopFetch       bool

	// The trainer.
	doing    string
	current  pfsm.CallID // the call whose answer the trainer waits for
	awaiting *op         // ... if it is an await
	loops    int
	revision uint64 // of the next synchronisation
	mute     bool   // connects and never votes
	early    *early // a pending query that overlaps with the reductions
	state    [2]uint64
	serving  bool
	sync     int // the synchronisation that completed last
}

func (w *world) spawn(group uint32, native bool, loops int) {
	p := &peer{
		w: w, id: len(w.peers), group: group, native: native, loops: loops,
		calls: map[pfsm.CallID]func(pfsm.Done){}, launches: map[pfsm.CallID]*op{}, inbox: map[frame][]int64{},
	}
	p.ip = ip(p.id + 1)
	p.state = [2]uint64{w.rng.next(), w.rng.next()}
	cfg := pfsm.Config{
		Group: group, P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3,
		RegisterTimeout: registerBound, MaxWithPCCL: 2,
	}
	if native {
		cfg.HeartbeatInterval, cfg.HeartbeatTimeout = beat, silence
	}
	cfg.EagerBytes = w.eagerBytes
	if cfg.EagerBytes > 0 && w.rng.chance(3) {
		cfg.EagerBytes = 32 // some of what others begin eagerly
	}
	p.m = pfsm.New(cfg)
	w.lastClient++
	p.client = w.lastClient
	w.conns[p.client] = p
	w.peers = append(w.peers, p)
	w.tracef("peer %d starts in group %d, native %v", p.id, group, native)
	p.toMaster(mfsm.Connected{Client: p.client, Remote: netip.AddrPortFrom(p.ip, 9)})
	p.connect()
}

// toMaster puts an event of this peer's connection on its way, in order.
func (p *peer) toMaster(ev mfsm.Event) {
	if p.hole {
		return
	}
	w := p.w
	p.lastOut = max(p.lastOut, w.now+w.rng.between(100*time.Microsecond, 2*time.Millisecond))
	w.at(p.lastOut, nil, func() {
		if w.conns[p.client] == p {
			w.toMaster(ev)
		}
	})
}

// fromMaster schedules what the master sent to this peer, in order.
func (p *peer) fromMaster(do func()) {
	w := p.w
	p.lastIn = max(p.lastIn, w.now+w.rng.between(100*time.Microsecond, 2*time.Millisecond))
	w.at(p.lastIn, p, do)
}

func (p *peer) packet(pkt wire.Packet) {
	if r, ok := pkt.(wire.M2CSessionRegistrationResponse); ok {
		p.uuid = r.UUID
	}
	p.step(pfsm.PacketIn{Packet: pkt})
}

func (p *peer) masterGone(err error) {
	if !p.cut {
		p.cut = true
		p.w.tracef("peer %d: master connection ended", p.id)
		p.step(pfsm.MasterGone{Err: err})
	}
}

// step runs the machine and carries out its effects.
func (p *peer) step(ev pfsm.Event) {
	w := p.w
	for _, e := range p.m.Step(w.now, ev) {
		switch e := e.(type) {
		case pfsm.Send:
			if w.tracing {
				w.tracef("peer %d -> %s", p.id, show(e.Packet))
			}
			p.toMaster(mfsm.PacketIn{Client: p.client, Packet: p.dialect(e.Packet)})
		case pfsm.Establish:
			p.establish(e)
		case pfsm.PrepareRing:
			p.prepareRing(e)
		case pfsm.StopPrepare:
			p.preparing = 0
		case pfsm.SwitchRing:
			w.collector.switches++
			if w.bug == releasedEarly {
				p.release(e.Neighbours)
			}
		case pfsm.Release:
			p.release(e.Keep)
		case pfsm.StartData:
			p.op(e.Op).start(e)
		case pfsm.CommenceData:
			for _, op := range p.ops {
				if op.id == e.Op { // or it was given up
					op.commence(e.Seq)
				}
			}
		case pfsm.SpoilData:
			p.spoil(e.Tag, e.Epoch)
		case pfsm.AbortData:
			p.op(e.Op).end(errors.New(e.Reason))
		case pfsm.Finish:
			p.op(e.Op).finish(e.Restore)
		case pfsm.Serve:
			p.serving = e.On
		case pfsm.Fetch:
			p.fetch(e)
		case pfsm.StopFetch:
			p.stopFetch = true
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

// dialect takes away from the packets of a PCCL-like peer what PCCL does not say.
func (p *peer) dialect(pkt wire.Packet) wire.Packet {
	if r, ok := pkt.(wire.C2MRequestSessionRegistration); ok && !p.native {
		r.Ext = wire.Ext{}
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
	p.over, p.cut = true, true
	p.closeAll()
	if p.mute { // no call of it is pending that would tell its trainer
		w.after(0, p, p.exit)
	}
}

// closeAll closes what the operating system closes when a process ends.
func (p *peer) closeAll() {
	p.toMaster(mfsm.Gone{Client: p.client, Reason: "closed"})
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
	p.fetching, p.stopFetch = e.Call, false
	began := w.now
	todo := e.Distributors
	var next func()
	next = func() {
		if p.stopFetch {
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
		if !from.dead && !from.stopped && from.serving {
			got := p.state
			ok := true
			for i, k := range e.Keys {
				at := int(k[0] - 'a')
				got[at] = from.state[at]
				ok = ok && got[at] == e.Hashes[i]
			}
			if ok {
				if w.bug != fetchSkipped {
					p.state = got
				}
				w.collector.fetches++
				w.tracef("peer %d fetched from %d", p.id, from.id)
				p.fetchEnded(pfsm.Fetched{Call: e.Call, Revision: from.revision})
				return
			}
		}
		w.after(w.rng.between(0, 3*time.Millisecond), p, next)
	}
	w.after(w.rng.between(0, 3*time.Millisecond), p, next)
}

func (p *peer) fetchEnded(ev pfsm.Fetched) {
	if p.fetching == ev.Call {
		p.fetching = 0
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
	p.doing, p.current, p.awaiting = doing, id, nil
	p.step(ev(id))
}

// background makes a call that the trainer does not wait for.
func (p *peer) background(doing string, ev func(pfsm.CallID) pfsm.Event, then func(pfsm.Done)) {
	was, current, awaiting := p.doing, p.current, p.awaiting
	p.call(doing, ev, then)
	p.doing, p.current, p.awaiting = was, current, awaiting
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
	if o := p.launches[d.Call]; o != nil && d.Err != nil {
		// A launch that was postponed may find that the world has shrunk.
		o.finished, o.restored, o.refused = true, true, true
	}
	p.w.progress = p.w.now
	p.w.tracef("peer %d: %s: %v %v", p.id, p.doing, d.Result, d.Err)
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
		return true
	}
	return false
}

// The trainer: connect, then per loop: synchronize, reduce until everything is
// reduced, now and then optimize, ask for newcomers and let them in.

func (p *peer) connect() {
	p.call("connect", func(c pfsm.CallID) pfsm.Event { return pfsm.CallConnect{Call: c} }, func(d pfsm.Done) {
		if !p.ended(d.Err) && !p.mute {
			p.accepted()
		}
	})
}

func (p *peer) synchronize() {
	entries := []wire.StateEntry{
		{Key: "a", Hash: p.state[0], DType: dtype.Uint64}, {Key: "b", Hash: p.state[1], DType: dtype.Uint64},
	}
	p.call("sync", func(c pfsm.CallID) pfsm.Event {
		return pfsm.CallSync{Call: c, Revision: p.revision, Entries: entries}
	}, func(d pfsm.Done) {
		if p.ended(d.Err) {
			return
		}
		if d.Err != nil {
			if !errors.Is(d.Err, errs.TransferFailed) {
				p.w.failf("peer %d: sync: %v", p.id, d.Err)
			}
			p.leave()
			return
		}
		r := d.Result.(pfsm.SyncResult)
		p.revision = r.Revision
		p.w.collector.synced(p.w, p)
		p.reduceAll()
	})
}

// reduceAll reduces some vectors at once and repeats the failed ones.
func (p *peer) reduceAll() {
	w := p.w
	var todo []uint64
	vectors := map[uint64][]int64{}
	for tag := range 1 + p.revision%3 {
		todo = append(todo, tag)
		v := make([]int64, 2+int(p.revision+tag)%5)
		for i := range v {
			v[i] = int64(w.rng.n(1000))
		}
		vectors[tag] = v
	}
	if w.plan.overlap {
		p.early = &early{}
		p.background("pending", func(c pfsm.CallID) pfsm.Event { return pfsm.CallPending{Call: c} }, p.early.take)
	}
	p.attempt(todo, vectors)
}

func (p *peer) attempt(todo []uint64, vectors map[uint64][]int64) {
	if len(todo) == 0 || p.m.View().LocalWorldSize < 2 {
		p.reduced(vectors)
		return
	}
	p.ops = slices.DeleteFunc(p.ops, func(o *op) bool { return o.finished })
	var order []*op
	for _, tag := range todo {
		p.nextOp++
		v := vectors[tag]
		o := &op{p: p, id: p.nextOp, tag: tag, buf: v, orig: slices.Clone(v), saved: slices.Clone(v)}
		p.ops = append(p.ops, o)
		p.call("launch", func(c pfsm.CallID) pfsm.Event {
			p.launches[c] = o
			return pfsm.CallReduce{Call: c, Op: o.id, Tag: tag, Count: uint64(len(v)), DType: dtype.Int64, RedOp: dtype.Sum}
		}, func(d pfsm.Done) {
			if d.Err != nil {
				if !p.over && !errors.Is(d.Err, errs.Canceled) && !errors.Is(d.Err, errs.TooFewPeers) {
					p.w.failf("peer %d: launch: %v", p.id, d.Err)
				}
			}
		})
		order = append(order, o)
	}
	if p.m.View().Native { // with PCCL ends the order of the awaits decides (quirk Q18)
		for i := len(order) - 1; i > 0; i-- {
			j := p.w.rng.n(i + 1)
			order[i], order[j] = order[j], order[i]
		}
		if p.w.rng.chance(3) {
			p.awaitAtOnce(order, vectors)
			return
		}
	}
	p.awaitNext(order, vectors, nil)
}

// awaitAtOnce awaits all operations at the same time, as several threads would.
func (p *peer) awaitAtOnce(order []*op, vectors map[uint64][]int64) {
	var failed []uint64
	left := len(order)
	one := func(tags []uint64) {
		failed = append(failed, tags...)
		if left--; left == 0 {
			slices.Sort(failed)
			p.attempt(failed, vectors)
		}
	}
	for _, o := range order {
		p.awaitOne(o, one)
	}
}

func (p *peer) awaitNext(order []*op, vectors map[uint64][]int64, failed []uint64) {
	if len(order) == 0 {
		slices.Sort(failed)
		p.attempt(failed, vectors)
		return
	}
	p.awaitOne(order[0], func(tags []uint64) { p.awaitNext(order[1:], vectors, append(failed, tags...)) })
}

// awaitOne awaits an operation; then gets its tag if it failed.
func (p *peer) awaitOne(o *op, then func(failed []uint64)) {
	p.call("await", func(c pfsm.CallID) pfsm.Event {
		p.awaiting = o
		return pfsm.CallAwait{Call: c, Op: o.id}
	}, func(d pfsm.Done) {
		p.w.collector.judged(p.w, o, d.Err)
		if p.ended(d.Err) {
			return
		}
		var failed []uint64
		switch {
		case d.Err == nil:
		case o.refused:
			failed = append(failed, o.tag)
		case errors.Is(d.Err, errs.Canceled) && o.complete:
			p.leave() // the others may have succeeded without this peer
			return
		case errors.Is(d.Err, errs.Canceled), errors.Is(d.Err, errs.RankConnectionLost):
			failed = append(failed, o.tag)
		default:
			p.w.failf("peer %d: await: %v", p.id, d.Err)
		}
		then(failed)
	})
}

// reduced folds the results into the state: equal results, equal state.
func (p *peer) reduced(vectors map[uint64][]int64) {
	if p.m.View().LocalWorldSize > 1 {
		p.w.collector.reduced(p.w, p, len(vectors))
		for tag := range uint64(len(vectors)) {
			for _, v := range vectors[tag] {
				h := rng(p.state[tag%2] ^ uint64(v))
				p.state[tag%2] = h.next()
			}
		}
	} else {
		p.state[0]++
	}
	p.revision++
	due := p.revision%4 == 3 || p.w.plan.eager && p.revision == 1
	if p.w.plan.groups == 1 && due && p.m.View().GlobalWorldSize > 1 {
		p.optimize(p.askPending)
		return
	}
	p.askPending()
}

// accepted goes on after a round that let newcomers in.
func (p *peer) accepted() {
	if p.w.plan.groups == 2 && p.w.plan.optimize && p.m.View().GlobalWorldSize > 1 {
		p.optimize(p.synchronize)
		return
	}
	p.synchronize()
}

func (p *peer) optimize(then func()) {
	p.call("optimize", func(c pfsm.CallID) pfsm.Event { return pfsm.CallOptimize{Call: c} }, func(d pfsm.Done) {
		if p.ended(d.Err) {
			return
		}
		if d.Err != nil {
			p.w.failf("peer %d: optimize: %v", p.id, d.Err)
		}
		then()
	})
}

func (p *peer) askPending() {
	if p.loops--; p.loops <= 0 {
		if !p.w.leaving {
			p.w.leaving, p.w.unprovoked = true, p.w.collector.failures
		}
		p.leave()
		return
	}
	then := func(d pfsm.Done) {
		if p.ended(d.Err) {
			return
		}
		if errors.Is(d.Err, errs.Canceled) {
			p.leave() // the answer may be on its way, and the others may act on it
			return
		}
		if d.Err != nil {
			p.w.failf("peer %d: pending: %v", p.id, d.Err)
			return
		}
		if d.Result.(bool) {
			p.update()
			return
		}
		p.synchronize()
	}
	if p.early != nil {
		p.doing = "pending"
		p.early.wait(then)
		return
	}
	p.call("pending", func(c pfsm.CallID) pfsm.Event { return pfsm.CallPending{Call: c} }, then)
}

func (p *peer) update() {
	p.call("update", func(c pfsm.CallID) pfsm.Event { return pfsm.CallUpdate{Call: c} }, func(d pfsm.Done) {
		if p.ended(d.Err) {
			return
		}
		if d.Err != nil {
			p.w.failf("peer %d: update: %v", p.id, d.Err)
		}
		p.accepted()
	})
}

func (p *peer) leave() {
	p.call("close", func(c pfsm.CallID) pfsm.Event { return pfsm.CallClose{Call: c} }, func(d pfsm.Done) {
		if d.Err != nil {
			p.w.failf("peer %d: close: %v", p.id, d.Err)
		}
		p.exit()
	})
}
