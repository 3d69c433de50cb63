package reduce

import (
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// An eager operation begins before its sequence number is known (docs/spec/extensions.md,
// "Eager start"). Its frames carry the epoch in the place of the number: in one
// epoch a tag names one operation at a time, and whoever launches the next one
// with the same tag knows that all have everything of the last one, unless that
// failed; then nobody begins with this tag until the next epoch.
//
// The next peer may launch later. What comes for it until then is kept, as it
// came, and processed by whoever launches: its reader goes on with what belongs
// to other operations. The sender bounds what it may have on its way so.
const (
	// eagerBit marks the stream number of a frame that carries an epoch.
	eagerBit = uint64(1) << 61
	// lingerTime is how long a frame whose operation is not launched may stay
	// with the system, where it costs no copy, if nothing comes behind it that
	// is waited for. The other end must not take it for lost.
	lingerTime = 10 * time.Millisecond
)

// eagerState is what an operation knows of eager neighbours. Guarded by Engine.mu.
type eagerState struct {
	waits     bool // it began eagerly, and will be striped when it has a number
	listens   bool // frames with its epoch are for it
	replaying bool // what came early is being processed
}

// ahead is what an engine knows of eager operations. Guarded by Engine.mu. ops
// and spoiled belong to epoch, which only reach changes.
type ahead struct {
	epoch   uint64         // the newest that has begun
	next    uint64         // the newest that may begin
	ops     map[uint64]*Op // that listen, by tag
	spoiled map[uint64]bool
	early   map[earlyKey]*early
	held    map[wire.UUID]int // memory in early, by sender
	strange int               // of it, what is no neighbour's
}

func newAhead() ahead {
	return ahead{ops: map[uint64]*Op{}, spoiled: map[uint64]bool{}, early: map[earlyKey]*early{}, held: map[wire.UUID]int{}}
}

// named returns what of epoch is on the wire.
func named(epoch uint64) uint64 { return epoch &^ (eagerBit | stripeBit | 1<<63) }

// ExpectEpoch says that neighbours may begin operations in epoch as soon as this
// peer has told the master that it is ready for it. Frames of later epochs
// belong to nobody.
func (e *Engine) ExpectEpoch(epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ahead.next = max(e.ahead.next, named(epoch))
}

// BeginEpoch says that epoch has begun: what belongs to earlier ones is over.
func (e *Engine) BeginEpoch(epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reach(named(epoch))
}

// reach is how the engine learns of an epoch, whoever tells it first: the end of
// the round that begins it, an operation that starts or one that has failed. It
// reports whether epoch is the newest. What has failed and what came are told
// apart by epoch and tag, so that nothing may look at either table before it
// has said in which epoch it is. e.mu is held.
func (e *Engine) reach(epoch uint64) bool {
	a := &e.ahead
	if epoch == 0 || epoch < a.epoch {
		return false
	}
	if epoch == a.epoch {
		return true
	}
	a.epoch, a.next = epoch, max(a.next, epoch)
	clear(a.ops)
	clear(a.spoiled)
	for k, x := range a.early {
		if k.epoch < epoch {
			e.drop(k, x)
		}
	}
	e.started.Broadcast()
	return true
}

// Listen makes op one that neighbours may begin eagerly in epoch, which is not
// above 2^61; 0: they may not. Call it before Start; StartEager does it itself.
func (op *Op) Listen(epoch uint64) { op.epoch = named(epoch) }

// StartEager is Start before the sequence number is known: Commence follows when
// it is. No operation with this tag has failed in this epoch, none runs, and all
// members of the ring are gopccl ends.
func (op *Op) StartEager(epoch uint64, ring []wire.UUID, self wire.UUID, done func(err error)) {
	op.Listen(epoch)
	op.start(eagerBit|op.epoch, ring, self, true, done)
}

func (op *Op) isEager() bool { return op.seq&eagerBit != 0 }

// runs reports whether nil or a running operation stands in the way of another
// one with its key.
func (op *Op) runs() bool {
	if op == nil {
		return false
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.state == opRunning
}

// Commence tells an operation that began eagerly its sequence number: a
// neighbour that did not begin so uses it. The operation may be over.
func (op *Op) Commence(seq uint64) {
	e := op.e
	e.mu.Lock()
	e.pass(seq)
	op.mu.Lock()
	op.number, op.unnamed = seq, false
	op.mu.Unlock()
	send := false
	if e.ops[op.key] == op {
		delete(e.ops, op.key)
		op.key.seq = seq
		e.ops[op.key] = op
		if send, op.eager.waits = op.eager.waits, false; send {
			op.mu.Lock()
			op.seq = seq
			if flows := e.flowsFor(op); flows != nil && op.failErr == nil {
				op.stripe(flows)
			}
			op.mu.Unlock()
		}
	}
	e.started.Broadcast()
	e.mu.Unlock()
	switch {
	case !send:
	case op.txBroken():
		op.lost(op.next, noConnection)
	default:
		op.attach()
	}
}

// Spoil says that an operation with tag has failed: what still comes for it from
// eager neighbours is dropped, until the next epoch.
func (e *Engine) Spoil(tag, epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reach(named(epoch)) {
		e.spoil(tag)
	}
}

func (e *Engine) spoil(tag uint64) {
	e.ahead.spoiled[tag] = true
	for k, x := range e.ahead.early {
		if k.tag == tag && k.epoch == e.ahead.epoch {
			e.drop(k, x)
		}
	}
	e.started.Broadcast()
}

// listen makes op the one that eager frames with its tag are for, and returns
// what came before. e.mu is held.
func (e *Engine) listen(op *Op) *early {
	a := &e.ahead
	if !e.reach(op.epoch) || op.n < 2 || a.spoiled[op.spec.Tag] {
		return nil
	}
	a.ops[op.spec.Tag] = op
	op.eager.listens = true
	k := earlyKey{op.prev, op.spec.Tag, a.epoch}
	x := a.early[k]
	if x == nil {
		return nil
	}
	delete(a.early, k)
	e.hold(k.from, -x.cost)
	op.rx, op.bound, op.eager.replaying = x.r, true, true
	e.wg.Add(1) // of replay; Close waits for op, which is not over yet
	return x
}

// forget takes an operation that is over out of the books. e.mu is held.
func (e *Engine) forget(op *Op, failed bool) {
	if e.ops[op.key] == op {
		delete(e.ops, op.key)
	}
	if !op.eager.listens || op.epoch != e.ahead.epoch {
		return // its epoch took it along
	}
	if e.ahead.ops[op.spec.Tag] == op {
		delete(e.ahead.ops, op.spec.Tag)
	}
	if failed {
		e.spoil(op.spec.Tag)
	}
}

// findEager returns the operation that a frame with an epoch is for, or keep if
// it is not launched yet; neither: the frame is stale. A frame that is here
// already is added to what came early, if it is to be kept.
func (e *Engine) findEager(r *receiver, tag, epoch uint64, frame *early) (op *Op, keep bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := &e.ahead
	var until time.Time
	for {
		switch {
		case e.closed || r.closed.Load() || epoch < a.epoch || epoch > a.next || epoch == a.epoch && a.spoiled[tag]:
			return nil, false
		case epoch > a.epoch || a.ops[tag] == nil || a.ops[tag].rxDone.Load():
			// All of the last operation with this tag has come.
			if frame == nil && !e.wanted(r) {
				now := time.Now()
				if until.IsZero() {
					until = now.Add(lingerTime)
					r.alarm()
					defer r.bell.Stop()
				}
				if now.Before(until) {
					e.started.Wait()
					continue
				}
			}
			if frame != nil {
				e.keep(earlyKey{r.peer, tag, epoch}, frame)
			}
			return nil, true
		}
		op = a.ops[tag]
		if op.prev != r.peer || op.bound && (op.split() || op.rx != r) {
			return nil, false
		}
		if !op.eager.replaying {
			op.rx, op.bound = r, true
			return op, false
		}
		e.started.Wait()
	}
}

// wanted reports whether anything may be needed that comes behind what r reads.
// e.mu is held.
func (e *Engine) wanted(r *receiver) bool {
	if e.between {
		return true
	}
	for _, op := range e.ops {
		if op.prev == r.peer && !op.rxDone.Load() {
			return true
		}
	}
	return false
}

// alarm wakes r from its wait for a launch. e.mu is held.
func (r *receiver) alarm() {
	if r.bell != nil {
		r.bell.Reset(lingerTime)
		return
	}
	r.bell = time.AfterFunc(lingerTime, func() {
		r.e.mu.Lock()
		defer r.e.mu.Unlock()
		r.e.started.Broadcast()
	})
}
