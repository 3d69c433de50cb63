package reduce

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/transport"
	"github.com/gopccl/gopccl/core/wire"
)

// An eager operation begins before its sequence number is known (docs/extensions.md,
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
	// maxEarly bounds what is kept of one connection, in bytes with headers: what
	// the protocol allows, and the leftovers of operations that have failed.
	maxEarly = 6 << 20
	// maxEarlyAll bounds what is kept of all connections: of the previous peers
	// of two rings, and of whoever else found the port.
	maxEarlyAll = 3 * maxEarly
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

// early is what came from one connection for an operation that is not launched.
type early struct {
	r      *receiver
	frames [][]byte // whole ones, in memory of the pool
	bytes  int
}

// ahead is what an engine knows of eager operations. Guarded by Engine.mu.
type ahead struct {
	epoch   uint64
	ops     map[uint64]*Op // that listen, by tag
	spoiled map[uint64]bool
	early   map[earlyKey]*early
	held    map[*receiver]int // bytes in early
	total   int               // of all connections
}

type earlyKey struct {
	from       wire.UUID
	tag, epoch uint64
}

func newAhead() ahead {
	return ahead{ops: map[uint64]*Op{}, spoiled: map[uint64]bool{}, early: map[earlyKey]*early{}, held: map[*receiver]int{}}
}

// Listen makes op one that neighbours may begin eagerly in epoch, which is
// neither 0 nor above 2^61. Call it before Start; StartEager does it itself.
func (op *Op) Listen(epoch uint64) { op.epoch = epoch &^ (eagerBit | stripeBit | 1<<63) }

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
				op.tx = flows[0]
			}
			op.mu.Unlock()
		}
	}
	e.started.Broadcast()
	e.mu.Unlock()
	switch {
	case !send:
	case op.txBroken():
		op.lost(op.next, "there is no connection to the next peer of the ring")
	default:
		op.attach()
	}
}

