package sim

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/message/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// What trainers send each other, one correspondence in each loop, and what must be true of
// it whatever happens: what is received was sent to this peer, in this round, in the order
// of the sends, whole and once; who sends hears of that; nothing waits for what cannot come
// any more; memory is bounded.

// Tags of messages. Those that nobody waits for have their own.
const (
	mailTags = 2
	strayTag = 8
)

const (
	giveUpAfter = 8 * time.Second // of a trainer that waits
	soonEnough  = 4 * time.Second // after which nothing may wait for what has happened
)

// letter is one message at one end.
type letter struct {
	p        *peer
	t        fsm.Transfer
	sends    bool
	other    *peer // nil: from any member
	tag      uint64
	index    int // as it was begun at p
	epoch    uint64
	text     []byte // that it sends
	tried    time.Duration
	since    time.Duration // begun
	moving   time.Duration // since then
	begun    bool          // the machine has it
	canceled bool
	stray    bool // nobody waits for it
	over     time.Duration
	freed    bool
	inFrom   fsm.Conn // over which the other one was heard when it was over
	received *letter  // the receive that got it
	then     func()
}

// mailbook is what must agree about messages.
type mailbook struct {
	conns   fsm.Conn
	lists   map[occasion][]*item
	healthy bool // no member fails, and before the first one leaves no message

	sent, whole, refused, strays, failed, canceled, busy, anys int
	amid                                                       [numKinds]int
}

// item is a message that the members have agreed on.
type item struct {
	from, to int // of the members, by uuid
	tag      uint64
	size     int
	expected int  // by the receiver
	any      bool // ... from any member
	cancel   int  // 1: its sender gives it up soon, 2: its receiver
}

// list returns what the members of a group send each other in this loop.
func (b *mailbook) list(p *peer, members []wire.UUID) []*item {
	var all strings.Builder
	for _, u := range members {
		all.Write(u[:])
	}
	k := occasion{p.group, p.memory.revision, all.String()}
	if l, ok := b.lists[k]; ok {
		return l
	}
	if b.lists == nil {
		b.lists = map[occasion][]*item{}
	}
	r, n := &p.w.rng, len(members)
	any, sizes := map[[2]int]bool{}, map[[2]int]int{} // by receiver and tag
	l := []*item{}
	for range 2 + r.n(4*n) {
		x := &item{from: r.n(n), to: r.n(n - 1), tag: 1 + uint64(r.n(mailTags))}
		if x.to >= x.from {
			x.to++
		}
		at := [2]int{x.to, int(x.tag)}
		if _, known := any[at]; !known {
			any[at], sizes[at] = r.chance(3), []int{0, 3, 40, mailTogether, mailTogether + 1, 300}[r.n(6)]
		}
		if x.any, x.size = any[at], sizes[at]; !x.any {
			x.size = []int{0, 3, 40, mailTogether, mailTogether + 1, 300}[r.n(6)]
		}
		if x.expected = x.size; r.chance(12) && !x.any {
			x.expected = max(0, x.size+r.n(3)-1)
		}
		if r.chance(8) {
			x.cancel = 1 + r.n(2)
		}
		l = append(l, x)
	}
	b.lists[k] = l
	return l
}

// corresponds reports whether a message of p is under way that its trainer waits for.
func (p *peer) corresponds() bool {
	x := p.mesh.mail
	return x != nil && !p.dead && slices.ContainsFunc(x.live, func(l *letter) bool { return !l.stray })
}

