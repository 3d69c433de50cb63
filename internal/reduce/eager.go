package reduce

import (
	"time"

	"github.com/gopccl/gopccl/internal/link"
)

// An eager operation begins before its sequence number is known (docs/spec/extensions.md,
// "Eager start"). Its frames carry the epoch in the place of the number: in one
// epoch a tag names one operation at a time, and a peer that launches the next one
// with the same tag knows that all have everything of the last one, unless that
// failed; then no peer begins with this tag until the next epoch.
//
// The next peer may launch later. What comes for it until then is kept, as it
// came, and processed at the launch: its reader goes on with what belongs
// to other operations. The sender bounds what it may have on its way so. Of an operation
// that is larger, what is above the bound is sent when its number is known, with that: a
// reader can wait then, because all peers have launched it.
const (
	// eagerBit marks the stream number of a frame that carries an epoch. It may be a
	// piece, too.
	eagerBit = uint64(1) << 61
	// lingerTime is how long a frame whose operation is not launched may stay
	// with the system, where it costs no copy, if nothing comes behind it that
	// is waited for. The other end must not take it for lost.
	lingerTime = 10 * time.Millisecond
	// replayHere is how much of what came early the goroutine that launches processes.
	replayHere = 512 << 10
)

// eagerState is what an operation knows of eager neighbours. Guarded by Engine.mu.
type eagerState struct {
	deferred  bool // it began eagerly, and sends when it has a number
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
}

func newAhead() ahead {
	return ahead{ops: map[uint64]*Op{}, spoiled: map[uint64]bool{}}
}

// named returns what of epoch is on the wire.
func named(epoch uint64) uint64 { return epoch &^ (eagerBit | stripeBit | link.OpenerBit) }

// isEager reports whether a frame of the stream carries an epoch.
func isEager(stream uint64) bool {
	return stream&(link.OpenerBit|eagerBit) == eagerBit
}

// ExpectEpoch says that neighbours may begin operations in epoch as soon as this
// peer has told the master that it is ready for it. Frames of later epochs
// are stale.
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

// reach is how the engine learns of an epoch, from the first of three events: the end
// of the round that begins it, an operation that starts or one that has failed. It
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
	e.hub.DropEarly(func(_, stream uint64) bool { return named(stream) < epoch })
	e.started.Broadcast()
	return true
}

func (op *Op) isEager() bool { return op.id.stream.Load()&eagerBit != 0 }

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
	op.id.number, op.id.unnamed = seq, false
	limited := op.out.limited
	if limited {
		op.out.limited = false
		op.id.stream.Store(seq)
	}
	op.mu.Unlock()
	send := false
	if e.ops[op.id.key] == op {
		delete(e.ops, op.id.key)
		op.id.key.seq = seq
		e.ops[op.id.key] = op
		if send, op.eager.deferred = op.eager.deferred, false; send {
			pool := e.hub.InUse(op.next)
			op.mu.Lock()
			op.id.stream.Store(seq)
			if flows := e.flowsFor(op, pool); flows != nil && op.failErr == nil {
				op.stripe(flows)
			}
			op.mu.Unlock()
		}
	}
	e.started.Broadcast()
	e.mu.Unlock()
	switch {
	case send && op.outBroken():
		op.failTo()
	case send:
		op.attach()
	case limited && op.out.sender != nil:
		op.rouse()
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
	a := &e.ahead
	a.spoiled[tag] = true
	e.hub.DropEarly(func(t, stream uint64) bool { return t == tag && named(stream) == a.epoch })
	e.started.Broadcast()
}

// listen makes op the one that eager frames with its tag are for, and returns
// what came before. gone: one of the connections that brought it has ended. e.mu is held.
func (e *Engine) listen(op *Op) (came []*link.Early, gone bool) {
	a := &e.ahead
	if !e.reach(op.id.epoch) || op.n < 2 || a.spoiled[op.spec.Tag] {
		return nil, false
	}
	a.ops[op.spec.Tag] = op
	op.eager.listens = true
	if came = e.hub.TakeEarly(op.prev, op.spec.Tag, stripeBit|eagerBit|a.epoch); len(came) > 0 {
		for _, x := range came {
			gone = op.bind(x.From()) || gone
		}
	} else if came = e.hub.TakeEarly(op.prev, op.spec.Tag, eagerBit|a.epoch); len(came) > 1 {
		for _, x := range came[1:] { // what is in order comes on one connection
			_ = e.hub.Replay(x, nil)
		}
		came = came[:1]
	}
	if len(came) == 0 {
		return nil, false
	}
	op.in.receiver, op.in.bound, op.eager.replaying = came[0].From(), true, true
	e.replays.Add(1) // Close waits for op first, which is not over yet
	return came, gone
}

// replay processes what came before the launch, on the goroutine that launches
// unless it would have to wait for a device or be busy for long. The connection's reader
// waits if more of it comes.
func (e *Engine) replay(op *Op, came []*link.Early) {
	bytes := 0
	for _, x := range came {
		bytes += x.Bytes()
	}
	here := func() {
		for _, x := range came {
			if err := e.hub.Replay(x, &op.in); err != nil {
				x.From().Close(err)
			}
		}
	}
	over := func() {
		e.mu.Lock()
		op.eager.replaying = false
		e.started.Broadcast()
		e.mu.Unlock()
		e.replays.Done()
	}
	if op.dev == nil && bytes <= replayHere {
		defer over()
		here()
		return
	}
	go func() {
		defer over()
		e.hub.Labelled("reader", op.prev, here, came[0].From().Close)
	}()
}

// forget takes an operation that is over out of the books. e.mu is held.
func (e *Engine) forget(op *Op, failed bool) {
	if e.ops[op.id.key] == op {
		delete(e.ops, op.id.key)
	}
	if !op.eager.listens || op.id.epoch != e.ahead.epoch {
		return // its epoch took it along
	}
	if e.ahead.ops[op.spec.Tag] == op {
		delete(e.ahead.ops, op.spec.Tag)
	}
	if failed {
		e.spoil(op.spec.Tag)
	}
}
