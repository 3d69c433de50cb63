package message

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/message/fsm"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Transfer is one message at one end: the source of its data, or the sink.
type Transfer struct {
	fsm.Transfer // guarded by Engine.mu

	e     *Engine
	began time.Time
	done  chan struct{} // closed when it is over and the buffer is the caller's
	stop  atomic.Bool
	read  int // bytes of the part that is being read

	// Guarded by Engine.mu.
	reader   *link.Receiver // reads into the buffer
	on       *link.Sender   // set before attached
	attached bool
}

var (
	_ link.Source = (*Transfer)(nil)
	_ link.Sink   = (*Transfer)(nil)
)

func (e *Engine) newTransfer(tag uint64, buf []byte) *Transfer {
	t := &Transfer{Transfer: fsm.Transfer{Tag: tag, Buf: buf}, e: e, began: time.Now(), done: make(chan struct{})}
	t.Owner = t
	return t
}

// Done is closed when the transfer is over and the buffer is the caller's.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Result returns the other end and why the transfer failed. Done is closed.
func (t *Transfer) Result() (peer wire.UUID, err error) {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	return t.Peer(), t.Err()
}

// Cancel gives the transfer up: the other end hears of it. Done follows.
func (t *Transfer) Cancel(cause error) {
	t.e.mu.Lock()
	defer t.e.unlock()
	t.e.m.Cancel(&t.Transfer, cause)
}

// halt stops what is over, and reports whether it is to be taken off its connection.
// Engine.mu is held.
func (t *Transfer) halt() (detach bool) {
	t.stop.Store(true)
	if t.Err() == nil {
		return false
	}
	if t.reader != nil {
		t.reader.Interrupt()
	}
	return t.attached
}

// stream has the connection that took the offer send the data.
func (e *Engine) stream(t *Transfer) {
	peer := t.peer()
	pool := e.hub.Senders(peer)
	e.mu.Lock()
	goes := len(pool) > 0 && fsm.Conn(pool[0].ID()) == e.m.Out(peer)
	if goes {
		t.on, t.attached = pool[0], true
	}
	e.mu.Unlock()
	if goes {
		t.on.Attach(t) // unless it has failed meanwhile
		t.on.Kick(false, true)
		if !t.on.Broken() {
			return
		}
	}
	t.Fail(errNone)
}

// peer returns the other end.
func (t *Transfer) peer() wire.UUID {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	return t.Peer()
}

// Stopped, Fail and Settle are of both ends.
func (t *Transfer) Stopped() bool { return t.stop.Load() }

func (t *Transfer) Fail(err error) {
	t.e.mu.Lock()
	defer t.e.unlock()
	t.e.m.Fail(&t.Transfer, err)
}

func (t *Transfer) Settle(bool) {
	t.e.mu.Lock()
	defer t.e.unlock()
	t.e.m.Settle(&t.Transfer)
}

// NextFrame takes the next part of the data.
func (t *Transfer) NextFrame(f *link.Frame, batch int) bool {
	e := t.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if batch >= e.frame {
		return false
	}
	part, ok := e.m.NextPart(&t.Transfer, e.frame)
	if !ok {
		return false
	}
	transport.Header{Payload: len(part), Tag: t.Tag, Stream: mark | dataBit | t.Number()}.Put((*[transport.HeaderSize]byte)(f.Head))
	f.Payload, f.Prompt = part, len(t.Buf) <= link.PromptTotal
	return true
}

func (t *Transfer) PrepareFrame(*link.Frame) {}
func (t *Transfer) SentFrame(*link.Frame)    {}

func (t *Transfer) ReleaseFrame(_ *link.Frame, whole bool) (idle, over bool) {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	return t.e.m.Released(&t.Transfer, whole)
}

func (t *Transfer) Opener() (link.Opener, bool) { return link.Opener{}, false }
func (t *Transfer) RouseBest()                  {}

// BeginReceive lets one reader at a time into the buffer.
func (t *Transfer) BeginReceive(r *link.Receiver) bool {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	if !t.e.m.BeginPart(&t.Transfer) {
		return false
	}
	t.reader, t.read = r, 0
	return true
}

