package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/message/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// Messages: letters_test.go says what trainers send and what must be true of it. Here is
// what carries it, the place of the shell of internal/message and of connections: frames
// keep their order in each, a few are under way, and those that arrive are read one after
// another.

// Bounds of messages in the simulation, small enough to be met.
const (
	mailTogether = 64
	mailAhead    = 100
	mailOpen     = 4
	mailPatience = time.Second
	mailPart     = 50 // bytes of data in a frame
	mailWindow   = 3  // frames that a connection takes at once
)

// mail is the messages of one peer; nil: it has none.
type mail struct {
	p       *peer
	m       *fsm.Machine
	streams []*fsm.Transfer // sends whose data goes
	reads   []*fsm.Transfer // receives into which a part is read
	tick    time.Duration
	epoch   uint64 // of the round that runs, or that was the last one
	running bool   // a round runs
	gone    map[wire.UUID]time.Duration
	letters []*letter
	live    []*letter // those that are not over
}

func (w *world) newMail(p *peer) *mail {
	if !w.plan.messages {
		return nil
	}
	cfg := fsm.Config{Together: mailTogether, Ahead: mailAhead, Open: mailOpen, Patience: mailPatience}
	switch {
	case w.bug == openForgotten && p.id%2 == 0:
		cfg.Open *= 2
	case w.bug == bytesForgotten && p.id%2 == 0:
		cfg.Ahead *= 2
	case w.bug == lastWordsForgotten:
		cfg.Patience = 0
	}
	return &mail{p: p, m: fsm.New(cfg), gone: map[wire.UUID]time.Duration{}}
}

// post is a connection that messages go over.
type post struct {
	w        *world
	from, to *peer
	id       fsm.Conn
	last     time.Duration // of the last arrival
	flying   []*parcel     // taken of the sender and not given back
	inbox    []*parcel     // arrived and not read
	reading  *parcel
	into     *fsm.Transfer
	stalls   time.Duration // it takes nothing until then
	unsaid   bool          // its sender has noticed the end
	unheard  bool          // its receiver has
}

// parcel is a frame on its way: a word, or a part of a message.
type parcel struct {
	word   fsm.Frame
	part   []byte // what it refers to; nil: it is a word
	copied []byte
	of     *fsm.Transfer
	number uint64
}

// carries opens a connection.
func (w *world) carries(l *link, from, to *peer) {
	if from.mesh.mail == nil || to.mesh.mail == nil {
		return
	}
	b := &w.collector.mail
	b.conns++
	c := &post{w: w, from: from, to: to, id: b.conns}
	if w.bug != replacementUnheard || l.post == nil || l.post.unheard {
		to.mesh.mail.do(func(m *fsm.Machine) { m.Came(from.uuid, c.id) })
	}
	l.post = c
}

// ended is noticed by one of the two.
func (c *post) ended(sender bool) {
	if c == nil {
		return
	}
	w := c.w
	if sender {
		c.unsaid = true
		for _, f := range c.flying {
			c.giveBack(f, false)
		}
		c.flying = nil
		if w.bug != endUnsaid {
			c.from.mesh.mail.do(func(m *fsm.Machine) { m.Unsaid(w.now, c.to.uuid, c.id, errReset) })
		}
		return
	}
	if w.rng.chance(4) { // it has much to read before
		w.after(w.rng.between(0, 30*time.Millisecond), c.to, c.endUnheard)
		return
	}
	c.endUnheard()
}

// endUnheard has the receiver notice the end.
func (c *post) endUnheard() {
	w, mail := c.w, c.to.mesh.mail
	if t := c.into; t != nil { // the rest of the frame does not come
		if w.bug == halfDelivered {
			c.reading.copied = make([]byte, len(t.Room()))
		}
		if n := len(c.reading.copied); w.bug == halfDelivered {
			c.readTo(n)
		} else {
			c.readTo(w.rng.n(n))
		}
	}
	reads := w.rng.chance(2) // or what has come is lost with it
	for len(c.inbox) > 0 && reads {
		c.read(true)
	}
	c.inbox, c.unheard = nil, true
	if w.bug != endUnheard {
		mail.do(func(m *fsm.Machine) { m.Unheard(c.from.uuid, c.id, errReset) })
	}
}

// do lets the machine take an event, and carries out what it asks for.
func (x *mail) do(event func(*fsm.Machine)) {
	event(x.m)
	for {
		effects := slices.Clone(x.m.Effects())
		if len(effects) == 0 {
			break
		}
		for _, e := range effects {
			x.carryOut(e)
		}
	}
	w := x.p.w
	w.collector.mail.bounded(x)
	for _, l := range x.live {
		if l.moving == 0 && l.t.State() == fsm.Moving {
			l.moving = w.now
		}
	}
	if at, due := x.m.Deadline(); due && (x.tick <= w.now || at < x.tick) {
		x.tick = max(at, w.now+time.Microsecond)
		when := x.tick
		w.at(when, x.p, func() {
			if x.tick == when {
				x.tick = 0
				x.do(func(m *fsm.Machine) { m.Tick(w.now) })
			}
		})
	}
}

