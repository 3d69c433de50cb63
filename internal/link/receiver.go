package link

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Receiver is one accepted connection and its reader goroutine.
type Receiver struct {
	h    *Hub
	peer wire.UUID
	ident
	conn   net.Conn
	since  time.Time
	closed atomic.Bool
	mute   atomic.Bool                      // the peer ended it before its first byte; set before closed
	got    atomic.Uint64                    // bytes of frames that were delivered
	thread atomic.Pointer[platform.Thread]  // of a pinned reader that runs
	former bool                             // the peer was a neighbour; guarded by Hub.mu
	place  struct{ asked, until time.Time } // heardFor; guarded by Hub.mu
	ended  sync.Once                        // abandon

	mu    invariants.Mutex
	cause error // why it has ended, or was closed by us

	// Owned by the reader goroutine.
	rd      *transport.Reader
	scratch []byte
	alarm   *time.Timer // ends a wait of the router
	due     *Sender     // has something to send that it does not know of yet
	tells   tells

	heard heard // owned by the survey's goroutine
}

// drainBytes is how much a connection that has no use yet reads at a time.
const drainBytes = 16 << 10

// wakeBytes is for how many bytes of a frame a reader waits on a connection from a distant peer, and
// wakeTime about for how long: what has come is also told, and passed on.
const (
	wakeBytes = 6 * segment
	wakeTime  = 3 * tellEvery / 4
)

// past is a deadline that wakes what waits on a connection.
var past = time.Unix(1, 0)

// ErrStopped: the operation whose frame is being read ended meanwhile.
var ErrStopped = errors.New("operation aborted")

func newReceiver(h *Hub, peer wire.UUID, number uint32, conn net.Conn) *Receiver {
	r := &Receiver{h: h, peer: peer, ident: ident{number: number}, conn: conn, since: time.Now(), rd: transport.NewReader(transport.Source(conn), headerBuffer)}
	r.rd.BeforeRead = r.flush
	if Distant(conn) {
		r.rd.SetPatience(wakeBytes, wakeTime)
	}
	r.mu.Rank(RankConn, "Receiver.mu")
	return r
}

// Peer returns the peer that frames come from.
func (r *Receiver) Peer() wire.UUID { return r.peer }

// Number is the place of the connection in its pool.
func (r *Receiver) Number() uint32 { return r.number }

// ID names the connection among all that the hub has had; later ones have higher numbers.
func (r *Receiver) ID() uint64 { return r.id }

// Closed reports whether the connection has ended.
func (r *Receiver) Closed() bool { return r.closed.Load() }

// Expect returns those of a pool that may bring something, and whether one of them has
// ended, of which something may be missing. A connection that the peer has ended before its
// first byte has brought all that was sent on it: a round that begins while a pool grows
// leaves such ones behind. If there are only such ones the peer is lost. The pool is not
// changed, and from may be it.
func Expect(pool []*Receiver) (from []*Receiver, lost bool) {
	if from = pool; slices.ContainsFunc(pool, (*Receiver).isMute) {
		from = slices.DeleteFunc(slices.Clone(pool), (*Receiver).isMute)
	}
	return slices.Clip(from), len(from) < min(1, len(pool)) || slices.ContainsFunc(from, (*Receiver).Closed)
}

// Spared returns the rest of the pool of r, which has ended, if what has come over that is
// all that was sent for those who run, and nil if something may be missing.
func (h *Hub) Spared(r *Receiver) []*Receiver {
	rest, lost := Expect(h.Receivers(r.peer))
	if lost || !r.isMute() {
		return nil
	}
	return rest
}

// why returns why the connection has ended; nil: it has not, or is about to.
func (r *Receiver) why() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cause
}

func (r *Receiver) isMute() bool { return r.mute.Load() }

// flush tells the sender about what was processed since the last read that
// could wait, so that many small frames cause one write.
func (r *Receiver) flush() {
	if s := r.due; s != nil {
		r.due = nil
		s.Kick(true, false)
	}
	if r.tells.on {
		r.tell()
	}
}

// Notify kicks s before r waits for the next bytes, or for another sender.
func (r *Receiver) Notify(s *Sender) {
	if r.due != s {
		r.flush()
		r.due = s
	}
}

// Close ends the connection with a reason of our own; the reader reports it.
func (r *Receiver) Close(cause error) {
	r.mu.Lock()
	if r.cause == nil {
		r.cause = cause
	}
	r.mu.Unlock()
	r.closed.Store(true)
	r.conn.Close()
	r.h.mu.Lock()
	r.h.changed.Broadcast()
	r.h.mu.Unlock()
	r.h.router.Wake()
}

func (r *Receiver) run() {
	r.h.pin(readerThread, &r.thread)
	err := r.loop()
	r.flush()
	r.abandon(err)
}

// abandon ends the connection because of err, unless Close gave another reason.
// A panic on the way, in a listener or a logger, brings its reader here again.
func (r *Receiver) abandon(err error) { r.ended.Do(func() { r.end(err) }) }

func (r *Receiver) end(err error) {
	r.mu.Lock()
	if r.cause == nil {
		r.cause = ending(err)
	}
	err = r.cause
	r.mu.Unlock()
	r.closed.Store(true)
	r.conn.Close()
	r.release()
	r.h.forgetEarly(r)
	r.h.lost(r.peer, r.number, false, err, func(cause error) { r.h.router.ReceiverLost(r, cause) })
}