// correspond exchanges messages with the other members and goes on when none is under way.
func (p *peer) correspond() {
	x, w, v := p.mesh.mail, p.w, p.m.View()
	if x == nil || v.LocalWorldSize < 2 || v.Epoch == 0 || x.running || !slices.Contains(v.Members, p.uuid) {
		p.askPending()
		return
	}
	p.trainer.doing = "messages"
	members := slices.SortedFunc(slices.Values(v.Members), wire.UUID.Compare)
	var mine []*letter
	if w.rng.chance(3) { // before the others: it is there when these come
		mine = append(mine, x.stray(members))
	}
	for _, i := range w.collector.mail.list(p, members) {
		from, to := w.byUUID(members[i.from]), w.byUUID(members[i.to])
		switch p {
		case from:
			l := x.letter(true, to, i.tag, i.size)
			l.canceled = i.cancel == 1
			mine = append(mine, l)
		case to:
			l := x.letter(false, from, i.tag, i.expected)
			if l.canceled = i.cancel == 2; i.any {
				l.other = nil
			}
			mine = append(mine, l)
		}
	}
	if w.plan.apart || w.rng.chance(2) { // it may be on its way when a round begins
		mine = append(mine, x.stray(members))
	}
	waits := 1
	done := func() {
		if waits--; waits == 0 && !p.ended(nil) {
			p.askPending()
		}
	}
	for _, l := range mine {
		if !l.stray {
			waits++
			l.then = done
		}
	}
	x.beginAll(mine, done)
}

func (x *mail) letter(sends bool, other *peer, tag uint64, size int) *letter {
	l := &letter{p: x.p, sends: sends, other: other, tag: tag, epoch: x.p.m.View().Epoch}
	l.t = fsm.Transfer{Tag: tag, Buf: make([]byte, size), Owner: l}
	if sends {
		for i := range l.t.Buf {
			l.t.Buf[i] = byte(x.p.w.rng.next())
		}
		l.text = slices.Clone(l.t.Buf)
	}
	return l
}

// named is the other end that its trainer names; zero: any member.
func (l *letter) named() (u wire.UUID) {
	if l.other != nil {
		u = l.other.uuid
	}
	return u
}

// stray is a message that nobody waits for.
func (x *mail) stray(members []wire.UUID) *letter {
	r := &x.p.w.rng
	other := x.p.w.byUUID(members[r.n(len(members))])
	sends := other != x.p && r.chance(2)
	if other == x.p {
		other = nil
	}
	l := x.letter(sends, other, strayTag+uint64(r.n(2)), []int{3, 300}[r.n(2)])
	l.stray = true
	return l
}

// beginAll begins messages one after another.
func (x *mail) beginAll(todo []*letter, done func()) {
	w := x.p.w
	switch {
	case len(todo) == 0 || x.p.over:
		for _, l := range todo {
			if !l.stray {
				done()
			}
		}
		done()
		return
	case w.rng.chance(3):
		w.after(w.rng.between(0, 3*time.Millisecond), x.p, func() { x.begin1(todo, done) })
		return
	}
	x.begin1(todo, done)
}

func (x *mail) begin1(todo []*letter, done func()) {
	l := todo[0]
	x.post(l, func(begun bool) {
		if !begun && !l.stray {
			done()
		}
		x.beginAll(todo[1:], done)
	})
}

// linked is what a shell looks for before a send: connections in both directions.
func (x *mail) linked(o *peer) bool {
	c := x.p.w.link(o, x.p).post
	return x.way(o.uuid) != nil && c != nil && !c.unheard
}

// post begins a message, after the connections that it takes; a send for which there is no
// allowance is tried again.
func (x *mail) post(l *letter, then func(begun bool)) {
	p, w := x.p, x.p.w
	if l.tried == 0 {
		l.tried = w.now
	}
	if !l.sends || p.over || x.linked(l.other) {
		x.start(l, then)
		return
	}
	p.background("mesh", func(c pfsm.CallID) pfsm.Event { return pfsm.CallMesh{Call: c} }, func(d pfsm.Done) {
		if d.Err != nil || !x.linked(l.other) {
			then(false)
			return
		}
		x.start(l, then)
	})
}