// Spoil says that an operation with tag has failed: what still comes for it from
// eager neighbours is dropped, until the next epoch.
func (e *Engine) Spoil(tag, epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if epoch == e.ahead.epoch {
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
	if op.epoch == 0 || op.epoch < a.epoch || op.n < 2 {
		return nil
	}
	if op.epoch > a.epoch {
		a.epoch = op.epoch
		clear(a.spoiled)
		for k, x := range a.early {
			if k.epoch < a.epoch {
				e.drop(k, x)
			}
		}
	}
	if a.spoiled[op.spec.Tag] {
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
	e.held(x, -x.bytes)
	op.rx, op.bound, op.eager.replaying = x.r, true, true
	return x
}

func (e *Engine) held(x *early, d int) {
	e.ahead.total += d
	if n := e.ahead.held[x.r] + d; n > 0 {
		e.ahead.held[x.r] = n
	} else {
		delete(e.ahead.held, x.r)
	}
}

// drop forgets what came early. e.mu is held.
func (e *Engine) drop(k earlyKey, x *early) {
	delete(e.ahead.early, k)
	e.held(x, -x.bytes)
	for _, b := range x.frames {
		e.cfg.Stats.StaleFrames.Add(1)
		e.cfg.Stats.StaleBytes.Add(uint64(len(b) - transport.HeaderSize))
		e.cfg.Pool.Put(b)
	}
}

// forget takes an operation that is over out of the books. e.mu is held.
func (e *Engine) forget(op *Op, failed bool) {
	if e.ops[op.key] == op {
		delete(e.ops, op.key)
	}
	if !op.eager.listens || op.epoch != e.ahead.epoch {
		return
	}
	if e.ahead.ops[op.spec.Tag] == op {
		delete(e.ahead.ops, op.spec.Tag)
	}
	if failed {
		e.spoil(op.spec.Tag)
	}
}

// findEager returns the operation that a frame with an epoch is for, or keep if
// it is not launched yet; neither: the frame is stale. To be kept, the frame is
// added to what came early, if it is there already.
func (e *Engine) findEager(r *receiver, tag, epoch uint64, frame []byte) (op *Op, keep bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := &e.ahead
	var until time.Time
	for {
		switch {
		case e.closed || r.closed.Load() || epoch < a.epoch || epoch == a.epoch && a.spoiled[tag]:
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
				e.keep(earlyKey{r.peer, tag, epoch}, r, frame)
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

// keep adds a frame to what came early. e.mu is held.
func (e *Engine) keep(k earlyKey, r *receiver, frame []byte) {
	x := e.ahead.early[k]
	if x != nil && x.r != r { // the connection was replaced
		e.drop(k, x)
		x = nil
	}
	if x == nil {
		x = &early{r: r}
		e.ahead.early[k] = x
	}
	x.frames = append(x.frames, frame)
	x.bytes += len(frame)
	e.held(x, len(frame))
}

// left forgets what came early on a connection that is closed.
func (e *Engine) left(r *receiver) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ahead.held[r] == 0 {
		return
	}
	for k, x := range e.ahead.early {
		if x.r == r {
			e.drop(k, x)
		}
	}
}

// takeEager processes or keeps the eager frame whose header was read.
func (r *receiver) takeEager(h transport.Header) error {
	e, epoch := r.e, h.Stream&^eagerBit
	op, keep := e.findEager(r, h.Tag, epoch, nil)
	if !keep {
		return r.hand(op, h, false)
	}
	size := transport.HeaderSize + h.Payload
	e.mu.Lock()
	full := e.ahead.held[r]+size > maxEarly || e.ahead.total+size > maxEarlyAll
	e.mu.Unlock()
	if full {
		return errs.New(errs.Protocol, opName, fmt.Errorf("more than %d bytes came for operations that were not launched", maxEarly)).
			At("data phase").With(r.peer.String())
	}
	b := e.cfg.Pool.Get(size)
	h.Put((*[transport.HeaderSize]byte)(b))
	for p := b[transport.HeaderSize:]; len(p) > 0; {
		n, err := r.rd.Payload(p)
		if err != nil {
			e.cfg.Pool.Put(b)
			return err
		}
		p = p[n:]
	}
	// It may have been launched meanwhile.
	if op, keep = e.findEager(r, h.Tag, epoch, b); keep {
		return nil
	}
	return e.process(op, &early{r: r, frames: [][]byte{b}})
}

// replay processes what came before the launch, on the goroutine that launches
// unless it would have to wait for a device. The connection's reader waits if
// more of it comes.
func (e *Engine) replay(op *Op, x *early) {
	if op.dev != nil {
		e.spawn("reader", x.r.peer, func() { e.replayHere(op, x) }, x.r.close)
		return
	}
	e.replayHere(op, x)
}

func (e *Engine) replayHere(op *Op, x *early) {
	err := e.process(op, x)
	e.mu.Lock()
	op.eager.replaying = false
	e.started.Broadcast()
	e.mu.Unlock()
	if err != nil {
		x.r.close(err)
	}
}

// process gives op, nil if nobody wants them, the frames of x, and their memory
// back to the pool.
func (e *Engine) process(op *Op, x *early) (err error) {
	largest := 0
	for _, b := range x.frames {
		largest = max(largest, len(b))
	}
	src := &kept{}
	q := &receiver{e: e, peer: x.r.peer, number: x.r.number, conn: still{}}
	q.scratch = e.cfg.Pool.Get(largest + 8)
	for _, b := range x.frames {
		if err == nil && op != nil && op.beginReceive(q) {
			src.b = b
			q.rd = transport.NewReader(src, 0)
			if _, err = q.rd.Next(); err == nil {
				err = q.receive(op, false)
			}
			op.endReceive(q)
			if err != nil {
				q.blame(op, err)
			}
			e.cfg.Stats.RxFrames.Add(1)
			e.cfg.Stats.RxBytes.Add(uint64(len(b) - transport.HeaderSize))
		} else {
			e.cfg.Stats.StaleFrames.Add(1)
			e.cfg.Stats.StaleBytes.Add(uint64(len(b) - transport.HeaderSize))
		}
		e.cfg.Pool.Put(b)
	}
	e.cfg.Pool.Put(q.scratch)
	q.flush()
	if errors.Is(err, errAborted) {
		return nil
	}
	return err
}

// kept is what a frame that was kept is read from.
type kept struct{ b []byte }

func (m *kept) Read(p []byte) (int, error) {
	if len(m.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, m.b)
	m.b = m.b[n:]
	return n, nil
}

// still is the connection of a reader that reads memory: nothing interrupts it.
type still struct{ net.Conn }

func (still) SetReadDeadline(time.Time) error { return nil }
