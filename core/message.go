package core

import (
	"context"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/peer"
)

// AnyPeer in [Message.Peer] of a receive takes a message from any member.
const AnyPeer = peer.AnyPeer

// Message describes one message from one member of the group to another. Every member
// and the master have to know collectives (Attributes.Collectives), and no member may
// have eager start turned off (Options.EagerBytes).
type Message struct {
	// Peer is the other end, by its index in Attributes.Members; AnyPeer for a receive
	// from the member that sends first.
	Peer int
	// Tag is the same at both ends. Messages of one sender with the same tag are received
	// in the order in which they were sent.
	Tag uint64
	// Data is what is sent, or where it is received: as many bytes at both ends, or both
	// get errs.Mismatch. It is the engine's until the transfer is over. After a failure
	// that of a receive is undefined.
	Data []byte
	// Device takes the place of Data if the tensor lies on a device. SendAsync then
	// returns when what was queued on its stream is done and all of it is on the host, and
	// ReceiveAsync when what was queued there is done. A message that has come is copied
	// to the device before the transfer is over; of one that fails nothing is written
	// there.
	Device DeviceBuffer
}

// MessageOf describes a message of a Go slice.
func MessageOf[T dtype.Element](peer int, tag uint64, data []T) Message {
	return Message{Peer: peer, Tag: tag, Data: dtype.AsBytes(data)}
}

// MessageOnDevice describes a message in device memory.
func MessageOnDevice(peer int, tag uint64, data DeviceBuffer) Message {
	return Message{Peer: peer, Tag: tag, Device: data}
}

// Transfer is a message in flight, as [Communicator.SendAsync] and
// [Communicator.ReceiveAsync] return it. All methods are safe from any goroutine.
type Transfer struct{ t *peer.Transfer }

// Wait returns when the transfer is over, with the other end's index. If ctx ends first
// the message is given up, at both ends, and the error is errs.Canceled.
//
// Errors: errs.RankConnectionLost if the other end has left, given up or cannot be
// reached any more, if a round has begun, and, for a receive from any member, if one has
// left; errs.Mismatch, errs.Canceled, errs.Closed, errs.DeviceFailed.
func (t *Transfer) Wait(ctx context.Context) (peer int, err error) { return t.t.Wait(ctx) }

// Done is closed when the transfer is over and the buffer is the caller's again.
func (t *Transfer) Done() <-chan struct{} { return t.t.Done() }

// Cancel gives the message up, at both ends. Wait returns soon.
func (t *Transfer) Cancel() { t.t.Cancel() }

// Send sends m and returns when the other end has received all of it. Two members that
// send to each other have to receive at the same time: see SendAsync. No vote is
// taken, and no other member hears of it; a failure leads to no round.
//
// Errors: those of [Transfer.Wait]; errs.Unsupported, which names who has no messages,
// errs.InvalidArgument, errs.TooFewPeers, errs.RankConnectionFailed if there is no way to
// the other end, errs.Busy while a round runs or if 1024 messages to that member were not
// received.
func (c *Communicator) Send(ctx context.Context, m Message) error {
	t, err := c.SendAsync(ctx, m)
	if err == nil {
		_, err = t.Wait(ctx)
	}
	return err
}

// Receive receives a message into m.Data and returns the sender's index.
// Errors: as Send.
func (c *Communicator) Receive(ctx context.Context, m Message) (from int, err error) {
	t, err := c.ReceiveAsync(ctx, m)
	if err != nil {
		return -1, err
	}
	return t.Wait(ctx)
}

// SendAsync begins to send m. It waits, while ctx lasts, until there is a connection to
// the other end: the first message to a member that is not a neighbour has all members
// connect with each other. Errors: as Send.
func (c *Communicator) SendAsync(ctx context.Context, m Message) (*Transfer, error) {
	t, err := c.s.Send(ctx, peer.Message(m))
	if err != nil {
		return nil, err
	}
	return &Transfer{t}, nil
}

// ReceiveAsync begins to receive a message into m.Data. Errors: as Send.
func (c *Communicator) ReceiveAsync(ctx context.Context, m Message) (*Transfer, error) {
	t, err := c.s.Receive(ctx, peer.Message(m))
	if err != nil {
		return nil, err
	}
	return &Transfer{t}, nil
}
