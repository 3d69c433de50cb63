package reduce

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// receiver is one accepted connection and its reader goroutine.
type receiver struct {
	e      *Engine
	peer   wire.UUID
	number uint32
	conn   net.Conn
	since  time.Time
	closed atomic.Bool
	thread atomic.Pointer[platform.Thread] // of a pinned reader that runs
	former bool                            // the peer was a neighbour; guarded by Engine.mu
	ended  sync.Once                       // abandon

	mu    invariants.Mutex
	cause error // why we closed it ourselves

	// Owned by the reader goroutine.
	rd      *transport.Reader
	scratch []byte
	alarm   *time.Timer // ends the wait for a launch
	due     *sender     // has something to send that it does not know of yet
}

// drainBytes is how much a connection that has no use yet reads at a time.
const drainBytes = 16 << 10

// past wakes whatever waits on a connection.
var past = time.Unix(1, 0)

// errAborted: the operation whose frame is being read ended meanwhile.
var errAborted = errors.New("operation aborted")

func newReceiver(e *Engine, peer wire.UUID, number uint32, conn net.Conn) *receiver {
	r := &receiver{e: e, peer: peer, number: number, conn: conn, since: time.Now(), rd: transport.NewReader(transport.Source(conn), headerBuffer)}
	r.rd.BeforeRead = r.flush
	r.mu.Rank(rankConn, "receiver.mu")
	return r
}

// flush tells the sender about what was processed since the last read that
// could wait, so that many small frames cause one write.
func (r *receiver) flush() {
	if s := r.due; s != nil {
		r.due = nil
		s.kick(true, false)
	}
}

func (r *receiver) notify(s *sender) {
	if r.due != s {
		r.flush()
		r.due = s
	}
}

// close ends the connection with a reason of our own; the reader reports it.
func (r *receiver) close(cause error) {
	r.mu.Lock()
	if r.cause == nil {
		r.cause = cause
	}
	r.mu.Unlock()
	r.closed.Store(true)
	r.conn.Close()
	r.e.mu.Lock()
	r.e.started.Broadcast()
	r.e.mu.Unlock()
}

func (r *receiver) run() {
	r.e.pin(readerThread, &r.thread)
	err := r.loop()
	r.flush()
	r.abandon(err)
}

// abandon ends the connection because of err, unless close gave another reason.
// A panic on the way, in a listener or a logger, brings its reader here again.
func (r *receiver) abandon(err error) { r.ended.Do(func() { r.end(err) }) }

func (r *receiver) end(err error) {
	r.closed.Store(true)
	r.conn.Close()
	r.release()
	r.e.forgetEarly(r)
	r.mu.Lock()
	if r.cause != nil {
		err = r.cause
	}
	r.mu.Unlock()
	r.e.lostReceiver(r, err)
}

// release gives the reader's memory back, which it has no more then.
func (r *receiver) release() {
	b := r.scratch
	r.scratch = nil
	r.e.cfg.Pool.Put(b)
}

func (r *receiver) loop() error {
	for {
		h, err := r.rd.Next()
		if err != nil {
			return err
		}
		if h.Stream == pingStream {
			if err := r.answer(h.Tag); err != nil {
				return err
			}
			continue
		}
		if h.Stream&(1<<63|stripeBit|eagerBit) == eagerBit {
			if err := r.deliverEager(h); err != nil {
				return err
			}
			continue
		}
		striped := h.Stream&(1<<63|stripeBit) == stripeBit
		if striped {
			h.Stream &^= stripeBit
		}
		x, late := r.e.find(r, h.Tag, h.Stream, striped)
		if late {
			return errs.New(errs.Protocol, opName, fmt.Errorf("a frame of tag %d, sequence %d came, but that operation never started", h.Tag, h.Stream)).
				WithPhase("data phase").WithPeer(r.peer.String())
		}
		if err := r.deliver(x, h, striped); err != nil {
			return err
		}
	}
}

// deliver gives the frame whose header was read to x; nil: to nobody.
func (r *receiver) deliver(x sink, h transport.Header, striped bool) error {
	if x == nil || !x.beginReceive(r) {
		return r.drain()
	}
	if r.scratch == nil {
		// Only now: whoever connects may never send anything of use.
		r.scratch = r.e.cfg.Pool.Get(r.e.cfg.FrameBytes + 8)
	}
	err := r.receive(x, striped)
	x.endReceive(r)
	switch {
	case err == nil:
		r.e.cfg.Stats.RxFrames.Add(1)
		r.e.cfg.Stats.RxBytes.Add(uint64(h.Payload))
	case err == errAborted:
		return r.drain()
	default:
		r.blame(x, err)
		return err
	}
	return nil
}

// blame fails x with an error that was found here, before the connection is
// closed and others, who only see that, are faster to say why.
func (r *receiver) blame(x sink, err error) {
	var e *errs.Error
	if errors.As(err, &e) && !x.received() {
		x.fail(connError(r.peer, err))
	}
}

// receive processes a frame; a panic of a kernel or a quantizer fails the operation.
func (r *receiver) receive(x sink, striped bool) (err error) {
	defer errs.Catch(opName, func(p *errs.Error) { err = r.e.caught(p, r.peer) })
	return x.receiveFrame(r, striped)
}

// drain reads the rest of the current frame and forgets it.
func (r *receiver) drain() error {
	r.e.cfg.Stats.StaleFrames.Add(1)
	r.e.cfg.Stats.StaleBytes.Add(uint64(r.rd.Left()))
	into := r.scratch
	if into == nil {
		into = r.e.cfg.Pool.Get(min(r.rd.Left(), drainBytes))
		defer r.e.cfg.Pool.Put(into)
	}
	for r.rd.Left() > 0 {
		if _, err := r.rd.Payload(into[:min(r.rd.Left(), len(into))]); err != nil {
			return err
		}
	}
	return nil
}

// fill reads len(p) payload bytes for x, or as many as come before x has failed.
func (r *receiver) fill(x sink, p []byte) error {
	for len(p) > 0 {
		n, err := r.rd.Payload(p)
		if err != nil {
			if transport.IsTimeout(err) && x.stopped() {
				return errAborted
			}
			return err
		}
		p = p[n:]
	}
	return nil
}
