package fsm

import (
	"errors"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// What a frame says.
type What uint8

const (
	OfferWhole What = 1 + iota // an offer with its data
	OfferBare                  // an offer whose data comes when it is taken
	Take                       // the receiver wants the data
	Done                       // the receiver has it
	Refused                    // the receiver expects another size
	GivenUp                    // the receiver has given up
	Withdrawn                  // the sender has
)

func (w What) offers() bool { return w == OfferWhole || w == OfferBare }

// answers reports whether the receiver says it.
func (w What) answers() bool { return w >= Take && w <= GivenUp }

// Frame is what one member says to another one about a message.
type Frame struct {
	What        What
	Tag, Number uint64
	Epoch       uint64 // of an offer
	Size        uint64 // of an offer, or that a refusal expects, in bytes
	Data        []byte // of an OfferWhole
}

// letter is a frame that no connection has taken.
type letter struct {
	Frame
	counts bool // the answer of an offer that is held until a connection takes it
}

// offer is one that came and that nobody receives yet.
type offer struct {
	Frame
	peer wire.UUID
}

// allowance is how many messages are open in one direction, and their bytes that came
// with offers.
type allowance struct{ count, bytes int }

// peer is what is known of another member, or of one to be.
type peer struct {
	id      wire.UUID
	in, out Conn // over which it is heard, and spoken to; 0: none
	newest  Conn // the last one that it was heard over
	queue   []letter
	head    int // of queue: what is before it was said
	open    allowance
	held    allowance
	sends   map[uint64]*Transfer
	taken   map[uint64]*Transfer
	parting parting
}

// parting is of a member of which some last words may not have been read.
type parting struct {
	cause  error         // nil: none
	until  time.Duration // at most
	member bool          // it is a member no longer
}

// at returns what is known of a member.
func (m *Machine) at(id wire.UUID) *peer {
	p := m.peers[id]
	if p == nil {
		p = &peer{id: id, sends: map[uint64]*Transfer{}, taken: map[uint64]*Transfer{}}
		m.peers[id] = p
		m.order = append(m.order, p)
	}
	return p
}

func (p *peer) unsaid() int { return len(p.queue) - p.head }

// say adds to what is to be said to p.
func (m *Machine) say(p *peer, l letter) {
	p.queue = append(p.queue, l)
	m.emit(Effect{Do: Speak, Peer: p.id})
}

// Says reports whether there is something to say to a member.
func (m *Machine) Says(peer wire.UUID) bool {
	p := m.peers[peer]
	return p != nil && p.unsaid() > 0
}

// Quiet reports whether there is nothing to say to anybody.
func (m *Machine) Quiet() bool {
	return !slices.ContainsFunc(m.order, func(p *peer) bool { return p.unsaid() > 0 })
}

// Next takes what a connection is to say to a member; false: nothing.
func (m *Machine) Next(peer wire.UUID, conn Conn) (Frame, bool) {
	p := m.peers[peer]
	if p == nil || p.unsaid() == 0 || p.out != conn {
		return Frame{}, false
	}
	l := p.queue[p.head]
	p.queue[p.head] = letter{}
	if p.head++; p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	}
	m.uncount(p, &l)
	if t := p.sends[l.Number]; t != nil && l.What.offers() {
		t.said = true
	}
	return l.Frame, true
}

// uncount notes that l no longer counts as an open message of p.
func (m *Machine) uncount(p *peer, l *letter) {
	if l.counts {
		l.counts = false
		p.held.count--
	}
}

// unsay takes back what nobody has heard, and reports whether that was anything.
func (m *Machine) unsay(p *peer, which func(*letter) bool) bool {
	was := p.unsaid()
	rest := slices.DeleteFunc(p.queue[p.head:], func(l letter) bool {
		if !which(&l) {
			return false
		}
		m.uncount(p, &l)
		return true
	})
	p.queue = p.queue[:p.head+len(rest)]
	if len(rest) == 0 {
		p.queue, p.head = p.queue[:0], 0
		if was > 0 {
			m.emit(Effect{Do: Speak, Peer: p.id})
		}
	}
	return len(rest) < was
}

// hush takes everything back.
func (m *Machine) hush(p *peer) { m.unsay(p, func(*letter) bool { return true }) }

