package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// The trainer: connect, then per loop: synchronize, reduce until everything is
// reduced, now and then optimize, ask for newcomers and let them in.

func (p *peer) connect() {
	p.call("connect", func(c pfsm.CallID) pfsm.Event { return pfsm.CallConnect{Call: c} }, func(d pfsm.Done) {
		if p.over && p.w.council != nil {
			p.tryAgain()
		}
		if !p.ended(d.Err) && !p.trainer.mute {
			p.accepted()
		}
	})
}

func (p *peer) synchronize() {
	entries := []wire.StateEntry{
		{Key: "a", Hash: p.memory.state[0], DType: dtype.Uint64}, {Key: "b", Hash: p.memory.state[1], DType: dtype.Uint64},
	}
	torn := p.memory.torn && p.w.bug != tornVotes
	p.call("sync", func(c pfsm.CallID) pfsm.Event {
		return pfsm.CallSync{Call: c, Revision: p.memory.revision, Torn: torn, Entries: entries}
	}, func(d pfsm.Done) {
		if p.ended(d.Err) {
			return
		}
		if errors.Is(d.Err, errs.Canceled) {
			p.synchronize() // it was given up before its vote
			return
		}
		if d.Err != nil {
			if !errors.Is(d.Err, errs.TransferFailed) {
				p.w.failf("peer %d: sync: %v", p.id, d.Err)
			}
			if p.trainer.again++; p.trainer.again < 3 && p.w.alone(p) {
				p.synchronize() // no peer is out of step because of it
				return
			}
			p.leave()
			return
		}
		p.memory.revision, p.memory.torn, p.trainer.again = d.Sync.Revision, false, 0
		p.w.collector.synced(p.w, p)
		if p.w.council != nil {
			p.w.council.synced(p)
		}
		p.reduceAll()
	})
}

// comeBack starts the trainer anew with the memory that a transfer has left torn.
func (p *peer) comeBack() {
	w := p.w
	bereft := p.line.bereft && p.trainer.loops > 0 && !p.memory.torn && !p.outlawed() && p.trainer.lives < 20
	if (!p.memory.torn || !p.native || p.trainer.lives > 1) && !bereft {
		return
	}
	w.served(func() {
		w.keys.heir = p.papers.name
		w.spawn(p.group, p.native, max(1, p.trainer.loops))
		n := w.peers[len(w.peers)-1]
		n.memory, n.trainer.lives = p.memory, p.trainer.lives+1
		if bereft {
			n.trainer.returned = !p.native
			w.tracef("peer %d connects again as peer %d", p.id, n.id)
			w.collector.connected++
			return
		}
		w.collector.tornAgain++
		w.tracef("peer %d comes back as peer %d with a torn state", p.id, n.id)
	})
}

// alone reports whether p is the last of its group.
func (w *world) alone(p *peer) bool {
	return !slices.ContainsFunc(w.peers, func(o *peer) bool { return o != p && o.group == p.group && !o.dead })
}

// reduceAll reduces some vectors at once and repeats the failed ones.
func (p *peer) reduceAll() {
	w := p.w
	var todo []uint64
	vectors := map[uint64][]int64{}
	tags := 1 + p.memory.revision%3
	if w.plan.reuse {
		tags = 2 + p.memory.revision%2
	}
	for tag := range tags {
		todo = append(todo, tag)
		v := make([]int64, 2+int(p.memory.revision+tag)%5)
		for i := range v {
			v[i] = int64(w.rng.n(1000))
		}
		vectors[tag] = v
	}
	if w.plan.overlap {
		p.trainer.early = &early{}
		p.background("pending", func(c pfsm.CallID) pfsm.Event { return pfsm.CallPending{Call: c} }, p.trainer.early.take)
	}
	p.attempt(todo, vectors)
}

