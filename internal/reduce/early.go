package reduce

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// maxEarly bounds the memory that what came early from one neighbour takes:
	// of what the protocol allows it, 4 MiB, frames of any size take less.
	maxEarly = 8 << 20
	// maxEarlyStrange bounds that of all who are no neighbours together. They
	// have no business with it: a neighbour is known before it can begin anything.
	maxEarlyStrange = 1 << 20
	// Frames up to smallPart share memory of Go's; larger ones are read into
	// memory of the pool, at most largePart of it at a time, as their bytes come.
	smallPart = 4 << 10
	largePart = 64 << 10
	// What the books take, beside the bytes themselves.
	earlyCost = 256
	partCost  = 32
)

// early is what came from one connection for an operation that is not launched:
// whole frames with their headers, one after another.
type early struct {
	r       *receiver
	parts   [][]byte
	frames  int
	largest int // payload of a frame
	bytes   int // of all frames
	cost    int // memory that is reserved for it
}

type earlyKey struct {
	from       wire.UUID
	tag, epoch uint64
}

// reserve notes that cost bytes more are to be kept of what peer sends; false:
// that is too much. e.mu is held.
func (e *Engine) reserve(peer wire.UUID, cost int) bool {
	if e.ahead.held[peer]+cost > maxEarly || !e.known[peer] && e.ahead.strange+cost > maxEarlyStrange {
		return false
	}
	e.hold(peer, cost)
	return true
}

// hold adds d to what is kept of peer. e.mu is held.
func (e *Engine) hold(peer wire.UUID, d int) {
	if !e.known[peer] {
		e.ahead.strange += d
	}
	if n := e.ahead.held[peer] + d; n > 0 {
		e.ahead.held[peer] = n
	} else {
		delete(e.ahead.held, peer)
	}
}

// know makes peer a neighbour, or no neighbour any more. e.mu is held.
func (e *Engine) know(peer wire.UUID, is bool) {
	held := e.ahead.held[peer]
	switch {
	case is && !e.known[peer]:
		e.known[peer] = true
		e.ahead.strange -= held
	case !is && e.known[peer]:
		delete(e.known, peer)
		delete(e.claims.vouched, peer)
		e.ahead.strange += held
	}
}

// keep adds a frame that was read to what came early. e.mu is held.
func (e *Engine) keep(k earlyKey, frame *early) {
	x := e.ahead.early[k]
	if x != nil && x.r != frame.r { // the connection was replaced
		e.drop(k, x)
		x = nil
	}
	if x == nil {
		e.ahead.early[k] = frame
		return
	}
	x.frames += frame.frames
	x.bytes += frame.bytes
	x.largest = max(x.largest, frame.largest)
	last := len(x.parts) - 1
	if frame.bytes > smallPart || frame.bytes > cap(x.parts[last])-len(x.parts[last]) && !e.widen(k.from, x, frame.bytes) {
		x.parts = append(x.parts, frame.parts...)
		x.cost += frame.cost - earlyCost
		e.hold(k.from, -earlyCost)
		return
	}
	last = len(x.parts) - 1
	x.parts[last] = append(x.parts[last], frame.parts[0]...)
	e.hold(k.from, -frame.cost)
}

// widen gives x room for a small frame and some that may follow; false: there is
// none. e.mu is held.
func (e *Engine) widen(peer wire.UUID, x *early, size int) bool {
	n := max(size, min(x.bytes, smallPart))
	if !e.reserve(peer, n+partCost) {
		return false
	}
	x.cost += n + partCost
	x.parts = append(x.parts, make([]byte, 0, n))
	return true
}

// drop forgets what came early. e.mu is held.
func (e *Engine) drop(k earlyKey, x *early) {
	delete(e.ahead.early, k)
	e.stale(x.frames, x.bytes-x.frames*transport.HeaderSize)
	e.hold(k.from, -x.cost)
	e.free(x)
}

// free gives the memory of x back.
func (e *Engine) free(x *early) {
	for _, p := range x.parts {
		if cap(p) > smallPart {
			e.cfg.Pool.Put(p)
		}
	}
	x.parts = nil
}

func (e *Engine) stale(frames, bytes int) {
	e.cfg.Stats.StaleFrames.Add(uint64(frames))
	e.cfg.Stats.StaleBytes.Add(uint64(bytes))
}

// forgetEarly forgets what came early on a connection that is closed.
func (e *Engine) forgetEarly(r *receiver) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ahead.held[r.peer] == 0 {
		return
	}
	for k, x := range e.ahead.early {
		if x.r == r {
			e.drop(k, x)
		}
	}
}

