package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// link is the send pool of one peer to another. A new generation begins when
// a broken one is repaired.
type link struct {
	alive bool
	gen   int
	last  time.Duration // of the last delivery, frames keep their order
	post  *post         // of messages
}

func (w *world) link(from, to *peer) *link {
	k := [2]int{from.id, to.id}
	l := w.links[k]
	if l == nil {
		l = &link{}
		w.links[k] = l
	}
	return l
}

// breakLink ends the connection; both peers notice a little later. One that lost
// power or was cut off silently does not close anything.
func (w *world) breakLink(from, to *peer) { w.endLink(from, to, nil) }

// endLink is breakLink by one of them, nil if it is by neither.
func (w *world) endLink(from, to, by *peer) {
	l := w.link(from, to)
	if !l.alive {
		return
	}
	l.alive = false
	gen, post := l.gen, l.post
	w.tracef("link %d -> %d breaks", from.id, to.id)
	notice := func(at, other *peer) {
		w.after(w.rng.between(0, 5*time.Millisecond), at, func() {
			if at != by && !w.link(from, to).alive { // or it stands again
				at.step(pfsm.LinkEnded{Peer: other.uuid, Incoming: at == to})
			}
			at.linkBroke(other, gen, at == from)
			post.ended(at == from)
		})
	}
	notice(from, to)
	notice(to, from)
}

// linkBroke ends the data phases that used the link.
func (p *peer) linkBroke(other *peer, gen int, sending bool) {
	for _, op := range p.ops {
		if op.blocks != nil && p.w.bug != lossUnseen && op.blocks.broke(other, gen, sending) {
			op.end(lost(other))
		}
		if op.direct != nil && op.direct.broke(other, gen, sending) {
			op.end(lost(other))
		}
		if op.data == nil {
			continue
		}
		if sending && op.data.next == other && op.data.nextGen <= gen || !sending && op.data.prev == other && op.data.prevGen <= gen {
			op.end(lost(other))
		}
	}
}

func lost(other *peer) error {
	return errs.New(errs.RankConnectionLost, "all-reduce", errors.New("connection reset")).WithPeer(other.uuid.String())
}

// establish opens send pools one after another, then drops what is not listed.
func (p *peer) establish(e pfsm.Establish) {
	p.mesh.preparing = 0
	p.connectTo(e.Peers, func() bool { return true }, func(failed []wire.UUID) {
		p.dropLinks(e.Peers, e.Keep)
		p.step(pfsm.Established{Round: e.Round, Failed: failed, Far: p.far(e.Peers)})
	})
}

// prepareRing opens send pools beside whatever runs.
func (p *peer) prepareRing(e pfsm.PrepareRing) {
	if p.mesh.preparing != 0 {
		p.w.failf("peer %d: told to prepare ring %d while it prepares ring %d", p.id, e.Change, p.mesh.preparing)
	}
	p.mesh.preparing = e.Change
	all := slices.Concat(e.Peers, e.Ways)
	if p.w.bug == waysForgotten {
		all = e.Peers
	}
	p.connectTo(all, func() bool { return p.mesh.preparing == e.Change }, func(failed []wire.UUID) {
		p.mesh.preparing = 0
		p.step(pfsm.RingPrepared{Change: e.Change, Failed: failed})
	})
}