func (p *peer) attempt(todo []uint64, vectors map[uint64][]int64) {
	if len(todo) == 0 || p.m.View().LocalWorldSize < 2 {
		p.reduced(vectors)
		return
	}
	p.ops = slices.DeleteFunc(p.ops, func(o *op) bool { return o.finished })
	if p.w.plan.reuse {
		p.attemptAndReuse(todo, vectors)
		return
	}
	var order []*op
	for _, tag := range todo {
		order = append(order, p.launch(tag, vectors[tag]))
	}
	if p.m.View().Native { // with PCCL peers the order of the awaits decides (quirk Q18)
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

// launch makes an operation of a vector.
func (p *peer) launch(tag uint64, v []int64) *op {
	p.nextOp++
	o := &op{p: p, id: p.nextOp, tag: tag, buf: v, orig: slices.Clone(v), saved: slices.Clone(v)}
	count := p.counted(tag, v)
	o.count, o.large, o.meshed = count, count == largeCount, p.goesDirectly(count)
	o.launched = p.w.now
	p.ops = append(p.ops, o)
	p.busy[tag] = true
	p.call("launch", func(c pfsm.CallID) pfsm.Event {
		p.launches[c] = o
		return pfsm.CallCollective{Call: c, Op: o.id, Tag: tag, Count: count, DType: dtype.Int64, RedOp: dtype.Sum, Far: p.line.remote, Forward: p.forwards(tag)}
	}, func(d pfsm.Done) {
		if d.Err != nil {
			p.busy[tag] = false
			if !p.over && !errors.Is(d.Err, errs.Canceled) && !errors.Is(d.Err, errs.TooFewPeers) {
				p.w.failf("peer %d: launch: %v", p.id, d.Err)
			}
		}
	})
	return o
}

// attemptAndReuse launches all operations, at some peers the first one earlier
// than the others, and awaits them then.
func (p *peer) attemptAndReuse(todo []uint64, vectors map[uint64][]int64) {
	order := []*op{p.launch(todo[0], vectors[todo[0]])}
	rest := func() {
		if p.over {
			p.ended(nil)
			return
		}
		for _, tag := range todo[1:] {
			order = append(order, p.launch(tag, vectors[tag]))
		}
		p.awaitAndReuse(order, vectors, nil, nil)
	}
	if p.w.rng.chance(3) {
		p.w.after(p.w.rng.between(0, 15*time.Millisecond), p, rest)
		return
	}
	rest()
}

// awaitAndReuse awaits operations in their order, which is the same on all peers.
// One that fails while others are not awaited is launched again at once, with its
// tag, before the round; now and then its caller gives up the first one.
func (p *peer) awaitAndReuse(order []*op, vectors map[uint64][]int64, again, failed []uint64) {
	if len(order) == 0 {
		slices.Sort(failed)
		p.attempt(failed, vectors)
		return
	}
	o := order[0]
	p.awaitOne(o, func(tags []uint64) {
		if len(tags) == 0 || len(order) == 1 || slices.Contains(again, o.tag) || p.m.View().LocalWorldSize < 2 {
			p.awaitAndReuse(order[1:], vectors, again, append(failed, tags...))
			return
		}
		p.relaunch(o.tag, vectors[o.tag], func(o *op) {
			p.awaitAndReuse(append(slices.Clone(order[1:]), o), vectors, append(again, o.tag), failed)
		})
	})
	if len(order) > 1 && p.w.rng.chance(8) {
		p.w.after(p.w.rng.between(0, 3*time.Millisecond), p, func() {
			if _, pending := p.calls[p.trainer.current]; pending && p.trainer.awaiting == o {
				p.w.tracef("peer %d gives operation %d up", p.id, o.id)
				o.canceled = true
				p.step(pfsm.CallCancel{Call: p.trainer.current, Op: o.id})
			}
		})
	}
}

// relaunch launches a tag again, as soon as the verdict of its last use is here,
// for which who gave that up did not wait.
func (p *peer) relaunch(tag uint64, v []int64, then func(*op)) {
	if p.over {
		p.ended(nil)
		return
	}
	if p.busy[tag] {
		p.w.after(500*time.Microsecond, p, func() { p.relaunch(tag, v, then) })
		return
	}
	p.w.collector.reuses++
	for i := range v { // other contents: leftovers of its last use must be noticed
		v[i] += 1000
	}
	then(p.launch(tag, v))
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
		p.trainer.awaiting = o
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
		case o.job != nil:
			p.w.collector.failed(p.w, o, d.Err)
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
				h := rng(p.memory.state[tag%2] ^ uint64(v))
				p.memory.state[tag%2] = h.next()
			}
		}
	} else {
		p.memory.state[0]++
	}
	p.memory.revision++
	p.w.collector.sound[p.memory.state] = true
	due := p.memory.revision%4 == 3 || p.w.plan.eager && p.memory.revision == 1
	if p.w.plan.groups == 1 && due && p.m.View().GlobalWorldSize > 1 {
		p.optimize(func() { p.meet(p.correspond) })
		return
	}
	p.meet(p.correspond)
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
		if errors.Is(d.Err, errs.Canceled) {
			p.optimize(then)
			return
		}
		// The round that follows an operation which has returned may leave it alone.
		if d.Err != nil && p.m.View().GlobalWorldSize > 1 {
			p.w.failf("peer %d: optimize: %v", p.id, d.Err)
		}
		then()
	})
}

