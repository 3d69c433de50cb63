package fsm

import (
	"fmt"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// State is where a message stands at one end; doc.go draws it.
type State uint8

const (
	Offered State = 1 + iota // a send that was not answered
	Waiting                  // a receive without an offer
	Moving                   // its data was taken, or is coming
	Over
)

// Transfer is one message at one end. Its fields are the caller's and constant from
// Machine.Send or Machine.Receive on; what its methods return belongs to the machine.
type Transfer struct {
	Tag   uint64
	Buf   []byte // the machine's until Free, and that of the goroutines that move its parts
	Owner any    // the shell's

	sends  bool
	any    bool
	peer   wire.UUID // zero: any member, and none has offered
	number uint64    // the sender's; 0: of a receive that has no offer
	state  State
	err    error
	freed  bool
	marked bool // the connection to the peer has ended since it was begun

	ahead int  // bytes that travelled with the offer
	said  bool // the offer was handed to a connection
	pos   int  // bytes in parts so far
	refs  int  // parts that refer to Buf
	short bool // something was not sent

	got     int  // bytes received
	reading bool // a part is being read into Buf
}

// Sends reports whether it is a send.
func (t *Transfer) Sends() bool { return t.sends }

// Any reports whether it is a receive from any member.
func (t *Transfer) Any() bool { return t.any }

// Peer returns the other end; zero: any member, and none has offered.
func (t *Transfer) Peer() wire.UUID { return t.peer }

// Number is the sender's; 0: no offer was taken.
func (t *Transfer) Number() uint64 { return t.number }

func (t *Transfer) State() State { return t.state }

// Err says why a transfer that is over has failed; nil: it has not.
func (t *Transfer) Err() error { return t.err }

// Moved returns the bytes that have been received, or that are on their way or there.
func (t *Transfer) Moved() int {
	if t.sends {
		return max(t.pos, t.ahead)
	}
	return t.got
}

// Busy reports whether parts refer to the buffer.
func (t *Transfer) Busy() bool { return t.refs > 0 || t.reading }

// Room returns where in Buf the next part goes that is received. The reader that has begun
// it may call this at any time until Got.
func (t *Transfer) Room() []byte { return t.Buf[t.got:] }

func (t *Transfer) op() string {
	if t.sends {
		return "send"
	}
	return "receive"
}

func (t *Transfer) wants(o *offer) bool {
	return t.Tag == o.Tag && (t.any || t.peer == o.peer)
}

func (t *Transfer) mismatch(theirs uint64) error {
	what := fmt.Errorf("the peer receives %d bytes, %d are sent", theirs, len(t.Buf))
	if !t.sends {
		what = fmt.Errorf("the peer sends %d bytes, %d are expected", theirs, len(t.Buf))
	}
	return errs.New(errs.Mismatch, t.op(), what).WithPhase(fmt.Sprintf("tag %d", t.Tag)).WithPeer(t.peer.String()).
		WithHint("let both ends name the same number of bytes")
}

// NextPart takes the next part of a send, at most n bytes; false: there is none, or the
// transfer is over. Released gives it back.
func (m *Machine) NextPart(t *Transfer, n int) (part []byte, ok bool) {
	left := len(t.Buf) - t.pos
	if t.state != Moving || left == 0 {
		return nil, false
	}
	n = min(left, n)
	part = t.Buf[t.pos : t.pos+n]
	t.pos += n
	t.refs++
	return part, true
}

// Released says that a part no longer refers to the buffer; whole: it was sent. idle: no
// part does; over: all was sent. The end of the transfer is left to Settle.
func (m *Machine) Released(t *Transfer, whole bool) (idle, over bool) {
	t.refs--
	t.short = t.short || !whole
	return t.refs == 0, t.refs == 0 && t.pos == len(t.Buf) && !t.short
}

// Settle lets a transfer go that is over and has nothing that refers to its buffer.
func (m *Machine) Settle(t *Transfer) {
	if t.state == Over && !t.freed && !t.Busy() {
		t.freed = true
		m.emit(Effect{Do: Free, Of: t})
	}
}

// Data returns the receive that data from a member over a connection is for; nil: none.
func (m *Machine) Data(peer wire.UUID, conn Conn, number uint64) *Transfer {
	if p := m.peers[peer]; p != nil && p.in == conn {
		return p.taken[number]
	}
	return nil
}

// BeginPart lets a part be read into Room, one at a time; false: it is to be dropped.
func (m *Machine) BeginPart(t *Transfer) bool {
	if t.state == Over || t.reading {
		return false
	}
	t.reading = true
	return true
}

// EndPart says that n bytes of a part have been read and nothing touches the buffer.
func (m *Machine) EndPart(t *Transfer, n int) {
	t.reading = false
	t.got += n
	if t.state != Over && t.got == len(t.Buf) {
		m.say(m.at(t.peer), letter{Frame: Frame{What: Done, Tag: t.Tag, Number: t.number}})
		m.end(t, nil)
	}
	m.Settle(t)
}