func (x *mail) carryOut(e fsm.Effect) {
	w := x.p.w
	switch e.Do {
	case fsm.Speak:
		if !x.m.Says(e.Peer) {
			return
		}
		c := x.way(e.Peer)
		if c == nil {
			x.m.NoWay(w.now, e.Peer, errors.New("there is no connection to the peer"))
			return
		}
		x.m.Way(w.now, e.Peer, c.id)
		c.pump()
	case fsm.Stream:
		c := x.way(e.Of.Peer())
		if c == nil || c.id != x.m.Out(e.Of.Peer()) {
			x.m.Fail(e.Of, errors.New("there is no connection to the peer"))
			return
		}
		x.streams = append(x.streams, e.Of)
		c.pump()
	case fsm.Halt:
		x.streams = slices.DeleteFunc(x.streams, func(t *fsm.Transfer) bool { return t == e.Of })
		x.halted(e.Of)
	case fsm.Free:
		x.freed(e.Of)
	}
}

// way returns the connection to a member, nil if there is none.
func (x *mail) way(peer wire.UUID) *post {
	o := x.p.w.byUUID(peer)
	if c := x.p.w.link(x.p, o).post; c != nil && !c.unsaid {
		return c
	}
	return nil
}

// pump has a connection take what there is for it.
func (c *post) pump() {
	w := c.w
	for !c.unsaid && len(c.flying) < mailWindow && w.now >= c.stalls {
		f := c.take()
		if f == nil {
			return
		}
		if w.rng.chance(20) {
			c.stalls = w.now + w.rng.between(0, 100*time.Millisecond)
			w.at(c.stalls, c.from, c.pump)
		}
		c.flying = append(c.flying, f)
		took := w.travels(c.from, c.to)
		c.last = max(c.last, w.now+took)
		w.at(c.last, c.to, func() {
			if !c.unheard {
				c.inbox = append(c.inbox, f)
				c.read(false)
			}
		})
		if w.bug == releaseForgotten && f.part != nil {
			c.from.mesh.mail.m.Released(f.of, true)
		}
		w.after(w.rng.between(0, took), c.from, func() {
			if i := slices.Index(c.flying, f); i >= 0 {
				c.flying = slices.Delete(c.flying, i, i+1)
				c.giveBack(f, true)
				c.pump()
			}
		})
	}
}

// giveBack ends what refers to the memory of a sender.
func (c *post) giveBack(f *parcel, whole bool) {
	if f.part == nil {
		return
	}
	c.from.mesh.mail.do(func(m *fsm.Machine) {
		part := f.part
		if f.part = nil; !slices.Equal(part, f.copied) {
			c.w.failf("peer %d: a part of a message was overwritten while it was sent", c.from.id)
		}
		if c.w.bug != releaseForgotten {
			m.Released(f.of, whole)
		}
		m.Settle(f.of)
	})
}

// take returns the next frame, words and data in turn; nil: there is none.
func (c *post) take() *parcel {
	x, w := c.from.mesh.mail, c.w
	data := func() *parcel {
		for _, t := range x.streams {
			if t.Peer() != c.to.uuid {
				continue
			}
			if part, ok := x.m.NextPart(t, mailPart); ok {
				return &parcel{part: part, copied: slices.Clone(part), of: t, number: t.Number()}
			}
		}
		return nil
	}
	if w.rng.chance(2) {
		if f := data(); f != nil {
			return f
		}
	}
	for {
		word, ok := x.m.Next(c.to.uuid, c.id)
		if !ok {
			return data()
		}
		offer := word.What == fsm.OfferWhole || word.What == fsm.OfferBare
		goesOn := func(l *letter) bool { return l.sends && l.t.Number() == word.Number && l.t.State() != fsm.Over }
		if offer && !slices.ContainsFunc(x.live, goesOn) {
			w.failf("peer %d offers a message that is over", x.p.id)
		}
		if w.tells(x, c, word) {
			return &parcel{word: word}
		}
	}
}

// read takes what has arrived, up to a part that it takes time to read; atOnce: it takes
// none.
func (c *post) read(atOnce bool) {
	x, w := c.to.mesh.mail, c.w
	for len(c.inbox) > 0 && c.reading == nil {
		f := c.inbox[0]
		c.inbox = c.inbox[1:]
		if f.of == nil {
			w.collector.mail.heard(c, f.word)
			conn := w.misheard(c, &f.word)
			x.do(func(m *fsm.Machine) {
				if err := m.Heard(c.from.uuid, conn, f.word); err != nil {
					w.failf("peer %d says to peer %d what nobody may: %v", c.from.id, c.to.id, err)
				}
				if w.bug == offersDoubled && f.word.What == fsm.OfferWhole {
					_ = m.Heard(c.from.uuid, conn, f.word)
				}
			})
			continue
		}
		t := x.m.Data(c.from.uuid, c.id, f.number)
		if t == nil || !x.m.BeginPart(t) {
			continue
		}
		if len(f.copied) > len(t.Room()) {
			w.failf("peer %d: more data of a message than it has", c.to.id)
			return
		}
		c.reading, c.into = f, t
		x.reads = append(x.reads, t)
		if atOnce {
			c.readTo(len(f.copied))
			continue
		}
		w.after(w.rng.between(0, time.Millisecond), c.to, func() {
			if c.reading != f {
				return
			}
			n := len(f.copied)
			if t.State() == fsm.Over { // which interrupts it
				n = w.rng.n(n)
			}
			c.readTo(n)
			c.read(false)
		})
	}
}