func (x *mail) start(l *letter, then func(begun bool)) {
	p, w := x.p, x.p.w
	var err error
	x.do(func(m *fsm.Machine) {
		l.begun = true // before what it may match ends it
		x.add(l)
		if l.sends {
			err = m.Send(l.named(), l.epoch, &l.t)
		} else {
			err = m.Receive(l.named(), l.epoch, &l.t)
		}
		if err != nil {
			l.begun = false
			x.letters, x.live = x.letters[:l.index], x.live[:len(x.live)-1]
		}
	})
	switch {
	case err == nil:
	case errors.Is(err, errs.Busy) && !x.running && l.epoch == x.epoch:
		if open := x.open(l.other); open < mailOpen {
			w.failf("peer %d: %d messages to peer %d are open, and no other is taken: %v", p.id, open, l.other.id, err)
		}
		if w.collector.mail.busy++; !l.stray && w.now < l.tried+giveUpAfter {
			w.after(w.rng.between(0, 20*time.Millisecond), p, func() { x.post(l, then) })
			return
		}
		then(false)
		return
	case errors.Is(err, errs.RankConnectionLost):
		if _, left := x.gone[l.named()]; !left && (l.other != nil || len(x.gone) == 0) {
			w.failf("peer %d: a message is refused, and nobody that it concerns has left: %v", p.id, err)
		}
		then(false)
		return
	case errors.Is(err, errs.Busy), errors.Is(err, errStopped):
		then(false)
		return
	default:
		w.failf("peer %d: a message: %v", p.id, err)
		return
	}
	if l.sends {
		w.collector.mail.sent++
	}
	then(true)
	if l.canceled {
		l.canceled = false
		w.after(w.rng.between(0, 15*time.Millisecond), p, func() { x.cancel(l) })
	}
	if !l.stray {
		w.after(giveUpAfter, p, func() {
			if l.over == 0 {
				x.judge(l)
				x.cancel(l)
			}
		})
	}
}

// add numbers a message that is begun.
func (x *mail) add(l *letter) {
	l.index, l.since = len(x.letters), x.p.w.now
	x.letters, x.live = append(x.letters, l), append(x.live, l)
}

// open counts the sends to a member that are not over.
func (x *mail) open(to *peer) (n int) {
	for _, l := range x.live {
		if l.sends && l.begun && l.t.State() != fsm.Over && l.other == to {
			n++
		}
	}
	return n
}

func (x *mail) cancel(l *letter) {
	if l.t.State() == fsm.Over {
		return
	}
	l.canceled = true
	x.p.w.tracef("peer %d gives a message up", x.p.id)
	x.do(func(m *fsm.Machine) { m.Cancel(&l.t, errors.New("the trainer gave up")) })
}

// halted notes over which connection the other end was heard when a message was over.
func (x *mail) halted(t *fsm.Transfer) {
	l, w := t.Owner.(*letter), x.p.w
	if o := w.byUUID(t.Peer()); o != nil {
		if c := w.link(o, x.p).post; c != nil && !c.unheard {
			l.inFrom = c.id
		}
	}
}

// freed takes the end of a message.
func (x *mail) freed(t *fsm.Transfer) {
	l, p, w := t.Owner.(*letter), x.p, x.p.w
	if l.freed || !l.begun && l.sends {
		w.failf("peer %d: a message ends twice, or was never begun", p.id)
	}
	l.freed, l.over, w.progress = true, w.now, w.now
	x.live = slices.DeleteFunc(x.live, func(o *letter) bool { return o == l })
	for _, o := range w.peers {
		if c := w.link(p, o).post; c != nil && slices.ContainsFunc(c.flying, func(f *parcel) bool { return f.part != nil && f.of == t }) {
			w.failf("peer %d: the buffer of a message is given back while it is sent", p.id)
		}
	}
	if slices.Contains(x.reads, t) {
		w.failf("peer %d: the buffer of a message is given back while it is read into", p.id)
	}
	w.collector.mail.over(w, l)
	if then := l.then; then != nil {
		w.after(0, p, then)
	}
}

