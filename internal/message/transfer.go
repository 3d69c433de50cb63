package message

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Transfer is one message at one end: the source of its data, or the sink.
type Transfer struct {
	e     *Engine
	sends bool
	any   bool
	tag   uint64
	began time.Time
	done  chan struct{} // closed when it is over and buf is the caller's
	stop  atomic.Bool

	// Guarded by Engine.mu.
	peer    wire.UUID // zero: any, and none has offered
	number  uint64    // 0: of a receive that has no offer
	buf     []byte
	ahead   int // bytes that travelled with the offer
	over    bool
	settled bool
	err     error
	got     int            // bytes received
	reader  *link.Receiver // reads into buf
	out     outgoing
}

// outgoing is how the data of a message leaves.
type outgoing struct {
	on       *link.Sender // set before attached
	attached bool
	taken    bool // the receiver wants it
	pos      int  // bytes in frames so far
	refs     int  // frames in batches that refer to buf
	short    bool // something was not sent
}

var (
	_ link.Source = (*Transfer)(nil)
	_ link.Sink   = (*Transfer)(nil)
)

func (t *Transfer) op() string {
	if t.sends {
		return "send"
	}
	return "receive"
}

func (t *Transfer) name() name { return name{t.peer, t.number} }

func (t *Transfer) wants(o *offer) bool { return t.tag == o.tag && (t.any || t.peer == o.peer) }

// Done is closed when the transfer is over and the buffer is the caller's.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Result returns the other end and why the transfer failed. Done is closed.
func (t *Transfer) Result() (peer wire.UUID, err error) {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	return t.peer, t.err
}

// Cancel gives the transfer up: the other end hears of it. Done follows.
func (t *Transfer) Cancel(cause error) {
	e := t.e
	e.mu.Lock()
	defer e.unlock()
	if t.over {
		return
	}
	if t.number > 0 {
		what := byte(refusedGone)
		if t.sends {
			what = withdrawn
		}
		e.to(t.peer).post(t.tag, t.number, plain(what), nil)
	}
	e.end(t, errs.New(errs.Canceled, t.op(), cause))
}

func (t *Transfer) mismatch(theirs uint64) error {
	what := fmt.Errorf("the peer receives %d bytes, %d are sent", theirs, len(t.buf))
	if !t.sends {
		what = fmt.Errorf("the peer sends %d bytes, %d are expected", theirs, len(t.buf))
	}
	return errs.New(errs.Mismatch, t.op(), what).WithPhase(fmt.Sprintf("tag %d", t.tag)).WithPeer(t.peer.String()).
		WithHint("let both ends name the same number of bytes")
}

// Stopped, Fail and Settle are of both ends.
func (t *Transfer) Stopped() bool { return t.stop.Load() }

func (t *Transfer) Fail(err error) {
	wrapped := lost(t.peerNow(), err)
	wrapped.Op = t.op()
	t.e.fail(t, wrapped)
}

func (t *Transfer) peerNow() wire.UUID {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	return t.peer
}

func (t *Transfer) Settle(bool) {
	t.e.mu.Lock()
	defer t.e.unlock()
	t.e.settle(t)
}

// NextFrame takes the next part of the data.
func (t *Transfer) NextFrame(f *link.Frame, batch int) bool {
	e := t.e
	e.mu.Lock()
	defer e.mu.Unlock()
	left := len(t.buf) - t.out.pos
	if t.over || left == 0 || batch >= e.frame {
		return false
	}
	n := min(left, e.frame)
	transport.Header{Payload: n, Tag: t.tag, Stream: mark | dataBit | t.number}.Put((*[transport.HeaderSize]byte)(f.Head))
	f.Payload = t.buf[t.out.pos : t.out.pos+n]
	f.Prompt = len(t.buf) <= link.PromptTotal
	t.out.pos += n
	t.out.refs++
	return true
}

func (t *Transfer) PrepareFrame(*link.Frame) {}
func (t *Transfer) SentFrame(*link.Frame)    {}

func (t *Transfer) ReleaseFrame(_ *link.Frame, whole bool) (idle, over bool) {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.out.refs--
	t.out.short = t.out.short || !whole
	if t.out.refs > 0 {
		return false, false
	}
	return true, t.out.pos == len(t.buf) && !t.out.short
}

func (t *Transfer) Opener() (link.Opener, bool) { return link.Opener{}, false }
func (t *Transfer) RouseFastest()               {}

// BeginReceive lets one reader at a time into the buffer.
func (t *Transfer) BeginReceive(r *link.Receiver) bool {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	if t.over || t.reader != nil {
		return false
	}
	t.reader = r
	return true
}