// preflight tries whether peers can be reached, and leaves nothing behind.
func (p *peer) preflight(e pfsm.Preflight) {
	w := p.w
	began := w.now
	if e.Number>>63 != 0 { // its own wish
		p.lookFor(e)
		return
	}
	p.mayTry(e.Peers)
	var failed []wire.UUID
	todo, lonely := e.Peers, true // all of them are out of reach for good
	var next func()
	next = func() {
		if len(todo) == 0 {
			if lonely && !p.m.View().Connected {
				p.suspect = true // of two neither can tell whose fault it is
			}
			p.step(pfsm.Preflighted{Number: e.Number, Failed: failed})
			return
		}
		target := w.byAddr(todo[0].Addr)
		if (target.stopped || target.lostPower) && w.now < began+preflightBound {
			w.after(200*time.Millisecond, p, next)
			return
		}
		lonely = lonely && target.mesh.deaf
		if target.stopped || target.lostPower || !w.reaches(p, target) {
			failed = append(failed, todo[0].UUID)
			// The master may read that later than this, or never.
			left := (w.heirs.on || w.plan.remote || target.line.hole) && (target.dead || target.over)
			if (target.stopped || left) && !p.m.View().Connected {
				p.suspect = true // it is not believed that it is the member's fault
			}
		}
		todo = todo[1:]
		w.after(w.rng.between(0, 2*time.Millisecond), p, next)
	}
	w.after(w.rng.between(0, 2*time.Millisecond), p, next)
}

// lookFor tries whether a neighbour still listens.
func (p *peer) lookFor(e pfsm.Preflight) {
	p.mayTry(e.Peers)
	w, target := p.w, p.w.byAddr(e.Peers[0].Addr)
	took := time.Millisecond
	if target.stopped || target.lostPower {
		took = preflightBound
	}
	w.after(took, p, func() {
		ev := pfsm.Preflighted{Number: e.Number}
		if target.stopped || target.lostPower || !w.reaches(p, target) {
			ev.Failed = []wire.UUID{e.Peers[0].UUID}
		}
		p.step(ev)
	})
}

// reaches reports whether from can connect to another process that runs.
func (w *world) reaches(from, to *peer) bool {
	return !to.dead && !to.over && !from.mesh.dumb && !to.mesh.deaf && !w.blocked[[2]int{from.id, to.id}] && !w.estranged(from, to)
}

// release closes what this peer has opened to others than keep.
func (p *peer) release(keep []wire.UUID) {
	for _, o := range p.w.peers {
		if o != p && !slices.Contains(keep, o.uuid) {
			p.w.endLink(p, o, p)
		}
	}
}

// connectTo opens send pools one after another, while it goes.
func (p *peer) connectTo(peers []wire.PeerEndpoint, goes func() bool, done func(failed []wire.UUID)) {
	w := p.w
	var failed []wire.UUID
	todo := peers
	began := w.now
	p.mayConnect(peers)
	var next func()
	next = func() {
		if p.over || !goes() {
			return
		}
		if len(todo) == 0 {
			done(failed)
			return
		}
		target := w.byAddr(todo[0].Addr)
		l := w.link(p, target)
		switch {
		case l.alive:
		case !w.reaches(p, target):
			failed = append(failed, todo[0].UUID)
		case target.stopped || target.lostPower:
			if w.now < began+connectBound {
				// A newcomer that waits looks as slow itself.
				p.suspect = p.suspect || !p.m.View().Connected && w.now > began+2*time.Second
				w.after(200*time.Millisecond, p, next)
				return
			}
			// A peer that is named as unreachable may cost the other its place.
			w.excused = true
			failed = append(failed, todo[0].UUID)
		default:
			goes, waits := w.greets(p, todo[0], target, began)
			if waits {
				w.after(50*time.Millisecond, p, next)
				return
			}
			if !goes {
				failed = append(failed, todo[0].UUID)
				break
			}
			l.alive = true
			l.gen++
			l.last = w.now
			w.tracef("link %d -> %d stands", p.id, target.id)
			w.carries(l, p, target)
		}
		todo = todo[1:]
		w.after(w.rng.between(0, 2*time.Millisecond), p, next)
	}
	w.after(w.rng.between(0, 2*time.Millisecond), p, next)
}

func (p *peer) dropLinks(peers []wire.PeerEndpoint, keep []wire.UUID) {
	for _, o := range p.w.peers {
		listed := o == p || slices.Contains(keep, o.uuid)
		for _, k := range peers { // by address: one whose master is far away may not know its uuid yet
			listed = listed || p.w.byAddr(k.Addr) == o
		}
		if !listed {
			p.w.endLink(p, o, p)
			p.w.endLink(o, p, p)
		}
	}
}