// over checks how a message has ended.
func (b *mailbook) over(w *world, l *letter) {
	err := l.t.Err()
	w.tracef("peer %d: message %d ends, sends %v, tag %d: %v", l.p.id, l.t.Number(), l.sends, l.tag, err)
	if n := len(l.t.Buf); !l.sends && (errors.Is(err, errs.Mismatch) || l.moving == 0 && err != nil) && !bytes.Equal(l.t.Buf, make([]byte, n)) {
		w.failf("peer %d: a receive has failed without its data, and was written into", l.p.id)
	}
	if s := w.counterpart(l); s != nil && s.epoch != l.epoch {
		w.failf("peer %d: a message of round %d is that of round %d at peer %d", l.p.id, l.epoch, s.epoch, s.p.id)
	}
	switch {
	case err == nil && l.sends:
		if l.received == nil {
			w.failf("peer %d: a message counts as received that peer %d does not have", l.p.id, l.other.id)
		}
	case err == nil:
		b.arrived(w, l)
	case errors.Is(err, errs.Canceled):
		if b.canceled++; !l.canceled {
			w.failf("peer %d: nobody has given the message up: %v", l.p.id, err)
		}
	case errors.Is(err, errs.Mismatch):
		b.refused++
		if o := w.counterpart(l); o == nil || len(o.t.Buf) == len(l.t.Buf) {
			w.failf("peer %d: no sizes differ: %v", l.p.id, err)
		}
	case errors.Is(err, errs.RankConnectionLost), errors.Is(err, errStopped):
		gaveUp := func(l *letter) bool { return l != nil && l.canceled }
		if b.failed++; b.healthy && !w.leaving && !l.stray && !gaveUp(w.counterpart(l)) {
			w.failf("peer %d: a message fails without a reason: %v", l.p.id, err)
		}
	default:
		w.failf("peer %d: a message: %v", l.p.id, err)
	}
}

// counterpart is the other end of a message that is known there by its number, nil if
// there is none.
func (w *world) counterpart(l *letter) *letter {
	o := w.byUUID(l.t.Peer())
	if o == nil || l.t.Number() == 0 {
		return nil
	}
	for _, k := range o.mesh.mail.letters {
		if k.begun && k.sends != l.sends && k.t.Number() == l.t.Number() && (l.sends && k.t.Peer() == l.p.uuid || !l.sends && k.other == l.p) {
			return k
		}
	}
	return nil
}

// arrived checks a message that was received.
func (b *mailbook) arrived(w *world, l *letter) {
	s := w.counterpart(l)
	switch {
	case s == nil:
		w.failf("peer %d receives what nobody has sent to it", l.p.id)
		return
	case l.other != nil && s.p != l.other:
		w.failf("peer %d receives of peer %d what it expects of peer %d", l.p.id, s.p.id, l.other.id)
	case s.tag != l.tag:
		w.failf("peer %d receives tag %d as tag %d", l.p.id, s.tag, l.tag)
	case s.received != nil:
		w.failf("peer %d receives a message twice", l.p.id)
	case !bytes.Equal(s.text, l.t.Buf):
		w.failf("peer %d receives %x, and %x was sent", l.p.id, l.t.Buf, s.text)
	}
	s.received = l
	b.whole++
	if l.other == nil {
		b.anys++
	}
	if l.stray {
		b.strays++
	}
	for _, k := range s.p.mesh.mail.letters {
		if r := k.received; r != nil && k != s && r.p == l.p && r.epoch == l.epoch && k.tag == s.tag && (k.index < s.index) != (r.index < l.index) {
			w.failf("peer %d receives messages of peer %d in another order", l.p.id, s.p.id)
		}
	}
}