// deliverEager processes or keeps the eager frame whose header was read.
func (r *receiver) deliverEager(h transport.Header) error {
	e, epoch := r.e, named(h.Stream)
	op, keep := e.findEager(r, h.Tag, epoch, nil)
	if !keep {
		return r.deliver(op, h, false)
	}
	x, err := r.readEarly(h)
	if err != nil {
		return err
	}
	// It may have been launched meanwhile.
	if op, keep = e.findEager(r, h.Tag, epoch, x); keep {
		return nil
	}
	return e.process(op, x)
}

// readEarly reads a frame into memory that was reserved before it was taken, and
// that is taken as the bytes come.
func (r *receiver) readEarly(h transport.Header) (*early, error) {
	e := r.e
	size := transport.HeaderSize + h.Payload
	x := &early{r: r, frames: 1, largest: h.Payload}
	fail := func(err error) (*early, error) {
		e.mu.Lock()
		e.hold(r.peer, -x.cost)
		e.mu.Unlock()
		e.free(x)
		return nil, err
	}
	for x.bytes < size {
		n := min(size-x.bytes, max(x.bytes, smallPart), largePart)
		cost := n + partCost
		if n > smallPart {
			cost = buf.Size(n) + partCost
		}
		if x.bytes == 0 {
			cost += earlyCost
		}
		e.mu.Lock()
		ok := size <= maxEarly && e.reserve(r.peer, cost)
		e.mu.Unlock()
		if !ok {
			return fail(errs.New(errs.Protocol, opName, errors.New("more data arrived for operations that are not launched yet than may be kept")).
				WithPhase("data phase").WithPeer(r.peer.String()))
		}
		x.cost += cost
		var p []byte
		if n > smallPart {
			p = e.cfg.Pool.Get(n)
		} else {
			p = make([]byte, n)
		}
		x.parts = append(x.parts, p)
		if x.bytes == 0 {
			h.Put((*[transport.HeaderSize]byte)(p))
			p = p[transport.HeaderSize:]
		}
		for len(p) > 0 {
			n, err := r.rd.Payload(p)
			if err != nil {
				return fail(err)
			}
			p = p[n:]
		}
		x.bytes += n
	}
	return x, nil
}

// replay processes what came before the launch, on the goroutine that launches
// unless it would have to wait for a device. The connection's reader waits if
// more of it comes.
func (e *Engine) replay(op *Op, x *early) {
	if op.dev != nil {
		e.begin("reader", x.r.peer, func() { e.replayHere(op, x) }, x.r.close)
		return
	}
	defer e.wg.Done()
	e.replayHere(op, x)
}

func (e *Engine) replayHere(op *Op, x *early) {
	defer func() {
		e.mu.Lock()
		op.eager.replaying = false
		e.started.Broadcast()
		e.mu.Unlock()
	}()
	if err := e.process(op, x); err != nil {
		x.r.close(err)
	}
}

// process gives op, nil if nobody wants them, the frames of x, and their memory
// back.
func (e *Engine) process(op sink, x *early) (err error) {
	q := &receiver{e: e, peer: x.r.peer, number: x.r.number, conn: still{}}
	q.rd = transport.NewReader(&kept{parts: x.parts}, 0)
	if op != nil {
		q.scratch = e.cfg.Pool.Get(min(x.largest, e.cfg.FrameBytes) + 8)
	}
	frames, bytes := 0, 0
	for err == nil && op != nil && frames < x.frames && op.beginReceive(q) {
		var h transport.Header
		if h, err = q.rd.Next(); err == nil {
			err = q.receive(op, false)
		}
		op.endReceive(q)
		if err != nil {
			q.blame(op, err)
		}
		frames++
		bytes += h.Payload
	}
	e.cfg.Stats.RxFrames.Add(uint64(frames))
	e.cfg.Stats.RxBytes.Add(uint64(bytes))
	e.stale(x.frames-frames, x.bytes-x.frames*transport.HeaderSize-bytes)
	q.release()
	e.free(x)
	e.mu.Lock()
	e.hold(x.r.peer, -x.cost)
	e.mu.Unlock()
	q.flush()
	if errors.Is(err, errAborted) {
		return nil
	}
	return err
}

// kept is what frames that were kept are read from.
type kept struct {
	parts [][]byte
	read  int // of the first of them
}

func (m *kept) Read(p []byte) (int, error) {
	for len(m.parts) > 0 && m.read == len(m.parts[0]) {
		m.parts, m.read = m.parts[1:], 0
	}
	if len(m.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, m.parts[0][m.read:])
	m.read += n
	return n, nil
}

// still is the connection of a reader that reads memory: nothing interrupts it.
type still struct{ net.Conn }

func (still) SetReadDeadline(time.Time) error { return nil }
