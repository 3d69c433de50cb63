package fsm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// Config has the bounds of a Machine. All members have the same, but for Patience.
type Config struct {
	// Together is the largest message that travels with its offer, in bytes.
	Together int
	// Ahead bounds what travels with offers to one member and is not answered, in bytes.
	Ahead int
	// Open bounds the messages to one member that are not answered.
	Open int
	// Patience bounds how long a member from which a connection is open may have said
	// something that was not read.
	Patience time.Duration
}

// Defaults are the bounds of the protocol. Patience is long for bytes that are in this
// host's buffers.
func Defaults() Config {
	return Config{Together: 64 << 10, Ahead: 1 << 20, Open: 1024, Patience: time.Second}
}

// Conn names a connection; later ones have higher numbers. 0: none.
type Conn uint64

// Deed is what is to be done about an event.
type Deed uint8

const (
	// Speak: there is something to say to Peer, which Next returns, or nothing any more.
	Speak Deed = 1 + iota
	// Stream: the data of the send Of is to be sent, over the connection that took its
	// offer.
	Stream
	// Halt: Of is over. Nothing of it is to be begun any more.
	Halt
	// Free: Of is over and its buffer the caller's.
	Free
)

// Effect is a deed and what it is about.
type Effect struct {
	Do   Deed
	Of   *Transfer
	Peer wire.UUID
}

// Machine has the messages of one member. Not safe for concurrent use.
type Machine struct {
	Config

	closed  error
	epoch   uint64      // messages may be sent in it; 0: none may
	next    uint64      // of the round that runs: what comes for it is kept
	members []wire.UUID // of the group of next
	gone    []departure // of members, since the last round
	numbers uint64      // of messages that were sent
	peers   map[wire.UUID]*peer
	order   []*peer     // as they came
	recvs   []*Transfer // Waiting, in order
	offers  []*offer    // without a receive, in order
	effects []Effect
}

// New returns a machine without members.
func New(cfg Config) *Machine { return &Machine{Config: cfg, peers: map[wire.UUID]*peer{}} }

// Effects returns what is to be done since it was asked last, in order. It is the
// caller's until the next event.
func (m *Machine) Effects() []Effect {
	all := m.effects
	m.effects = m.effects[:0]
	return all
}

func (m *Machine) emit(e Effect) {
	if e.Do != Speak || !slices.Contains(m.effects, e) {
		m.effects = append(m.effects, e)
	}
}

// departure is of a member that has gone since the last round.
type departure struct {
	peer  wire.UUID
	cause error
}

func lost(peer wire.UUID, cause error) *errs.Error {
	var e *errs.Error
	if errors.As(cause, &e) && (e.Code == errs.Protocol || e.Code == errs.Internal) {
		return errs.New(e.Code, e.Op, e.Err).WithPhase(e.Phase).WithPeer(peer.String())
	}
	return errs.New(errs.RankConnectionLost, "message", cause).WithPeer(peer.String()).
		WithHint("update the topology and repeat it if the peer is still a member")
}

// Expect says that a round runs: what was under way fails because of it, and members may
// offer messages of epoch as soon as they have heard that it is over. epoch 0: none of
// the group may send any.
func (m *Machine) Expect(epoch uint64, members []wire.UUID) {
	m.failAll(func(t *Transfer) error {
		return errs.New(errs.RankConnectionLost, t.op(), errors.New("a round has begun")).WithHint("repeat it after the round")
	})
	m.epoch, m.next, m.members, m.gone = 0, epoch, slices.Clone(members), nil
	m.forget(func(o *offer) bool { return o.Epoch != epoch || !slices.Contains(members, o.peer) })
	for _, p := range m.order {
		p.parting = parting{}
		m.unsay(p, func(l *letter) bool { return l.What.offers() || l.What == Take || l.What == Withdrawn })
		for i := range p.queue {
			m.uncount(p, &p.queue[i])
		}
	}
	m.tidy()
}

// tidy lets go of what is known of members that have left.
func (m *Machine) tidy() {
	m.order = slices.DeleteFunc(m.order, func(p *peer) bool {
		goes := p.in == 0 && !slices.Contains(m.members, p.id)
		if goes {
			m.hush(p)
			delete(m.peers, p.id)
		}
		return goes
	})
}

// Begin says that the round is over: messages are of its epoch.
func (m *Machine) Begin() { m.epoch = m.next }

// Stop fails everything, and all that is still to come.
func (m *Machine) Stop(cause error) {
	if m.closed == nil {
		m.closed = cause
	}
	m.failAll(func(*Transfer) error { return cause })
	m.forget(func(*offer) bool { return true })
	for _, p := range m.order {
		p.parting = parting{}
		m.unsay(p, func(l *letter) bool { return l.What.offers() })
	}
}

// failAll fails everything, and tells nobody.
func (m *Machine) failAll(why func(*Transfer) error) {
	for _, p := range m.order {
		for _, t := range p.transfers() {
			m.end(t, why(t))
		}
	}
	for len(m.recvs) > 0 {
		m.end(m.recvs[0], why(m.recvs[0]))
	}
}

// Lost says that a member has gone, until the next round. What concerns it fails as soon
// as everything that it has said is read, receives from any member included: nobody knows
// whether it would have sent.
func (m *Machine) Lost(now time.Duration, peer wire.UUID, cause error) {
	if slices.Contains(m.members, peer) {
		m.gone = append(m.gone, departure{peer, cause})
	}
	p := m.at(peer)
	p.parting.member = true
	m.part(now, p, cause)
}