// release gives the reader's memory back, which it no longer has then.
func (r *Receiver) release() {
	b := r.scratch
	r.scratch = nil
	r.h.cfg.Pool.Put(b)
}

func (r *Receiver) loop() error {
	for first := true; ; first = false {
		h, err := r.rd.Next()
		if err != nil {
			r.mute.Store(first && err == io.EOF)
			return err
		}
		if h.Stream == pingStream {
			err = r.answer(h.Tag)
		} else {
			err = r.dispatch(h)
		}
		if err != nil {
			return err
		}
	}
}

// dispatch does with the frame whose header was read what the router says.
func (r *Receiver) dispatch(h transport.Header) error {
	x, verdict, err := r.h.router.Route(r, h, nil)
	switch {
	case err != nil:
		return err
	case verdict == Keep:
		return r.keep(h)
	case verdict == Deliver && x.BeginReceive(r):
		return r.deliver(x, h)
	}
	return r.drain()
}

// deliver gives the frame whose header was read to x, which has begun to receive.
func (r *Receiver) deliver(x Sink, h transport.Header) error {
	r.makeRoom(h.Payload)
	err := r.receive(x, h)
	x.EndReceive(r)
	switch {
	case err == nil:
		r.h.cfg.Stats.RxFrames.Add(1)
		r.h.cfg.Stats.RxBytes.Add(uint64(h.Payload))
	case err == ErrStopped:
		return r.drain()
	default:
		r.blame(x, err)
		return err
	}
	return nil
}

// makeRoom sees to it that Scratch is what it says for a frame of so many bytes of payload. Only frames
// that are of use need memory, and no more than what we send at most: a peer has many connections, and
// over most of them go small frames or none.
func (r *Receiver) makeRoom(payload int) {
	most := r.h.cfg.FrameBytes + ScratchExtra
	need := min(max(payload, MinFrameBytes)+ScratchExtra, most)
	if need <= len(r.scratch) {
		return
	}
	need = min(max(need, 2*len(r.scratch)), most) // frames that grow little by little do not cost one each
	r.release()
	b := r.h.cfg.Pool.Get(need)
	r.scratch = b[:cap(b)]
}

// blame fails x with an error that was found here, before the connection is
// closed and others, who only see that, are faster to say why.
func (r *Receiver) blame(x Sink, err error) {
	var e *errs.Error
	if errors.As(err, &e) && !x.Received() {
		x.Fail(err)
	}
}

// receive processes a frame; a panic of a kernel or a quantizer fails the operation.
func (r *Receiver) receive(x Sink, h transport.Header) (err error) {
	defer errs.Catch(OpName, func(p *errs.Error) { err = r.h.Caught(p, r.peer) })
	return x.ReceiveFrame(r, h)
}

// drain reads the rest of the current frame and forgets it.
func (r *Receiver) drain() error {
	r.h.cfg.Stats.StaleFrames.Add(1)
	r.h.cfg.Stats.StaleBytes.Add(uint64(r.rd.Left()))
	into := r.scratch
	if into == nil {
		into = r.h.cfg.Pool.Get(min(r.rd.Left(), drainBytes))
		defer r.h.cfg.Pool.Put(into)
	}
	for r.rd.Left() > 0 {
		if _, err := r.rd.Payload(into[:min(r.rd.Left(), len(into))]); err != nil {
			return err
		}
	}
	return nil
}

// Left returns how many bytes of the current frame's payload were not read yet. For
// sinks, inside ReceiveFrame.
func (r *Receiver) Left() int { return r.rd.Left() }

// Scratch returns memory of the reader, for sinks inside ReceiveFrame: it is the next frame's when that
// returns. It has ScratchExtra bytes beside the frame's payload, of which MinFrameBytes count at least and
// Config.FrameBytes at most.
func (r *Receiver) Scratch() []byte { return r.scratch }

// Fill reads len(p) payload bytes for x, at most Left. It returns ErrStopped if x was
// stopped before they had come.
func (r *Receiver) Fill(x Ender, p []byte) error {
	for len(p) > 0 {
		n, err := r.rd.Payload(p)
		if err != nil {
			if transport.IsTimeout(err) && x.Stopped() {
				return ErrStopped
			}
			return err
		}
		r.got.Add(uint64(n))
		p = p[n:]
	}
	return nil
}

// Interrupt ends the read of a stopped sink, from any goroutine. r is inside a frame of
// the sink, whose EndReceive calls Resume: one lock of the sink orders the two.
func (r *Receiver) Interrupt() { r.conn.SetReadDeadline(past) }

// Resume makes r read as before Interrupt.
func (r *Receiver) Resume() { r.conn.SetReadDeadline(time.Time{}) }

// SetAlarm has Router.Wake called after d, once. For Router.Route, on r's goroutine.
func (r *Receiver) SetAlarm(d time.Duration) {
	if r.alarm == nil {
		r.alarm = time.AfterFunc(d, r.h.router.Wake)
		return
	}
	r.alarm.Reset(d)
}

// StopAlarm takes SetAlarm back.
func (r *Receiver) StopAlarm() { r.alarm.Stop() }