func (p *peer) askPending() {
	if p.trainer.loops--; p.trainer.loops <= 0 {
		if !p.w.leaving {
			p.w.leaving, p.w.unprovoked = true, p.w.collector.failures
		}
		if p.w.plan.drain {
			p.drain()
			return
		}
		p.leave()
		return
	}
	var then func(d pfsm.Done)
	ask := func() {
		p.call("pending", func(c pfsm.CallID) pfsm.Event { return pfsm.CallPending{Call: c} }, then)
	}
	then = func(d pfsm.Done) {
		if p.ended(d.Err) {
			return
		}
		if errors.Is(d.Err, errs.Canceled) {
			ask() // the vote stands, and the others act on its answer
			return
		}
		if d.Err != nil {
			p.w.failf("peer %d: pending: %v", p.id, d.Err)
			return
		}
		if d.Pending {
			p.update()
			return
		}
		p.synchronize()
	}
	if p.trainer.early != nil {
		p.trainer.doing = "pending"
		p.trainer.early.wait(then)
		return
	}
	ask()
}

func (p *peer) update() {
	p.call("update", func(c pfsm.CallID) pfsm.Event { return pfsm.CallUpdate{Call: c} }, func(d pfsm.Done) {
		if p.ended(d.Err) {
			return
		}
		if errors.Is(d.Err, errs.Canceled) {
			p.update()
			return
		}
		if d.Err != nil {
			p.w.failf("peer %d: update: %v", p.id, d.Err)
		}
		p.accepted()
	})
}

// drain leaves between two collectives of the others, if that can be had.
func (p *peer) drain() {
	p.call("leave", func(c pfsm.CallID) pfsm.Event { return pfsm.CallLeave{Call: c} }, func(d pfsm.Done) {
		switch {
		case d.Err == nil:
			p.w.collector.drained++
			p.exit()
			p.comeBack()
		case errors.Is(d.Err, errs.Busy), errors.Is(d.Err, errs.NoSharedStateAvailable), errors.Is(d.Err, errs.Canceled) && !p.over:
			p.leave()
		case p.outlawed(), p.w.excuses(p):
			p.ended(d.Err)
		default:
			p.w.failf("peer %d: leave: %v", p.id, d.Err)
		}
	})
}

func (p *peer) leave() {
	p.call("close", func(c pfsm.CallID) pfsm.Event { return pfsm.CallClose{Call: c} }, func(d pfsm.Done) {
		if d.Err != nil {
			p.w.failf("peer %d: close: %v", p.id, d.Err)
		}
		p.exit()
		p.comeBack()
	})
}
