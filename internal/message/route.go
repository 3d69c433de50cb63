package message

import (
	"encoding/binary"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/message/fsm"
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

// offerBytes are those of an offer before its data: what it is, epoch, size.
const offerBytes = 1 + 8 + 8

// appendHead appends what a frame says, but for the data of its message.
func appendHead(b []byte, f fsm.Frame) []byte {
	b = append(b, byte(f.What))
	switch f.What {
	case fsm.OfferWhole, fsm.OfferBare:
		b = binary.BigEndian.AppendUint64(b, f.Epoch)
		return binary.BigEndian.AppendUint64(b, f.Size)
	case fsm.Refused:
		return binary.BigEndian.AppendUint64(b, f.Size)
	}
	return b
}

// router answers the questions of the hub about frames with the mark.
type router struct{ *Engine }

var _ link.Router = router{}

func (e router) Wake() {}

// heard reports whether r is the connection of its pool over which messages come.
func heard(r *link.Receiver) bool { return r.Number() == 0 }

func (e router) Connected(r *link.Receiver) {
	if heard(r) {
		e.mu.Lock()
		defer e.unlock()
		e.m.Came(r.Peer(), fsm.Conn(r.ID()))
	}
}

func (e router) SenderLost(s *link.Sender, cause error) {
	e.mu.Lock()
	defer e.unlock()
	if c := e.links[s.Peer()]; c != nil && c.on == s {
		delete(e.links, s.Peer()) // what is left of it in the connection ends by itself
	}
	e.m.Unsaid(e.now(), s.Peer(), fsm.Conn(s.ID()), cause)
}

// Regrouped: a message takes one connection.
func (e router) Regrouped(wire.UUID) {}

func (e router) ReceiverLost(r *link.Receiver, cause error) {
	if heard(r) {
		e.mu.Lock()
		defer e.unlock()
		e.m.Unheard(r.Peer(), fsm.Conn(r.ID()), cause)
	}
}

func (e router) Route(r *link.Receiver, h transport.Header, _ *link.Early) (link.Sink, link.Verdict, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.Stream&link.OpenerBit != 0 || !e.m.Takes(r.Peer()) {
		return nil, link.Drop, nil
	}
	if h.Stream&dataBit == 0 {
		return &desk{e: e.Engine, head: h}, link.Deliver, nil
	}
	if t := e.m.Data(r.Peer(), fsm.Conn(r.ID()), h.Stream&numbers); t != nil {
		return t.Owner.(*Transfer), link.Deliver, nil
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
	f, err := d.read(r)
	if err != nil {
		return err
	}
	e := d.e
	e.mu.Lock()
	defer e.unlock()
	if err := e.m.Heard(r.Peer(), fsm.Conn(r.ID()), f); err != nil {
		return broken(r, "%w", err)
	}
	return nil
}

// read reads a frame.
func (d *desk) read(r *link.Receiver) (f fsm.Frame, err error) {
	var head [offerBytes]byte
	if r.Left() == 0 {
		return f, broken(r, "an empty frame")
	}
	if !heard(r) {
		return f, broken(r, "a message over connection %d of a pool", r.Number())
	}
	if err := r.Fill(d, head[:1]); err != nil {
		return f, err
	}
	f = fsm.Frame{What: fsm.What(head[0]), Tag: d.head.Tag, Number: d.head.Stream & numbers}
	switch f.What {
	case fsm.OfferWhole, fsm.OfferBare:
		return d.readOffer(r, f, head[1:])
	case fsm.Refused:
		if r.Left() != 8 {
			return f, broken(r, "a refusal of %d bytes", r.Left())
		}
		err = r.Fill(d, head[:8])
		f.Size = binary.BigEndian.Uint64(head[:])
	case fsm.Take, fsm.Done, fsm.GivenUp, fsm.Withdrawn:
		if r.Left() != 0 {
			err = broken(r, "%d bytes behind a word", r.Left())
		}
	default:
		err = broken(r, "a frame that says %d", f.What)
	}
	return f, err
}

// readOffer reads the rest of an offer.
func (d *desk) readOffer(r *link.Receiver, f fsm.Frame, head []byte) (fsm.Frame, error) {
	if r.Left() < len(head) {
		return f, broken(r, "an offer of %d bytes", r.Left())
	}
	if err := r.Fill(d, head); err != nil {
		return f, err
	}
	f.Epoch, f.Size = binary.BigEndian.Uint64(head), binary.BigEndian.Uint64(head[8:])
	switch whole := f.What == fsm.OfferWhole; {
	case whole && (f.Size > uint64(fsm.Defaults().Together) || uint64(r.Left()) != f.Size):
		return f, broken(r, "an offer of %d bytes with %d", f.Size, r.Left())
	case !whole && r.Left() != 0:
		return f, broken(r, "%d bytes behind an offer", r.Left())
	case whole:
		if !d.admits(r, int(f.Size)) {
			return f, broken(r, "more bytes than were received of it")
		}
		f.Data = make([]byte, f.Size)
		return f, r.Fill(d, f.Data)
	}
	return f, nil
}

// admits reports whether size bytes of an offer may be kept.
func (d *desk) admits(r *link.Receiver, size int) bool {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	return d.e.m.Admits(r.Peer(), size)
}
