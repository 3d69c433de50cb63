package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/message"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// Message is core.Message, and documented there.
type Message struct {
	Peer   int
	Tag    uint64
	Data   []byte
	Device device.Buffer
}

// AnyPeer is core.AnyPeer.
const AnyPeer = -1

var errLeft = errors.New("the member has left the group")

// Transfer is a message in flight; its exported methods are those of core.Transfer.
type Transfer struct {
	names   *names
	in      *message.Transfer
	members []wire.UUID   // of the epoch of the message, which may be over when it is waited for
	done    chan struct{} // of a message on a device, closed when its copies are over; otherwise nil
	err     error         // of the device; set before done is closed
}

// check refuses what is said of memory that makes no sense.
func (m *Message) check(op string) error {
	switch {
	case !m.Device.None() && len(m.Data) > 0:
		return errs.New(errs.InvalidArgument, op, errors.New("buffers of host and device are both given"))
	case m.Device.Bytes < 0:
		return errs.New(errs.InvalidArgument, op, fmt.Errorf("%d bytes", m.Device.Bytes))
	}
	return nil
}

// memory returns the host's memory of m, and the copies of a message on a device.
func (s *Session) memory(ctx context.Context, op string, m Message, sends bool) ([]byte, *parcel, error) {
	if m.Device.Bytes == 0 {
		return m.Data, nil, nil
	}
	p, err := s.pack(ctx, op, m.Device, sends)
	if err != nil {
		return nil, nil, err
	}
	return p.memory(), p, nil
}

// transfer is what has begun, or has not because of err.
func (s *Session) transfer(in *message.Transfer, members []wire.UUID, p *parcel, err error) (*Transfer, error) {
	t := &Transfer{names: s.names, in: in, members: members}
	switch {
	case err != nil:
		if p != nil {
			p.close()
		}
		return nil, s.names.named(err)
	case p == nil:
		return t, nil
	}
	t.done = make(chan struct{})
	go func() {
		defer close(t.done)
		defer errs.Catch(p.op, s.crash)
		<-in.Done()
		if _, err := in.Result(); err == nil && !p.sends {
			t.err = p.deliver()
		} else {
			p.close()
		}
	}()
	return t, nil
}

// Send begins to send m and returns when the engine has it.
func (s *Session) Send(ctx context.Context, m Message) (*Transfer, error) {
	const op = "send"
	if err := m.check(op); err != nil {
		return nil, err
	}
	v, to, err := s.otherEnd(ctx, op, m.Peer)
	if err != nil {
		return nil, err
	}
	data, p, err := s.memory(ctx, op, m, true)
	if err != nil {
		return nil, err
	}
	t, err := s.send(ctx, op, v, to, m.Tag, data)
	return s.transfer(t, v.Members, p, err)
}

// send begins to send data.
func (s *Session) send(ctx context.Context, op string, v *fsm.View, to wire.UUID, tag uint64, data []byte) (*message.Transfer, error) {
	if !s.linked(to) {
		if _, err := s.call(ctx, op, nil, func(id fsm.CallID) fsm.Event { return fsm.CallMesh{Call: id} }); err != nil {
			return nil, err
		}
		if !s.linked(to) {
			return nil, errs.New(errs.RankConnectionFailed, op, errors.New("there is no connection to the peer, and the members of the group cannot all be connected")).
				WithPeer(to.String()).WithHint("see the log of the master for the reason")
		}
	}
	return s.posted.Send(to, tag, v.Epoch, data)
}

// linked reports whether there are connections to a peer, and from it for the answers.
func (s *Session) linked(peer wire.UUID) bool {
	open := func(r *link.Receiver) bool { return !r.Closed() }
	return s.hub.LiveSenders(peer) > 0 && slices.ContainsFunc(s.hub.Receivers(peer), open)
}

// Receive begins to receive into m.Data and returns when the engine knows of it.
func (s *Session) Receive(ctx context.Context, m Message) (*Transfer, error) {
	const op = "receive"
	if err := m.check(op); err != nil {
		return nil, err
	}
	v, from, err := s.otherEnd(ctx, op, m.Peer)
	if err != nil {
		return nil, err
	}
	buf, p, err := s.memory(ctx, op, m, false)
	if err != nil {
		return nil, err
	}
	t, err := s.posted.Receive(from, m.Tag, v.Epoch, buf)
	return s.transfer(t, v.Members, p, err)
}

// otherEnd returns who a message goes to or comes from; zero: any member.
func (s *Session) otherEnd(ctx context.Context, op string, peer int) (*fsm.View, wire.UUID, error) {
	v := s.view.Load()
	no := wire.UUID{}
	switch {
	case ctx.Err() != nil:
		return nil, no, errs.New(errs.Canceled, op, ctx.Err())
	case !v.Connected: // the engine says why, if it was connected before
		return v, wire.UUID{}, nil
	case !v.Collectives:
		return nil, no, errs.New(errs.Unsupported, op, errors.New(v.Lacks)).
			WithHint("let all members and the master be of this version of gopccl")
	case v.Epoch == 0:
		return nil, no, errs.New(errs.Unsupported, op, errors.New("a member of the group has eager start turned off")).
			WithHint("let no member set EagerBytes to a negative value")
	case len(v.Members) < 2:
		return nil, no, errs.New(errs.TooFewPeers, op, nil).WithHint("wait for peers and update the topology")
	case peer == AnyPeer && op == "receive":
		return v, no, nil
	case peer < 0 || peer >= len(v.Members):
		return nil, no, errs.New(errs.InvalidArgument, op, fmt.Errorf("peer %d is none of %d members", peer, len(v.Members)))
	case v.Members[peer] == v.UUID:
		return nil, no, errs.New(errs.InvalidArgument, op, fmt.Errorf("peer %d is this one", peer))
	}
	return v, v.Members[peer], nil
}

// Wait is core.Transfer.Wait.
func (t *Transfer) Wait(ctx context.Context) (peer int, err error) {
	select {
	case <-t.Done():
	case <-ctx.Done():
		t.in.Cancel(ctx.Err())
		<-t.Done()
	}
	from, err := t.in.Result()
	if err == nil {
		err = t.err
	}
	return slices.Index(t.members, from), t.names.named(err)
}

// Done is core.Transfer.Done.
func (t *Transfer) Done() <-chan struct{} {
	if t.done != nil {
		return t.done
	}
	return t.in.Done()
}

// Cancel is core.Transfer.Cancel.
func (t *Transfer) Cancel() { t.in.Cancel(errors.New("canceled by the caller")) }