// op is a collective of one peer, in place.
type op struct {
	p        *peer
	id       pfsm.OpID
	tag      uint64
	orig     []int64 // what the harness remembers
	buf      []int64 // what the engine works on
	saved    []int64 // what the engine restores from
	seq      uint64  // not known before the commence of an eager one
	epoch    uint64  // neighbours may begin eagerly since, 0: they may not
	eager    bool
	ring     []wire.UUID
	started  bool
	canceled bool
	refused  bool // not launched
	finished bool
	restored bool
	open     bool // StartData came, DataEnded was not stepped yet
	data     *dataPhase
	direct   *direct // the other data phase of an all-reduce
	count    uint64  // elements of the vector that it stands for
	large    bool    // these are many
	bound    bound
	way      way
	meshed   bool // what uses the mesh was told at the launch
	launched time.Duration

	// Of collectives other than all-reduce.
	vote     wire.Call
	job      *job
	blocks   *blocks // its data phase
	occasion *gathering
	misfit   bool // its arguments do not fit the group, or the way
}

// bound is of a data phase that began before its commence, and is larger than what may
// leave before.
type bound struct {
	on      bool
	most    int64    // bytes that may still leave
	held    []func() // what leaves with the commence
	through bool     // all has ended but for that
}

// dataPhase is the ring all-reduce of an operation, one message per step.
type dataPhase struct {
	rank, n          int
	next, prev       *peer
	nextGen, prevGen int
	step             int
	running          bool // the first step was sent
}

// frame is where the message of one step lies until it is taken in. An eager one
// names no sequence number.
type frame struct {
	from, step      int
	seq, tag, epoch uint64
}

// keptBytes is what a peer keeps of each other one for operations that it has not begun.
const keptBytes = 8 << 20

// keeps checks that what has come from a member for operations that p has not begun, or
// knows nothing of, is no more than it keeps.
func (p *peer) keeps(from int) {
	sum := int64(0)
	for f, chunk := range p.mesh.inbox {
		begun := func(op *op) bool {
			return op.tag == f.tag && op.epoch == f.epoch && (op.data != nil || op.direct != nil || op.blocks != nil)
		}
		if f.from == from && f.epoch != 0 && !slices.ContainsFunc(p.ops, begun) {
			sum += p.w.bytesOf(from, f, chunk)
		}
	}
	if sum > keptBytes {
		p.w.failf("peer %d: %d bytes of peer %d came for operations that have not begun", p.id, sum, from)
	}
}

// bytesOf returns how many bytes a frame stands for.
func (w *world) bytesOf(from int, f frame, chunk []int64) int64 {
	for _, op := range w.peers[max(from, 0)].ops { // below 0: a bug
		if op.tag == f.tag && op.epoch == f.epoch {
			return op.bytes(len(chunk))
		}
	}
	return 0
}

// bytes returns how many bytes so many elements of the buffer stand for.
func (op *op) bytes(n int) int64 {
	if len(op.buf) == 0 {
		return int64(8 * n)
	}
	return int64(8*op.count) / int64(len(op.buf)) * int64(n)
}

// ahead is what an engine knows of eager operations.
type ahead struct {
	epoch   uint64
	next    uint64          // the newest that may begin
	spoiled map[uint64]bool // tags of operations that have failed since
}

// brings returns what a member brought into op before it went away, without
// having heard of its commence, or from a master that has died since; nil: nothing.
func (p *peer) brings(op *op) []int64 {
	for _, o := range slices.Backward(p.ops) {
		if (o.nameless() || p.w.forgotten(p.id) || p.outlawed()) && o.tag == op.tag && o.epoch == op.epoch {
			return o.orig
		}
	}
	return nil
}