// retract tells p that t goes on no longer, if it can know of t.
func (m *Machine) retract(p *peer, t *Transfer) {
	if t.sends {
		if !t.said {
			m.unsay(p, func(l *letter) bool { return l.What.offers() && l.Number == t.number })
			return
		}
		m.tell(p, letter{Frame: Frame{What: Withdrawn, Tag: t.Tag, Number: t.number}})
		return
	}
	for i := range p.queue[p.head:] {
		if l := &p.queue[p.head+i]; l.What == Take && l.Number == t.number {
			l.What = GivenUp
			return
		}
	}
	m.tell(p, letter{Frame: Frame{What: GivenUp, Tag: t.Tag, Number: t.number}})
}

// tell says l if p can be spoken to.
func (m *Machine) tell(p *peer, l letter) {
	if p.out != 0 {
		m.say(p, l)
	}
}

// Way says that conn takes from here on what is to be said to a member. What was under
// way over another one has lost some words.
func (m *Machine) Way(now time.Duration, peer wire.UUID, conn Conn) {
	p := m.at(peer)
	if p.out == conn {
		return
	}
	was := p.out
	p.out = conn
	if was != 0 {
		m.mark(p, func(t *Transfer) bool { return !t.sends || t.said })
		m.part(now, p, errReplaced)
	}
}

// NoWay says that there is no connection to a member. What was to be said fails.
func (m *Machine) NoWay(now time.Duration, peer wire.UUID, cause error) {
	p := m.at(peer)
	p.out = 0
	m.hush(p)
	for _, t := range p.transfers() {
		if t.sends && !t.said {
			m.Fail(t, cause)
		}
	}
	m.mark(p, func(*Transfer) bool { return true })
	m.part(now, p, cause)
}

// Unsaid says that a connection to a member has ended: what it has taken may not have
// been heard.
func (m *Machine) Unsaid(now time.Duration, peer wire.UUID, conn Conn, cause error) {
	p := m.peers[peer]
	if p == nil || p.out != conn {
		return
	}
	p.out = 0
	m.hush(p)
	m.mark(p, func(*Transfer) bool { return true })
	m.part(now, p, cause)
}

// Came says that a member is heard over a connection from here on. An earlier one, which
// may not have ended yet, counts no longer.
func (m *Machine) Came(peer wire.UUID, conn Conn) {
	p := m.at(peer)
	if conn < p.newest {
		return
	}
	if p.in != 0 {
		m.unheard(p, errReplaced)
	}
	p.in, p.newest = conn, conn
}

var errReplaced = errors.New("the connection was replaced by a new one")

// Unheard says that a connection from a member has ended, and everything that came over
// it is read.
func (m *Machine) Unheard(peer wire.UUID, conn Conn, cause error) {
	p := m.peers[peer]
	if p == nil || p.in != conn {
		return
	}
	p.in = 0
	m.unheard(p, cause)
	if !slices.Contains(m.members, peer) {
		m.tidy()
	}
}

// unheard ends what could only go on with what p says.
func (m *Machine) unheard(p *peer, cause error) {
	if p.parting.cause != nil {
		m.parted(p)
	}
	m.forget(func(o *offer) bool { return o.peer == p.id })
	m.abandon(p, cause)
	for i := range p.queue { // it has given up what these answer, and may offer as much again
		m.uncount(p, &p.queue[i])
	}
}

// mark notes which transfers with p have lost words.
func (m *Machine) mark(p *peer, which func(*Transfer) bool) {
	for _, of := range []map[uint64]*Transfer{p.sends, p.taken} {
		for _, t := range of {
			t.marked = t.marked || which(t)
		}
	}
}

// part waits for the last words of p, if any can come.
func (m *Machine) part(now time.Duration, p *peer, cause error) {
	if p.parting.cause == nil {
		p.parting.cause, p.parting.until = cause, now+m.Patience
	}
	if p.in == 0 || m.closed != nil || !p.parting.member && len(p.sends)+len(p.taken) == 0 {
		m.parted(p)
	}
}

// parted ends a parting.
func (m *Machine) parted(p *peer) {
	was := p.parting
	p.parting = parting{}
	for _, t := range p.transfers() {
		if t.marked || was.member {
			m.Fail(t, was.cause)
		}
	}
	if !was.member {
		return
	}
	m.forget(func(o *offer) bool { return o.peer == p.id })
	for _, t := range slices.Clone(m.recvs) {
		if t.any || t.peer == p.id {
			err := lost(p.id, was.cause)
			err.Op = t.op()
			m.end(t, err)
		}
	}
}

// abandon fails what is under way with p.
func (m *Machine) abandon(p *peer, cause error) {
	for _, t := range p.transfers() {
		m.Fail(t, cause)
	}
}

// Deadline returns when Tick is due; false: never.
func (m *Machine) Deadline() (at time.Duration, due bool) {
	for _, p := range m.order {
		if p.parting.cause != nil && (!due || p.parting.until < at) {
			at, due = p.parting.until, true
		}
	}
	return at, due
}

