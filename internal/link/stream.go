package link

import (
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Source is what frames are sent for: one stream to one peer. Several connections
// may ask one at once.
type Source interface {
	Ender
	// NextFrame makes f what f.Conn is to send next, whose batch has so many bytes
	// already. false: there is nothing, or nothing for this connection, which f.Left
	// says. f refers to the source's memory until ReleaseFrame. The caller holds the
	// connection's lock.
	NextFrame(f *Frame, batch int) bool
	// PrepareFrame encodes what f carries, outside of all locks, on the goroutine that
	// sends it.
	PrepareFrame(f *Frame)
	// SentFrame says that the system has all of f.
	SentFrame(f *Frame)
	// ReleaseFrame says that f no longer refers to the source's memory; whole says that
	// it was sent. idle: no frame refers to it; over: all of the stream was sent. The
	// caller holds the connection's lock.
	ReleaseFrame(f *Frame, whole bool) (idle, over bool)
	// Opener returns the frame that announces the end of the stream, once, if one is
	// due. The caller holds the connection's lock.
	Opener() (o Opener, due bool)
	// RouseBest makes a connection send what another one has left to it, or some of what there
	// is more of.
	RouseBest()
}

// Sink is what frames are received for: one stream from one peer.
type Sink interface {
	Ender
	// BeginReceive lets r touch the sink's memory until EndReceive; false: the frame
	// is stale.
	BeginReceive(r *Receiver) bool
	// ReceiveFrame processes the frame with header h, which r has read. It reads the
	// payload with r.Fill. ErrStopped: the rest of the frame is to be skipped.
	ReceiveFrame(r *Receiver, h transport.Header) error
	// EndReceive ends the stream as well if that was its last frame.
	EndReceive(r *Receiver)
	// Received reports whether all of the stream has come.
	Received() bool
}

// Ender is what sources and sinks do about the end of their operation.
type Ender interface {
	// Stopped reports whether the operation has failed: nothing of it is to be begun
	// any more.
	Stopped() bool
	// Fail ends the operation because of err: what a connection of the stream met.
	Fail(err error)
	// Settle lets the operation end if it is over and nothing touches its memory;
	// async: not on this goroutine.
	Settle(async bool)
}

// Router is what a Hub asks about frames and tells about connections. The Hub
// holds no lock when it calls one.
type Router interface {
	// Route says what becomes of the frame with header h, which r has just read, and
	// which sink takes it. It may wait for a local event, within a bound. The answer is
	// to be found again whenever Wake is called. An error closes the connection.
	//
	// kept is nil, or has the frame, which was read after an answer of Keep. If the
	// answer is Keep again, Route has given kept to Hub.Keep, under the lock that
	// guards what it answers.
	Route(r *Receiver, h transport.Header, kept *Early) (Sink, Verdict, error)
	// Wake is called when a connection was closed, and when an alarm of a Receiver is
	// due: calls of Route that wait have to look again.
	Wake()
	// Regrouped says that InUse returns others for peer than before. One goroutine at a
	// time calls it.
	Regrouped(peer wire.UUID)
	// Connected says that r came. No frame of it was read yet.
	Connected(r *Receiver)
	// SenderLost and ReceiverLost say, once, that a connection has ended, and why.
	SenderLost(s *Sender, cause error)
	ReceiverLost(r *Receiver, cause error)
}

// Verdict is what becomes of a frame.
type Verdict uint8

const (
	// Drop: it is read and forgotten.
	Drop Verdict = iota
	// Deliver: the sink takes it.
	Deliver
	// Keep: it is read and kept until Hub.TakeEarly.
	Keep
)

// Opener names a frame of one byte that makes a PCCL receiver look for aborts
// (quirk Q23).
type Opener struct{ Tag, Stream uint64 }

// OpenerBit marks the stream number of an opener. No operation has such a number.
const OpenerBit = uint64(1) << 63

// Frame is one frame of a batch on its way to the system.
type Frame struct {
	// Head begins with room for the header. A source sets the header and may append
	// up to HeadBytes in all: its place is the batch's, and moves with it.
	Head    []byte
	Payload []byte // the source's memory
	Prompt  bool   // worth being written by the goroutine that made it ready
	Gauged  bool   // other connections could take it: its write tells how fast this one is
	Left    bool   // what there is was left to other connections
	More    bool   // of what there is besides others had better take some
	// Step, Off and Kind are the source's own.
	Step, Off int
	Kind      uint8

	conn  *Sender
	of    Source // nil: opener, or its operation has failed and was let go
	pad   int    // zeros in place of Payload
	sent  int    // bytes written so far
	ready bool   // prepared: Payload holds what shall be sent
	pulse bool   // opener that keeps a window
}

// Conn returns the connection that sends f.
func (f *Frame) Conn() *Sender { return f.conn }

// Begun reports whether at least one byte of f was sent.
func (f *Frame) Begun() bool { return f.sent > 0 }

func (f *Frame) size() int { return len(f.Head) + len(f.Payload) + f.pad }

// rest returns what of f is still to be sent.
func (f *Frame) rest() (head, payload []byte, pad int) {
	sent := f.sent
	if sent < len(f.Head) {
		return f.Head[sent:], f.Payload, f.pad
	}
	sent -= len(f.Head)
	if sent < len(f.Payload) {
		return nil, f.Payload[sent:], f.pad
	}
	return nil, nil, f.pad - (sent - len(f.Payload))
}