// turn forgets what is older than epoch.
func (p *peer) turn(epoch uint64) {
	if epoch <= p.mesh.ahead.epoch {
		return
	}
	p.mesh.ahead = ahead{epoch, max(p.mesh.ahead.next, epoch), map[uint64]bool{}}
	for f := range p.mesh.inbox {
		if f.epoch != 0 && f.epoch < epoch {
			delete(p.mesh.inbox, f)
		}
	}
}

// spoil drops what came, and what will come, for eager operations with tag.
func (p *peer) spoil(tag, epoch uint64) {
	if epoch == 0 || p.w.bug == epochForgotten {
		return
	}
	if p.w.bug != spoilForgotten {
		p.turn(epoch)
	}
	if epoch != p.mesh.ahead.epoch {
		return
	}
	p.mesh.ahead.spoiled[tag] = true
	for f := range p.mesh.inbox {
		if f.epoch == epoch && f.tag == tag {
			delete(p.mesh.inbox, f)
		}
	}
}

// arrive takes a frame from a link.
func (p *peer) arrive(f frame, chunk []int64) {
	if f.epoch > p.mesh.ahead.next {
		p.w.failf("peer %d: a frame of epoch %d came, which no round has announced", p.id, f.epoch)
	}
	if f.epoch != 0 && (f.epoch < p.mesh.ahead.epoch || f.epoch == p.mesh.ahead.epoch && p.mesh.ahead.spoiled[f.tag]) {
		return
	}
	if _, ok := p.mesh.inbox[f]; ok {
		p.w.failf("peer %d: two frames %+v", p.id, f)
	}
	p.mesh.inbox[f] = chunk
	if f.epoch != 0 {
		p.keeps(f.from)
	}
	for _, op := range p.ops {
		if (op.data != nil || op.direct != nil || op.blocks != nil) && (f.epoch == 0 && (op.seq == f.seq || op.nameless()) || f.epoch != 0 && op.tag == f.tag) {
			op.advance()
		}
	}
}

// nameless reports whether the sequence number is not known yet.
func (op *op) nameless() bool { return op.eager && !op.started }

func (op *op) start(e pfsm.StartData) {
	if op.vote.Kind != 0 {
		op.startOther(e)
		return
	}
	p, w := op.p, op.p.w
	op.begin(e)
	switch {
	case w.bug == epochForgotten:
		op.epoch = min(op.epoch, 1)
	case w.bug == spoilForgotten && op.epoch == 0:
		op.epoch = p.mesh.ahead.next
	}
	p.turn(op.epoch)
	switch {
	case w.bug == choiceOfLaunch && op.count < middleCount:
		e.Mesh, e.Members = op.meshed, p.m.View().Members
	case w.bug == choiceAhead && op.count < middleCount && p.id%2 == 0 && p.m.View().Mesh:
		e.Mesh, e.Members = true, p.m.View().Members
	}
	if w.bug == planForgotten && p.id%2 == 0 {
		e.Mesh, e.Large = e.Mesh && e.Large == nil, nil
	}
	op.way = way{true, e.Mesh, op.ring, route(e)}
	if e.Mesh {
		op.way.members = e.Members
	}
	if !op.eager {
		op.commence(e.Seq)
	}
	if e.Mesh {
		op.startDirect(e)
		return
	}
	d := &dataPhase{n: len(e.Ring), rank: -1}
	for i, u := range e.Ring {
		if u == e.Self {
			d.rank = i
		}
	}
	d.next = w.byUUID(e.Ring[(d.rank+1)%d.n])
	d.prev = w.byUUID(e.Ring[(d.rank+d.n-1)%d.n])
	out, in := w.link(p, d.next), w.link(d.prev, p)
	d.nextGen, d.prevGen = out.gen, in.gen
	op.data = d
	w.after(w.rng.between(0, time.Millisecond), p, func() {
		switch {
		case op.data != d:
		case !out.alive:
			op.end(lost(d.next))
		case !in.alive:
			op.end(lost(d.prev))
		default:
			d.running = true
			op.sendStep()
			op.advance()
		}
	})
}