// over checks that nothing is under way any more.
func (x *mail) over(what string) {
	w := x.p.w
	for _, l := range x.live {
		if l.begun && l.t.State() != fsm.Over {
			w.failf("peer %d: a message outlives %s", x.p.id, what)
		}
	}
	for _, o := range w.peers {
		if l := x.m.Load(o.uuid); x.running && !x.p.over && (l.Open != 0 || l.OpenBytes != 0 || l.Held != 0 || l.HeldBytes != 0) {
			w.failf("peer %d: of messages with peer %d something is left: %+v", x.p.id, o.id, l)
		}
	}
}

// bounded checks what a member keeps for others.
func (b *mailbook) bounded(x *mail) {
	for _, o := range x.p.w.peers {
		l := x.m.Load(o.uuid)
		if l.Held < 0 || l.Held > mailOpen || l.HeldBytes < 0 || l.HeldBytes > mailAhead || l.Unsaid > 4*mailOpen {
			x.p.w.failf("peer %d keeps too much for peer %d: %+v", x.p.id, o.id, l)
		}
	}
}

// heard checks a word that comes.
func (b *mailbook) heard(c *post, f fsm.Frame) {
	w, x := c.w, c.to.mesh.mail
	if f.What != fsm.Done || w.link(c.from, c.to).post != c {
		return
	}
	for _, l := range x.letters {
		if l.sends && l.t.Number() == f.Number && l.other == c.from && l.over > 0 && errors.Is(l.t.Err(), errs.RankConnectionLost) &&
			l.inFrom == c.id && w.now < l.over+mailPatience/2 && l.epoch == x.epoch && !x.running && w.awake(c.from, 2*mailPatience) && w.awake(c.to, 2*mailPatience) {
			w.failf("peer %d: the word that peer %d has a message comes over a connection that stands, and it has failed", c.to.id, c.from.id)
		}
	}
}

// awake reports whether a peer has not stood still for so long, and runs.
func (w *world) awake(p *peer, d time.Duration) bool {
	return !p.dead && !p.over && !p.stopped && (p.mesh.awake == 0 || w.now > p.mesh.awake+d)
}

// judge checks that a message whose trainer gives up waits for something.
func (x *mail) judge(l *letter) {
	w, p := x.p.w, x.p
	if !w.awake(p, giveUpAfter) || l.epoch != x.epoch || x.running {
		return
	}
	ago := func(at time.Duration) bool { return at > 0 && w.now > at+soonEnough }
	for u, at := range x.gone {
		if ago(at) && (l.t.Peer() == u || l.t.Peer() == wire.UUID{}) {
			w.failf("peer %d waits for %s, which has left", p.id, u.Short())
		}
	}
	if l.t.Peer() != (wire.UUID{}) && !w.awake(w.byUUID(l.t.Peer()), giveUpAfter) {
		return
	}
	if o := w.counterpart(l); o != nil && ago(o.over) {
		w.failf("peer %d waits for a message that is over at peer %d: %v", p.id, o.p.id, o.t.Err())
	}
	if ago(l.moving) {
		w.failf("peer %d: a message is on its way with %s and does not come", p.id, l.t.Peer().Short())
	}
	for _, o := range w.peers {
		if o.mesh.mail == nil || o.mesh.mail.epoch != x.epoch || o.mesh.mail.running || !w.awake(o, giveUpAfter) {
			continue
		}
		for _, k := range o.mesh.mail.live {
			s, r := l, k
			if !l.sends {
				s, r = k, l
			}
			waits := s.sends && !r.sends && s.begun && r.begun && s.over == 0 && r.over == 0 && s.t.State() == fsm.Offered && r.t.State() == fsm.Waiting
			if waits && s.epoch == r.epoch && s.tag == r.tag && s.other == r.p && (r.other == nil || r.other == s.p) && ago(s.since) && ago(r.since) {
				w.failf("peer %d waits for a message of peer %d, which waits for that", r.p.id, s.p.id)
			}
		}
	}
}