// ReceiveFrame reads the next part of the data.
func (t *Transfer) ReceiveFrame(r *link.Receiver, _ transport.Header) error {
	n, room := r.Left(), t.Room()
	if n == 0 || n > len(room) {
		return broken(r, "data of %d bytes where %d of %d are to come", n, len(room), len(t.Buf))
	}
	for t.read < n {
		if t.Stopped() {
			return link.ErrStopped
		}
		part := min(n-t.read, partBytes)
		if err := r.Fill(t, room[t.read:t.read+part]); err != nil {
			return err
		}
		t.read += part
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
	if t.State() == fsm.Over {
		r.Resume()
	}
	e.m.EndPart(&t.Transfer, t.read)
}

// Received is asked when a connection has failed; what is complete is over.
func (t *Transfer) Received() bool { return t.stop.Load() }

// broken is the error of a frame that is not as it should be.
func broken(r *link.Receiver, format string, args ...any) error {
	return errs.New(errs.Protocol, "message", fmt.Errorf(format, args...)).WithPhase("data phase").WithPeer(r.Peer().String())
}

// courier brings the words of the machine to one member: frames of its own memory, in
// order. It is a source as long as there are any.
type courier struct {
	e    *Engine
	peer wire.UUID
	over atomic.Bool // another one takes its place

	// Guarded by Engine.mu.
	on       *link.Sender // set while it is attached
	attached bool
	refs     int
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

// speak has a connection send what is to be said to a member.
func (e *Engine) speak(peer wire.UUID) {
	pool := e.hub.Senders(peer)
	e.mu.Lock()
	if !e.m.Says(peer) {
		e.dismiss(peer)
		return
	}
	if len(pool) == 0 {
		e.m.NoWay(e.now(), peer, errNone)
		e.unlock()
		return
	}
	c := e.to(peer)
	attach := !c.attached
	if attach {
		c.attached, c.on = true, pool[0]
		e.m.Way(e.now(), peer, fsm.Conn(pool[0].ID()))
	}
	on := c.on
	e.unlock()
	if attach {
		on.Attach(c)
	}
	on.Kick(true, true)
	if on.Broken() {
		router{e}.SenderLost(on, errNone)
	}
}

// dismiss takes a courier off its connection whose words were all taken back. It lets go
// of e.mu, which is held.
func (e *Engine) dismiss(peer wire.UUID) {
	c := e.links[peer]
	if c == nil || !c.attached || c.refs > 0 {
		e.mu.Unlock()
		return
	}
	delete(e.links, peer)
	c.over.Store(true) // it may not be attached yet
	e.mu.Unlock()
	c.on.Leave(c)
}

func (c *courier) Stopped() bool { return c.over.Load() }
func (c *courier) Settle(bool)   {}

func (c *courier) Fail(err error) {
	e := c.e
	e.mu.Lock()
	defer e.unlock()
	c.over.Store(true)
	if e.links[c.peer] == c {
		delete(e.links, c.peer)
		e.m.NoWay(e.now(), c.peer, err)
	}
}

func (c *courier) NextFrame(f *link.Frame, _ int) bool {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.links[c.peer] != c {
		return false
	}
	w, ok := e.m.Next(c.peer, fsm.Conn(c.on.ID()))
	if !ok {
		return false
	}
	f.Head = appendHead(f.Head, w)
	transport.Header{Payload: len(f.Head) - transport.HeaderSize + len(w.Data), Tag: w.Tag, Stream: mark | w.Number}.Put((*[transport.HeaderSize]byte)(f.Head))
	f.Payload, f.Prompt = w.Data, true
	c.refs++
	return true
}

func (c *courier) PrepareFrame(*link.Frame) {}
func (c *courier) SentFrame(*link.Frame)    {}

func (c *courier) ReleaseFrame(*link.Frame, bool) (idle, over bool) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	c.refs--
	if c.refs > 0 || e.links[c.peer] == c && e.m.Says(c.peer) {
		return c.refs == 0, false
	}
	c.attached = false
	e.wake()
	return true, true
}

func (c *courier) Opener() (link.Opener, bool) { return link.Opener{}, false }
func (c *courier) RouseBest()                  {}