// begin takes over what is the same for all data phases.
func (op *op) begin(e pfsm.StartData) {
	op.seq, op.epoch, op.eager, op.open = e.Seq, e.Epoch, e.Eager, true
	op.ring = slices.Clone(e.Ring)
	op.bound = bound{on: e.Ahead > 0, most: int64(e.Ahead)}
	if op.bound.on {
		op.p.w.collector.limited++
	}
}

// commence takes the sequence number, with which what was held back leaves.
func (op *op) commence(seq uint64) {
	op.seq, op.started = seq, true
	op.p.mesh.passed = max(op.p.mesh.passed, seq+1)
	held := op.bound.held
	if op.bound.held = nil; op.moves() && op.p.w.bug != heldForgotten {
		op.p.w.collector.held += len(held)
		for _, leave := range held {
			leave()
		}
	}
	defer func() {
		if op.bound.through && op.moves() {
			op.end(nil)
		}
	}()
	op.p.w.collector.planned(op.p.w, op)
	if op.vote.Kind != 0 {
		op.move()
		return
	}
	op.p.w.collector.started(op.p.w, op)
	op.advance()
}

// sendStep sends the chunk of the current step.
func (op *op) sendStep() {
	p, d, w := op.p, op.data, op.p.w
	l := w.link(p, d.next)
	if !l.alive || l.gen != d.nextGen {
		op.end(lost(d.next))
		return
	}
	off, n := plan.Chunk(len(op.buf), d.n, plan.SendChunk(d.rank, d.n, d.step))
	op.send(l, d.next, d.step, op.buf[off:off+n])
}

// moves reports whether the data phase goes on.
func (op *op) moves() bool { return op.data != nil || op.direct != nil || op.blocks != nil }

// send puts a copy of a chunk on its way, if it may leave now.
func (op *op) send(l *link, to *peer, step int, chunk []int64) {
	w := op.p.w
	chunk = slices.Clone(chunk)
	if op.bound.on && op.nameless() && w.bug != boundForgotten {
		// Pieces of a chunk may leave one by one. Where one leaves that has no room the
		// next ones wait, as they come in order.
		if op.bound.most -= op.bytes(len(chunk)); op.bound.most < 0 || len(op.bound.held) > 0 {
			op.bound.held = append(op.bound.held, func() { op.leaves(l, to, step, chunk) })
			return
		}
	}
	op.leaves(l, to, step, chunk)
}

func (op *op) leaves(l *link, to *peer, step int, chunk []int64) {
	p, w := op.p, op.p.w
	f := frame{from: p.id, step: step, seq: op.seq, tag: op.tag}
	if op.eager && (!op.bound.on || op.nameless() || w.bug == numberUnused) {
		f = frame{from: p.id, step: step, tag: op.tag, epoch: op.epoch}
	}
	if w.bug == senderForgotten && op.eager && op.blocks != nil {
		f.from = -1
	}
	l.last = max(l.last, w.now+w.travels(p, to))
	gen := l.gen
	w.at(l.last, to, func() {
		if l.gen == gen && l.alive {
			to.arrive(f, chunk)
		}
	})
}

// take returns what another peer has sent in a step, if it came.
func (op *op) take(from *peer, step int) ([]int64, bool) {
	inbox := op.p.mesh.inbox
	f := frame{from: from.id, step: step, tag: op.tag, epoch: op.epoch}
	if op.p.w.bug == senderForgotten && op.blocks != nil {
		f.from = -1
	}
	chunk, ok := inbox[f]
	if ok = ok && op.epoch != 0; !ok && !op.nameless() {
		f = frame{from: from.id, step: step, seq: op.seq, tag: op.tag}
		chunk, ok = inbox[f]
	} else if !ok {
		f, chunk, ok = op.p.ahead(op, from, step)
	}
	if ok {
		delete(inbox, f)
	}
	return chunk, ok
}