// without returns why peer cannot take part any more; zero: any member.
func (m *Machine) without(op string, peer wire.UUID) error {
	for _, d := range m.gone {
		if d.peer == peer || peer == (wire.UUID{}) {
			err := lost(d.peer, d.cause)
			err.Op = op
			return err
		}
	}
	return nil
}

// may returns why no message can be sent or received in epoch.
func (m *Machine) may(op string, epoch uint64) error {
	switch {
	case m.closed != nil:
		return m.closed
	case epoch == 0 || epoch != m.epoch:
		return errs.New(errs.Busy, op, errors.New("a round is running")).WithHint("repeat it after the round")
	}
	return nil
}

// Send begins to send t to a member. An error: it has not begun.
func (m *Machine) Send(to wire.UUID, epoch uint64, t *Transfer) error {
	t.sends, t.peer = true, to
	if err := m.may(t.op(), epoch); err != nil {
		return err
	}
	if err := m.without(t.op(), to); err != nil {
		return err
	}
	p := m.at(to)
	if p.open.count == m.Open {
		return errs.New(errs.Busy, t.op(), fmt.Errorf("%d messages were not received", m.Open)).WithPeer(to.String())
	}
	m.numbers++
	t.number, t.state = m.numbers, Offered
	p.sends[t.number] = t
	p.open.count++
	f := Frame{What: OfferBare, Tag: t.Tag, Number: t.number, Epoch: epoch, Size: uint64(len(t.Buf))}
	if n := len(t.Buf); n <= m.Together && p.open.bytes+n <= m.Ahead {
		f.What, f.Data = OfferWhole, slices.Clone(t.Buf)
		t.ahead = n
		p.open.bytes += n
	}
	m.say(p, letter{Frame: f})
	return nil
}

// Receive begins to receive t from a member or, if from is zero, from any. An error: it
// has not begun.
func (m *Machine) Receive(from wire.UUID, epoch uint64, t *Transfer) error {
	t.peer, t.any = from, from == wire.UUID{}
	if err := m.may(t.op(), epoch); err != nil {
		return err
	}
	t.state = Waiting
	for i, o := range m.offers {
		if t.wants(o) {
			m.offers = slices.Delete(m.offers, i, i+1)
			m.match(t, o)
			return nil
		}
	}
	if err := m.without(t.op(), from); err != nil {
		return err
	}
	m.recvs = append(m.recvs, t)
	return nil
}

// match gives t, which is in no list, what o offers.
func (m *Machine) match(t *Transfer, o *offer) {
	p := m.at(o.peer)
	t.peer, t.number = o.peer, o.Number
	p.held.bytes -= len(o.Data)
	p.taken[t.number] = t
	t.state = Moving
	answer := letter{Frame: Frame{Tag: o.Tag, Number: o.Number}, counts: true}
	switch {
	case o.Size != uint64(len(t.Buf)):
		answer.What, answer.Size = Refused, uint64(len(t.Buf))
		m.say(p, answer)
		m.end(t, t.mismatch(o.Size))
	case o.What == OfferWhole:
		copy(t.Buf, o.Data)
		t.got = len(t.Buf)
		answer.What = Done
		m.say(p, answer)
		m.end(t, nil)
	default:
		answer.What = Take
		m.say(p, answer)
	}
}

// Cancel gives a transfer up: the other end hears of it.
func (m *Machine) Cancel(t *Transfer, cause error) {
	m.drop(t, errs.New(errs.Canceled, t.op(), cause))
}

// Fail ends a transfer because of what its connection met.
func (m *Machine) Fail(t *Transfer, cause error) {
	err := lost(t.peer, cause)
	err.Op = t.op()
	m.drop(t, err)
}

// drop ends a transfer that fails here, and tells the other end.
func (m *Machine) drop(t *Transfer, err error) {
	if t.state == Over {
		return
	}
	if t.number > 0 {
		m.retract(m.at(t.peer), t)
	}
	m.end(t, err)
}

// end ends t, once.
func (m *Machine) end(t *Transfer, err error) {
	if t.state == Over {
		return
	}
	p := m.peers[t.peer]
	switch {
	case t.sends:
		delete(p.sends, t.number)
		p.open.count, p.open.bytes = p.open.count-1, p.open.bytes-t.ahead
	case t.state == Moving:
		delete(p.taken, t.number)
	default:
		m.recvs = slices.DeleteFunc(m.recvs, func(o *Transfer) bool { return o == t })
	}
	t.state, t.err = Over, err
	m.emit(Effect{Do: Halt, Of: t})
	m.Settle(t)
}

// Transfers returns what is under way: by peer, then by number, then what waits for
// offers.
func (m *Machine) Transfers() (all []*Transfer) {
	for _, p := range m.order {
		all = append(all, p.transfers()...)
	}
	return append(all, m.recvs...)
}

// Offers is how many messages have come that nobody receives here.
func (m *Machine) Offers() int { return len(m.offers) }

// Load is what is kept for one member.
type Load struct {
	Held, HeldBytes int // offers and answers to them that count as open, and bytes of offers
	Open, OpenBytes int // sends that were not answered, and bytes that went with their offers
	Unsaid          int // frames that no connection has taken
}

// Load returns what is kept for a member.
func (m *Machine) Load(peer wire.UUID) (l Load) {
	if p := m.peers[peer]; p != nil {
		l = Load{p.held.count, p.held.bytes, p.open.count, p.open.bytes, p.unsaid()}
	}
	return l
}

// transfers returns what is under way with p, sends first, in the order of the numbers.
func (p *peer) transfers() (all []*Transfer) {
	for _, of := range []map[uint64]*Transfer{p.sends, p.taken} {
		for _, n := range slices.Sorted(maps.Keys(of)) {
			all = append(all, of[n])
		}
	}
	return all
}