// readTo ends the reading of a part after n bytes.
func (c *post) readTo(n int) {
	x, f, t := c.to.mesh.mail, c.reading, c.into
	c.reading, c.into = nil, nil
	if c.w.bug != partsForgotten {
		copy(t.Room(), f.copied[:n])
	}
	x.do(func(m *fsm.Machine) {
		x.reads = slices.DeleteFunc(x.reads, func(o *fsm.Transfer) bool { return o == t })
		if t.State() == fsm.Over {
			n = 0 // it counts nothing any more
		}
		if c.w.bug == partsForgotten {
			n = len(t.Room())
		}
		m.EndPart(t, n)
	})
}

// tells reports whether a word is said, as far as a bug lets it be; and mixes them up.
func (w *world) tells(x *mail, c *post, f fsm.Frame) bool {
	failed := func() bool {
		for _, l := range x.letters {
			if l.t.Number() == f.Number && l.sends == (f.What == fsm.Withdrawn) && !l.canceled && l.t.State() == fsm.Over && (l.sends || l.t.Peer() == c.to.uuid) {
				return true
			}
		}
		return false
	}
	switch f.What {
	case fsm.Refused:
		return w.bug != refusalUntold
	case fsm.GivenUp:
		return w.bug != givingUpUntold && (w.bug != failureUntold || !failed())
	case fsm.Withdrawn:
		return w.bug != withdrawalUntold && (w.bug != failureUntold || !failed())
	}
	return true
}

// misheard is what a bug makes of a word, and of the connection that it came over.
func (w *world) misheard(c *post, f *fsm.Frame) fsm.Conn {
	x := c.to.mesh.mail
	offer := f.What == fsm.OfferWhole || f.What == fsm.OfferBare
	switch {
	case w.bug == tagsForgotten && offer:
		f.Tag = 1
	case w.bug == mailEpochForgotten && offer:
		f.Epoch = x.epoch
	case w.bug == aheadForgotten && offer && x.running:
		f.Epoch = 0
	case w.bug == offersSwapped && offer && len(c.inbox) > 0:
		for i, o := range c.inbox {
			if o.of == nil && (o.word.What == fsm.OfferWhole || o.word.What == fsm.OfferBare) {
				*f, c.inbox[i].word = c.inbox[i].word, *f
				break
			}
		}
	case w.bug == staleHeard:
		if l := w.link(c.from, c.to); l.post != nil {
			return l.post.id
		}
	}
	return c.id
}

// round says that a round runs.
func (x *mail) round(epoch uint64) {
	if x == nil {
		return
	}
	x.epoch, x.running = epoch, true
	clear(x.gone)
	if x.p.w.bug != roundForgotten {
		x.do(func(m *fsm.Machine) { m.Expect(epoch, x.p.m.View().Members) })
	}
	x.over("a round")
}

// begin says that it is over.
func (x *mail) begin() {
	if x == nil {
		return
	}
	x.running = false
	x.do(func(m *fsm.Machine) {
		if x.p.w.bug == roundForgotten {
			m.Expect(x.epoch, x.p.m.View().Members)
		}
		m.Begin()
	})
}

// left says that the master has named a member as gone.
func (x *mail) left(peer wire.UUID) {
	if x == nil {
		return
	}
	if _, was := x.gone[peer]; !was {
		x.gone[peer] = x.p.w.now
	}
	if x.p.w.bug != leaverForgotten {
		x.do(func(m *fsm.Machine) { m.Lost(x.p.w.now, peer, errors.New("the member has left the group")) })
	}
}

// stop ends the session.
func (x *mail) stop() {
	if x == nil {
		return
	}
	x.do(func(m *fsm.Machine) { m.Stop(errStopped) })
	x.over("the end of the session")
}

var (
	errStopped = errors.New("the session is over")
	errReset   = errors.New("connection reset")
)

// mends makes a connection again that was cut, without a round.
func (w *world) mends(from, to *peer) {
	w.after(w.rng.between(0, 10*time.Millisecond), from, func() {
		l := w.link(from, to)
		if l.alive || l.gen == 0 || to.stopped || to.lostPower || !w.reaches(from, to) || from.over || !slices.Contains(from.m.View().Members, to.uuid) {
			return
		}
		l.alive, l.last = true, w.now
		l.gen++
		w.tracef("link %d -> %d stands again", from.id, to.id)
		w.carries(l, from, to)
	})
}