// ahead returns what a member that has heard of the commence of op before this one has sent.
func (p *peer) ahead(op *op, from *peer, step int) (f frame, chunk []int64, ok bool) {
	for g, c := range p.mesh.inbox {
		if g.epoch == 0 && g.from == from.id && g.step == step && g.tag == op.tag && (g.seq >= p.mesh.passed || p.w.bug == anyNumber) && (!ok || g.seq < f.seq) {
			f, chunk, ok = g, c, true
		}
	}
	return f, chunk, ok
}

// advance takes in what has arrived.
func (op *op) advance() {
	if op.direct != nil {
		op.exchange()
		return
	}
	if op.blocks != nil {
		op.move()
		return
	}
	p := op.p
	for op.data != nil && op.data.running {
		d := op.data
		chunk, ok := op.take(d.prev, d.step)
		if !ok {
			return
		}
		off, n := plan.Chunk(len(op.buf), d.n, plan.RecvChunk(d.rank, d.n, d.step))
		if n != len(chunk) {
			op.end(errors.New("frame of the wrong size"))
			return
		}
		for i, v := range chunk {
			if plan.Reduces(d.n, d.step) && p.w.bug != chunkLost {
				op.buf[off+i] += v
			} else {
				op.buf[off+i] = v
			}
		}
		d.step++
		if d.step == plan.Steps(d.n) {
			op.end(nil)
			return
		}
		op.sendStep()
	}
}

// end ends the data phase, once.
func (op *op) end(err error) {
	if !op.moves() {
		return
	}
	directly := op.direct != nil
	if directly && err != nil {
		op.p.w.collector.directFailures++
	}
	if err == nil && len(op.bound.held) > 0 {
		op.bound.through = true
		return
	}
	op.data, op.blocks, op.direct, op.bound.held, op.bound.through = nil, nil, nil, nil, false
	if err == nil && op.nameless() {
		op.p.w.collector.ahead++
	}
	if err != nil {
		op.p.spoil(op.tag, op.epoch)
	}
	op.p.w.after(op.p.w.rng.between(0, 500*time.Microsecond), op.p, func() {
		op.open = false
		if i := slices.Index(op.ring, op.p.uuid); i >= 0 && err == nil && !directly && op.metered() {
			w := op.p.w
			op.p.step(pfsm.LinkUsed{To: op.ring[(i+1)%len(op.ring)], Mbps: float64(w.rng.n(1000)), Busy: float64(w.rng.n(3)) / 2})
		}
		if err == nil && op.large {
			op.p.shows()
		}
		op.p.step(pfsm.DataEnded{Op: op.id, Err: err})
	})
}

// renew puts the operation back to where it was before its data phase.
func (op *op) renew() {
	if op.finished || op.open || op.started {
		op.p.w.failf("peer %d: operation %d is taken back while its data phase runs, or after its commence", op.p.id, op.id)
	}
	op.p.w.collector.renewed++
	op.eager, op.way = false, way{}
	if op.job != nil {
		op.job.restore(noBug)
	}
	copy(op.buf, op.saved)
}

func (op *op) finish(e pfsm.Finish) {
	w, restore := op.p.w, e.Restore && e.Result == nil
	if op.finished || op.open {
		w.failf("peer %d: operation %d finished twice or while its data phase runs", op.p.id, op.id)
	}
	op.finished, op.restored = true, restore
	if e.Restore && w.bug != restoreSkipped {
		copy(op.buf, op.saved)
	}
	if e.Result != nil {
		op.takeResult(e.Result)
	}
	if e.Keep {
		op.p.keep(op)
	}
	if op.vote.Kind != 0 {
		if restore {
			op.job.restore(w.bug)
		}
		w.collector.met(w, op)
		return
	}
	if !restore && op.seq != 0 {
		w.collector.took(op)
	}
	w.collector.finished(w, op, e.Keep)
}
