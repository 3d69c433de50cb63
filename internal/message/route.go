package message

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Marks of stream numbers (docs/spec/extensions.md, "Messages"). Those of collectives
// have a bit more.
const (
	mark    = uint64(1) << 60
	dataBit = uint64(1) << 61
	numbers = mark - 1
)

// what a frame says.
const (
	together    = 1 // an offer with its data
	wantsTake   = 2 // an offer whose data comes when it is taken
	take        = 3 // the receiver wants the data
	done        = 4 // the receiver has it
	refused     = 5 // the receiver expects another size
	refusedGone = 6 // the receiver has given up
	withdrawn   = 7 // the sender has
)

func plain(what byte) []byte { return []byte{what} }

func sized(what byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{what}, size)
}

const offerBytes = 1 + 8 + 8

func offerHead(what byte, epoch, size uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte{what}, epoch), size)
}

// router answers the questions of the hub about frames with the mark.
type router struct{ *Engine }

var _ link.Router = router{}

func (e router) Wake()                    {}
func (e router) Connected(*link.Receiver) {}

func (e router) SenderLost(s *link.Sender, cause error) {
	heard := e.hears(s.Peer())
	e.mu.Lock()
	defer e.unlock()
	if c := e.links[s.Peer()]; c != nil && c.on == s {
		if len(c.queue) > 0 || c.refs > 0 || e.involves(s.Peer()) {
			e.part(s.Peer(), heard, cause)
		}
		delete(e.links, s.Peer()) // what is left of it in the connection ends by itself
		e.spoken()
	}
}

func (e router) ReceiverLost(r *link.Receiver, cause error) {
	heard := e.hears(r.Peer())
	e.mu.Lock()
	defer e.unlock()
	if _, parts := e.partings[r.Peer()]; parts || e.involves(r.Peer()) {
		e.part(r.Peer(), heard, cause)
	}
}

// involves reports whether a message is under way to or from peer. A receive without an
// offer is not: the peer may connect again. e.mu is held.
func (e *Engine) involves(peer wire.UUID) bool {
	for _, all := range []map[name]*Transfer{e.sends, e.taken} {
		for n := range all {
			if n.peer == peer {
				return true
			}
		}
	}
	return false
}

func (e router) Route(r *link.Receiver, h transport.Header, _ *link.Early) (link.Sink, link.Verdict, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed != nil || h.Stream&link.OpenerBit != 0 || !slices.Contains(e.members, r.Peer()) {
		return nil, link.Drop, nil
	}
	if h.Stream&dataBit == 0 {
		return &desk{e: e.Engine, head: h}, link.Deliver, nil
	}
	if t := e.taken[name{r.Peer(), h.Stream & numbers}]; t != nil {
		return t, link.Deliver, nil
	}
	return nil, link.Drop, nil
}

// desk takes a frame that is not data of the caller's.
type desk struct {
	e    *Engine
	head transport.Header
}

func (d *desk) Stopped() bool                    { return false }
func (d *desk) Fail(error)                       {}
func (d *desk) Settle(bool)                      {}
func (d *desk) BeginReceive(*link.Receiver) bool { return true }
func (d *desk) EndReceive(*link.Receiver)        {}
func (d *desk) Received() bool                   { return true }

func (d *desk) ReceiveFrame(r *link.Receiver, _ transport.Header) error {
	var head [offerBytes]byte
	if r.Left() == 0 {
		return broken(r, "an empty frame")
	}
	if err := r.Fill(d, head[:1]); err != nil {
		return err
	}
	n := name{r.Peer(), d.head.Stream & numbers}
	switch what := head[0]; what {
	case together, wantsTake:
		return d.offered(r, n, head[:])
	case refused:
		if r.Left() != 8 {
			return broken(r, "a refusal of %d bytes", r.Left())
		}
		if err := r.Fill(d, head[:8]); err != nil {
			return err
		}
		return d.answered(r, n, what, binary.BigEndian.Uint64(head[:]))
	case take, done, refusedGone:
		if r.Left() != 0 {
			return broken(r, "%d bytes behind an answer", r.Left())
		}
		return d.answered(r, n, what, 0)
	case withdrawn:
		d.withdraw(n)
		return nil
	default:
		return broken(r, "a frame that says %d", what)
	}
}