// ReceiveFrame reads the next part of the data.
func (t *Transfer) ReceiveFrame(r *link.Receiver, _ transport.Header) error {
	n := r.Left()
	if n == 0 || n > len(t.buf)-t.got {
		return broken(r, "data of %d bytes where %d of %d have come", n, t.got, len(t.buf))
	}
	for n > 0 {
		if t.Stopped() {
			return link.ErrStopped
		}
		part := min(n, partBytes)
		if err := r.Fill(t, t.buf[t.got:t.got+part]); err != nil {
			return err
		}
		t.got, n = t.got+part, n-part
	}
	return nil
}

// partBytes is how much is read between two looks at an abort.
const partBytes = 256 << 10

func (t *Transfer) EndReceive(r *link.Receiver) {
	e := t.e
	e.mu.Lock()
	defer e.unlock()
	t.reader = nil
	if t.over {
		r.Resume()
		e.settle(t)
		return
	}
	if t.got == len(t.buf) {
		e.to(t.peer).post(t.tag, t.number, plain(done), nil)
		e.end(t, nil)
	}
}

// Received is asked when a connection has failed; what is complete is over.
func (t *Transfer) Received() bool { return t.stop.Load() }

// broken is the error of a frame that is not as it should be.
func broken(r *link.Receiver, format string, args ...any) error {
	return errs.New(errs.Protocol, "message", fmt.Errorf(format, args...)).WithPhase("data phase").WithPeer(r.Peer().String())
}

// courier is what goes to one member beside the data of messages: frames of the engine's
// own memory, in order. It is a source as long as it has any.
type courier struct {
	e    *Engine
	peer wire.UUID

	// Guarded by Engine.mu.
	on       *link.Sender
	attached bool
	queue    []letter
	refs     int
	open     allowance // messages that were offered and not answered
}

type letter struct {
	tag, number uint64
	head        []byte
	body        []byte
}

// to returns the courier to a member. e.mu is held.
func (e *Engine) to(peer wire.UUID) *courier {
	c := e.links[peer]
	if c == nil {
		c = &courier{e: e, peer: peer}
		e.links[peer] = c
	}
	return c
}

// post sends a frame. Engine.mu is held.
func (c *courier) post(tag, number uint64, head, body []byte) {
	c.queue = append(c.queue, letter{tag, number, head, body})
	if !slices.Contains(c.e.later.kicks, c) {
		c.e.later.kicks = append(c.e.later.kicks, c)
	}
}

// push has a connection send what is queued.
func (c *courier) push() {
	e := c.e
	pool := e.hub.Senders(c.peer)
	e.mu.Lock()
	if len(c.queue) == 0 || e.links[c.peer] != c {
		e.mu.Unlock()
		return
	}
	if len(pool) == 0 {
		c.queue = nil
		e.spoken()
		e.leave(c.peer, errNone)
		e.unlock()
		return
	}
	attach := !c.attached
	if attach {
		c.attached, c.on = true, pool[0]
	}
	on := c.on
	e.mu.Unlock()
	if attach {
		on.Attach(c)
	}
	on.Kick(true, true)
	if on.Broken() {
		router{e}.SenderLost(on, errNone)
	}
}

func (c *courier) Stopped() bool { return false }
func (c *courier) Settle(bool)   {}

func (c *courier) Fail(err error) {
	heard := c.e.hears(c.peer)
	c.e.mu.Lock()
	defer c.e.unlock()
	c.queue = nil
	c.e.spoken()
	c.e.part(c.peer, heard, err)
}

func (c *courier) NextFrame(f *link.Frame, _ int) bool {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if len(c.queue) == 0 {
		return false
	}
	l := c.queue[0]
	c.queue[0] = letter{}
	c.queue = c.queue[1:]
	transport.Header{Payload: len(l.head) + len(l.body), Tag: l.tag, Stream: mark | l.number}.Put((*[transport.HeaderSize]byte)(f.Head))
	f.Head = append(f.Head, l.head...)
	f.Payload, f.Prompt = l.body, true
	c.refs++
	return true
}

func (c *courier) PrepareFrame(*link.Frame) {}
func (c *courier) SentFrame(*link.Frame)    {}

func (c *courier) ReleaseFrame(*link.Frame, bool) (idle, over bool) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.refs--
	if c.refs > 0 || len(c.queue) > 0 {
		return c.refs == 0, false
	}
	c.attached = false
	c.e.spoken()
	return true, true
}

func (c *courier) Opener() (link.Opener, bool) { return link.Opener{}, false }
func (c *courier) RouseFastest()               {}