// Tick ends the partings that are due.
func (m *Machine) Tick(now time.Duration) {
	for _, p := range m.order {
		if p.parting.cause != nil && p.parting.until <= now {
			m.parted(p)
		}
	}
}

// Admits reports whether an offer of a member may come with so many bytes.
func (m *Machine) Admits(peer wire.UUID, size int) bool {
	p := m.peers[peer]
	return p == nil || p.held.bytes+size <= m.Ahead
}

// Out returns the connection over which a member is spoken to; 0: none.
func (m *Machine) Out(peer wire.UUID) Conn {
	if p := m.peers[peer]; p != nil {
		return p.out
	}
	return 0
}

// Takes reports whether frames of a member are messages here.
func (m *Machine) Takes(peer wire.UUID) bool {
	return m.closed == nil && slices.Contains(m.members, peer)
}

// Heard takes what a member says over a connection. An error: no honest member says it.
func (m *Machine) Heard(peer wire.UUID, conn Conn, f Frame) error {
	p := m.peers[peer]
	if p == nil || p.in != conn || !m.Takes(peer) {
		return nil
	}
	switch {
	case f.What.offers():
		return m.offered(p, f)
	case f.What.answers():
		return m.answered(p, f)
	default:
		m.withdrawn(p, f.Number)
		return nil
	}
}

var (
	errTooMany = errors.New("more messages than were received of it, or one twice")
	errEarly   = errors.New("a message was received before it was sent")
	errTwice   = errors.New("a message was taken twice, or had come with its offer")
	errGaveUp  = errors.New("the receiver gave the message up")
	errTook    = errors.New("the sender gave the message up")
)

// offered takes an offer.
func (m *Machine) offered(p *peer, f Frame) error {
	if f.Epoch == 0 || f.Epoch != m.next {
		return nil // of a round that is over
	}
	if p.held.count+1 > m.Open || p.held.bytes+len(f.Data) > m.Ahead || m.known(p, f.Number) {
		return errTooMany
	}
	p.held.count, p.held.bytes = p.held.count+1, p.held.bytes+len(f.Data)
	o := offer{f, p.id}
	for i, t := range m.recvs { // there are none while a round runs
		if t.wants(&o) {
			m.recvs = slices.Delete(m.recvs, i, i+1)
			m.match(t, &o)
			return nil
		}
	}
	m.keep(o)
	return nil
}

// keep keeps an offer that nobody receives yet.
func (m *Machine) keep(o offer) { m.offers = append(m.offers, &o) }

// known reports whether a message of p was offered and not answered.
func (m *Machine) known(p *peer, number uint64) bool {
	return p.taken[number] != nil || slices.ContainsFunc(m.offers, func(o *offer) bool { return o.peer == p.id && o.Number == number })
}

// forget drops offers.
func (m *Machine) forget(which func(*offer) bool) {
	m.offers = slices.DeleteFunc(m.offers, func(o *offer) bool {
		if !which(o) {
			return false
		}
		p := m.at(o.peer)
		p.held.count, p.held.bytes = p.held.count-1, p.held.bytes-len(o.Data)
		return true
	})
}

// answered takes the receiver's word about a message.
func (m *Machine) answered(p *peer, f Frame) error {
	t := p.sends[f.Number]
	if t == nil {
		return nil // it was given up
	}
	switch f.What {
	case Take:
		if t.state != Offered || t.ahead > 0 || len(t.Buf) == 0 || !t.said {
			return errTwice
		}
		t.state = Moving
		m.emit(Effect{Do: Stream, Of: t})
	case Done:
		if !t.said || t.pos < len(t.Buf) && t.ahead < len(t.Buf) {
			return errEarly
		}
		m.end(t, nil)
	case Refused:
		m.end(t, t.mismatch(f.Size))
	default:
		m.end(t, errs.New(errs.RankConnectionLost, t.op(), errGaveUp).WithPeer(p.id.String()))
	}
	return nil
}

// withdrawn takes the sender's word that a message does not come, which it expects no
// answer for.
func (m *Machine) withdrawn(p *peer, number uint64) {
	m.forget(func(o *offer) bool { return o.peer == p.id && o.Number == number })
	m.unsay(p, func(l *letter) bool { return l.What.answers() && l.Number == number })
	if t := p.taken[number]; t != nil {
		m.end(t, errs.New(errs.RankConnectionLost, t.op(), errTook).WithPeer(p.id.String()))
	}
}