// offered reads an offer.
func (d *desk) offered(r *link.Receiver, n name, head []byte) error {
	e := d.e
	if r.Left() < offerBytes-1 {
		return broken(r, "an offer of %d bytes", r.Left())
	}
	if err := r.Fill(d, head[1:]); err != nil {
		return err
	}
	o := &offer{name: n, tag: d.head.Tag, epoch: binary.BigEndian.Uint64(head[1:]), size: binary.BigEndian.Uint64(head[9:])}
	switch with := head[0] == together; {
	case with && (o.size > Together || uint64(r.Left()) != o.size):
		return broken(r, "an offer of %d bytes with %d", o.size, r.Left())
	case !with && r.Left() != 0:
		return broken(r, "%d bytes behind an offer", r.Left())
	case with:
		if !e.admits(o, int(o.size)) {
			return broken(r, "more messages than were received of it")
		}
		o.data = make([]byte, o.size)
		if err := r.Fill(d, o.data); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.unlock()
	if o.epoch != e.epoch && o.epoch != e.next || e.closed != nil {
		return nil // of a round that is over
	}
	a := e.held[n.peer]
	if a.count+1 > MaxOpen || a.bytes+len(o.data) > maxAhead || e.known(n) {
		return broken(r, "more messages than were received of it, or one twice")
	}
	a.count, a.bytes = a.count+1, a.bytes+len(o.data)
	e.held[n.peer] = a
	if o.epoch == e.epoch {
		for i, t := range e.recvs {
			if t.wants(o) {
				e.recvs = slices.Delete(e.recvs, i, i+1)
				e.match(t, o)
				return nil
			}
		}
	}
	e.offers = append(e.offers, o)
	return nil
}

// admits reports whether size bytes of an offer may be kept.
func (e *Engine) admits(o *offer, size int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.held[o.peer].bytes+size <= maxAhead
}

// known reports whether a message of this name was offered and not answered. e.mu is held.
func (e *Engine) known(n name) bool {
	return e.taken[n] != nil || slices.ContainsFunc(e.offers, func(o *offer) bool { return o.name == n })
}

var errGaveUp = errors.New("the receiver gave the message up")

// answered takes the receiver's word about a message.
func (d *desk) answered(r *link.Receiver, n name, what byte, size uint64) error {
	e := d.e
	e.mu.Lock()
	defer e.unlock()
	t := e.sends[n]
	if t == nil {
		return nil // it was given up
	}
	all := t.out.pos == len(t.buf) || t.ahead == len(t.buf)
	switch what {
	case take:
		if t.out.taken || t.ahead > 0 || len(t.buf) == 0 {
			return broken(r, "a message was taken twice, or had come with its offer")
		}
		t.out.taken = true
		e.later.sends = append(e.later.sends, t)
	case done:
		if !all {
			return broken(r, "a message was received before it was sent")
		}
		e.end(t, nil)
	case refused:
		e.end(t, t.mismatch(size))
	default:
		e.end(t, errs.New(errs.RankConnectionLost, t.op(), errGaveUp).WithPeer(n.peer.String()))
	}
	return nil
}

// withdraw takes the sender's word that a message does not come.
func (d *desk) withdraw(n name) {
	e := d.e
	e.mu.Lock()
	defer e.unlock()
	e.forget(func(o *offer) bool { return o.name == n })
	if t := e.taken[n]; t != nil {
		e.end(t, errs.New(errs.RankConnectionLost, t.op(), errors.New("the sender gave the message up")).WithPeer(n.peer.String()))
	}
}
