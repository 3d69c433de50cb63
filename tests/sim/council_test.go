package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/lead"
	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/quorum"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	seatCount = 3
	seatTick  = 50 * time.Millisecond
	// seatBound is how long a peer waits for a master that it has dialled.
	seatBound = time.Second
	// standby is how long one that does not lead keeps a connection.
	standby = 100 * time.Millisecond
)

// council are the masters of a run, of which one leads.
type council struct {
	w      *world
	slip   slip
	seats  []*seat
	rough  bool // peers die, or are cut off from masters, so that some may be dropped
	opened bool // all peers have begun

	parted [seatCount][seatCount]time.Duration // messages from one to another are lost until then
	lossy  time.Duration                       // some of all are, until then
	delay  time.Duration
	closed map[road]time.Duration // what is sent on it arrives later

	faults  []int // strike when peers have been told so much
	told    int   // packets of masters that peers have taken
	strikes int
	calm    time.Duration // all faults are over by then
	struck  [numStrikes]int

	number uint64 // of the last question
	record record3
}

// road leads from a peer to a master, or back.
type road struct {
	peer, seat int
	back       bool
}

// seat is a process with a master among several, and the disk of its machine.
type seat struct {
	c       *council
	id      int
	addr    netip.AddrPort
	members quorum.Members
	q       *quorum.Machine // nil: the process is down
	power   bool            // ... and so is the machine
	life    int
	disk    []byte
	stops   time.Duration // it stands still until then
	held    []func()      // what happened meanwhile
	last    time.Duration // when the last word of one goroutine to another arrives

	reign  *reign
	served *reign  // of m
	m      *master // nil: it does not lead
	key    []byte
	kept   []byte // what it began with when it led last
	writes uint64 // in this reign
	asks   []ask
	number uint64 // of the first of them, if that is out
}

// reign is one time of leading.
type reign struct {
	seat  int
	term  uint32
	since time.Duration
	found stamp
}

// ask is what a master wants of its authority.
type ask struct {
	commit []byte // nil: it asks whether it leads
	then   func()
}

// stamp tells registries apart: the n-th of a term.
type stamp struct {
	term uint32
	n    uint64
}

func (s stamp) before(o stamp) bool { return s.term < o.term || s.term == o.term && s.n < o.n }

const stampSize = 12

func (s stamp) seal(kept []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, s.term)
	return append(binary.BigEndian.AppendUint64(b, s.n), kept...)
}

// unseal takes a registry apart; nothing at all is the zero of both.
func unseal(b []byte) (s stamp, kept []byte) {
	if len(b) < stampSize {
		return s, nil
	}
	return stamp{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])}, b[stampSize:]
}

// newCouncil starts the masters.
func newCouncil(w *world, wrong slip) *council {
	c := &council{w: w, slip: wrong, delay: 2 * time.Millisecond, closed: map[road]time.Duration{}, record: newRecord3()}
	var names []string
	for i := range seatCount {
		names = append(names, fmt.Sprintf("10.9.0.%d:48148", i+1))
	}
	for i, name := range names {
		members, err := quorum.NewMembers(names, name)
		if err != nil {
			panic(err)
		}
		s := &seat{c: c, id: i, addr: netip.MustParseAddrPort(name), members: members}
		c.seats = append(c.seats, s)
		s.start()
		w.after(w.rng.between(0, seatTick), nil, s.tick)
	}
	w.master = &master{w: w, dead: true}
	return c
}

// start begins the process.
func (s *seat) start() {
	if s.q != nil {
		return
	}
	disk := s.disk
	if s.c.slip == forgetsDisk {
		disk = nil
	}
	q, err := quorum.New(quorum.Config{Members: s.members, State: disk, Rand: s.c.w.rng.n})
	if err != nil {
		s.c.w.failf("master %d cannot read what it wrote: %v", s.id, err)
		return
	}
	s.c.w.tracef("master %d starts", s.id)
	s.q, s.power, s.stops, s.held = q, false, 0, nil
}

// down ends the process, or the machine that it runs on. The others and the peers notice
// the end of a process by its connections, and that of a machine by its silence.
func (s *seat) down(power bool, back time.Duration) {
	w := s.c.w
	if s.q == nil {
		return
	}
	w.tracef("FAULT: master %d is killed, with its machine %v, and comes back after %v", s.id, power, back)
	m := s.m
	s.quit(!power)
	s.life++
	s.q, s.power, s.reign, s.held, s.stops = nil, power, nil, nil, 0
	for _, o := range s.c.seats {
		if o != s && !power && !w.rng.chance(3) {
			w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { o.step(quorum.Broken{From: s.members.Self()}) })
		}
	}
	w.after(back, nil, func() {
		s.start()
		if m != nil && power { // its machine knows nothing of their connections
			m.abandon(beat)
		}
	})
}

// quit ends the master of this process, and not its part among the others.
func (s *seat) quit(ends bool) {
	m := s.m
	s.m, s.served, s.asks, s.number = nil, nil, nil, 0
	if m == nil {
		return
	}
	m.dead = true
	if ends {
		m.abandon(s.c.w.within(5 * time.Millisecond))
	}
}

// later does something in the process: when it goes on, if it is stopped.
func (s *seat) later(do func()) {
	switch {
	case s.q == nil:
	case s.c.w.now < s.stops:
		s.held = append(s.held, do)
	default:
		do()
	}
}

// soon does something in the process a moment later, as another goroutine would.
func (s *seat) soon(do func()) {
	w, life := s.c.w, s.life
	s.last = max(s.last, w.now+w.rng.between(0, time.Millisecond))
	w.at(s.last, nil, func() {
		if s.life == life {
			s.later(do)
		}
	})
}

// stop lets the process stand still.
func (s *seat) stop(d time.Duration) {
	w, life := s.c.w, s.life
	s.stops = max(s.stops, w.now+d)
	if s.m != nil {
		s.m.stops = s.stops
	}
	w.at(s.stops+w.rng.between(0, 3*time.Millisecond), nil, func() {
		if s.life != life || w.now < s.stops {
			return
		}
		held := s.held
		s.held = nil
		for _, do := range held {
			s.later(do)
		}
	})
}

func (s *seat) tick() {
	if w := s.c.w; w.now >= s.stops { // who stands still loses its ticks
		s.step(quorum.Tick{})
	}
	s.c.w.after(s.c.w.rng.between(seatTick-2*time.Millisecond, seatTick+2*time.Millisecond), nil, s.tick)
}

func saves(e quorum.Effect) int {
	if _, ok := e.(quorum.Save); ok {
		return 1
	}
	return 0
}

// step gives the machine of this seat an event. It may die between any two effects.
func (s *seat) step(ev quorum.Event) {
	s.later(func() {
		w, life := s.c.w, s.life
		effects := s.q.Step(ev)
		if s.c.slip == sendsFirst {
			slices.SortStableFunc(effects, func(a, b quorum.Effect) int { return saves(a) - saves(b) })
		}
		done := len(effects)
		if s.c.mayStrike() && slices.ContainsFunc(effects, func(e quorum.Effect) bool { return saves(e) > 0 }) && w.rng.chance(40) {
			done = w.rng.n(len(effects) + 1)
		}
		for _, e := range effects[:done] {
			if s.life == life {
				s.do(e)
			}
		}
		if done < len(effects) && s.life == life {
			s.c.strikes--
			s.down(w.rng.chance(2), w.rng.between(0, time.Second))
		}
	})
}

func (s *seat) do(e quorum.Effect) {
	switch e := e.(type) {
	case quorum.Save:
		s.disk = e.State
	case quorum.Send:
		s.c.transmit(s, e)
	case quorum.Leads:
		s.leads(e)
	case quorum.Lost:
		s.lost(e)
	case quorum.Committed:
		s.answered(e.Number)
	case quorum.Confirmed:
		s.answered(e.Number)
	case quorum.Failed:
		s.c.w.failf("master %d: %v", s.id, e.Err)
	}
}

// transmit may lose, delay and double a message. Messages overtake each other.
func (c *council) transmit(from *seat, e quorum.Send) {
	w := c.w
	to := c.seats[slices.IndexFunc(c.seats, func(o *seat) bool { return o.members.Self() == e.To })]
	for range 1 + w.rng.n(20)/19 {
		if w.now < c.lossy && w.rng.chance(4) {
			return
		}
		delay := w.rng.between(100*time.Microsecond, c.delay)
		if c.mayStrike() && w.rng.chance(200) {
			delay += w.rng.between(0, 800*time.Millisecond)
		}
		w.after(delay, nil, func() {
			if w.now >= c.parted[from.id][to.id] {
				to.step(quorum.Message{From: from.members.Self(), Body: e.Body})
			}
		})
	}
}

// leads begins a reign; the shell hears of it a moment later.
func (s *seat) leads(e quorum.Leads) {
	w := s.c.w
	found, kept := unseal(e.Registry)
	r := &reign{seat: s.id, term: e.Term, since: w.now, found: found}
	w.tracef("master %d leads in term %d, and has found %v", s.id, r.term, found)
	s.reign, s.writes = r, 0
	s.soon(func() { s.serve(r, kept) })
}

// serve begins a master with what the last one has left.
func (s *seat) serve(r *reign, b []byte) {
	w := s.c.w
	if s.reign != r {
		return
	}
	s.quit(true)
	if s.c.slip == ownRegistry && s.kept != nil {
		b = s.kept
		r.found = s.c.record.began[s.id]
	}
	s.c.record.began[s.id] = r.found
	s.c.record.leads(w, r)
	kept, err := lead.Decode(b)
	if err != nil {
		w.failf("master %d: %v", s.id, err)
		return
	}
	s.kept, s.served = b, r
	begin := func() {
		s.key = kept.Key
		cfg := w.masterConfig(r.term)
		cfg.Term, cfg.Registry, cfg.IdentityKey, cfg.DropLost = r.term, kept.Registry, kept.Key, false
		switch s.c.slip {
		case reusesTerm:
			cfg.Term = max(1, r.term-1)
		case neverAsks:
			cfg.Authority = false
		}
		s.begin(r, cfg)
	}
	if kept.Key != nil {
		begin()
		return
	}
	kept.Key = make([]byte, lead.KeySize)
	for i := range kept.Key {
		kept.Key[i] = byte(w.rng.next())
	}
	s.ask(ask{s.sealed(kept.Encode()), begin})
}

// begin serves with a machine.
func (s *seat) begin(r *reign, cfg mfsm.Config) {
	w := s.c.w
	s.m, s.served = w.newMaster(cfg), r
	s.m.seat, s.m.watch = s, newWatch(cfg)
	s.m.stops = s.stops
	w.master = s.m
	w.heirs.life++
	s.m.step(mfsm.Tick{})
}

// sealed is what is committed next.
func (s *seat) sealed(kept []byte) []byte {
	s.writes++
	return stamp{s.reign.term, s.writes}.seal(kept)
}

// lost ends a reign; the shell hears of it a moment later.
func (s *seat) lost(e quorum.Lost) {
	s.c.w.tracef("master %d has lost the lead: %s", s.id, e.Why)
	r := s.reign
	if r == nil {
		s.c.w.failf("master %d has lost what it did not have", s.id)
		return
	}
	s.reign = nil
	if s.c.slip == staysOn {
		return
	}
	s.asks, s.number = nil, 0
	s.soon(func() {
		if s.served == r {
			s.quit(true)
		}
	})
}

// ask has the authority do something, one after the other.
func (s *seat) ask(a ask) {
	if s.reign == nil || s.reign != s.served {
		return // the master is about to hear that it has lost the lead
	}
	s.asks = append(s.asks, a)
	if s.number == 0 {
		s.pump()
	}
}

func (s *seat) pump() {
	if len(s.asks) == 0 || s.reign == nil {
		return
	}
	c := s.c
	c.number++
	s.number = c.number
	number, term, a := s.number, s.reign.term, s.asks[0]
	c.record.asks(c.w, number, term)
	alone := a.commit == nil && c.slip == confirmsAlone || a.commit != nil && c.slip == commitsAlone
	s.soon(func() {
		if a.commit == nil {
			s.step(quorum.Confirm{Number: number, Term: term})
		} else {
			s.step(quorum.Commit{Number: number, Term: term, Registry: a.commit})
		}
		if alone {
			s.answered(number)
		}
	})
}

// answered takes an answer of the machine.
func (s *seat) answered(number uint64) {
	if number != s.number || len(s.asks) == 0 {
		return
	}
	a := s.asks[0]
	s.asks, s.number = s.asks[1:], 0
	if a.commit != nil {
		at, _ := unseal(a.commit)
		s.c.w.tracef("master %d has committed %v", s.id, at)
		s.c.record.committed(s.c.w, at)
	} else {
		s.c.record.confirmed(s.c.w, number)
	}
	r := s.reign
	s.soon(func() {
		if s.reign == r {
			a.then()
			s.pump()
		}
	})
}

// retire ends the process in good order: its peers are told, the next master finds all
// that this one knew, and it gives the lead up.
func (s *seat) retire(back time.Duration) {
	w, m, life := s.c.w, s.m, s.life
	w.tracef("FAULT: master %d ends in good order", s.id)
	m.take(mfsm.Ending{})
	registry := lead.Kept{Key: s.key, Registry: m.m.Registry()}
	end := func(after time.Duration) {
		w.after(after, nil, func() {
			if s.life == life {
				s.down(false, back)
			}
		})
	}
	s.soon(func() {
		r := s.served
		s.quit(true)
		if s.reign == nil || s.reign != r {
			end(0)
			return
		}
		s.served = r // of what is left to write
		end(2500 * time.Millisecond)
		s.ask(ask{s.sealed(registry.Encode()), func() {
			s.step(quorum.Yield{})
			end(w.rng.between(0, 500*time.Millisecond))
		}})
	})
}

// leader returns the seat that leads, or says so; nil: none does.
func (c *council) leader() (l *seat) {
	for _, s := range c.seats {
		if s.q != nil && s.reign != nil && (l == nil || s.reign.term > l.reign.term) {
			l = s
		}
	}
	return l
}

// open reports whether newcomers find a master.
func (c *council) open() bool {
	m := c.w.master
	return !m.dead && m.seat != nil && m.seat.m == m && c.w.now >= m.stops
}

// holds returns how long what is sent now stays on its way.
func (w *world) holds(p *peer, m *master, back bool) time.Duration {
	if w.council == nil || m == nil || m.seat == nil {
		return 0
	}
	return max(0, w.council.closed[road{p.id, m.seat.id, back}]-w.now)
}

// seek looks for a master through the list of them, as the shell of a peer does.
func (p *peer) seek(e pfsm.Reattach) {
	w := p.w
	c := w.council
	if p.line.dials == 0 {
		p.line.first = nil
	}
	for _, at := range e.At {
		if i := slices.IndexFunc(c.seats, func(s *seat) bool { return s.addr == at }); i >= 0 {
			p.line.first = append(p.line.first, i)
		}
	}
	p.line.dials++
	to := p.line.last
	switch {
	case len(p.line.first) > 0:
		to, p.line.first = p.line.first[0], p.line.first[1:]
	case p.line.dials > 1:
		p.line.turn = (p.line.turn + 1) % seatCount
		if p.line.turn == p.line.last {
			p.line.turn = (p.line.turn + 1) % seatCount
		}
		to = p.line.turn
	}
	p.line.last = to
	p.hangUp()
	w.lastClient++
	client := w.lastClient
	p.line.client, p.line.dialing, p.line.to = client, true, nil
	w.after(e.After/seatCount+w.rng.between(100*time.Microsecond, 2*time.Millisecond), p, func() {
		if p.line.client == client && !p.over {
			p.knock(c.seats[to], e.Hello)
		}
	})
}

// knock dials a master and says hello.
func (p *peer) knock(s *seat, hello wire.Packet) {
	w, client := p.w, p.line.client
	mine := func() bool { return p.line.client == client && p.line.dialing && !p.over && !p.dead }
	fail := func(after time.Duration, why string) {
		w.after(after, p, func() {
			if mine() {
				p.hangUp()
				p.lineEnded(client, errors.New(why))
			}
		})
	}
	fail(seatBound, "no answer")
	wait := max(w.council.closed[road{p.id, s.id, false}], w.council.closed[road{p.id, s.id, true}], w.now) - w.now
	switch {
	case s.q == nil && s.power, wait >= seatBound:
		return
	case s.q == nil:
		fail(wait, "refused")
		return
	}
	enter := func() {
		w.tracef("peer %d -> %s at master %d", p.id, show(hello), s.id)
		p.line.to, p.line.cut = s.m, false
		p.line.flying, p.line.final = 0, false
		s.m.conns[client] = p
		p.toMaster(mfsm.Connected{Client: client, Remote: netip.AddrPortFrom(p.ip, 9), Who: p.who()})
		p.toMaster(mfsm.PacketIn{Client: client, Packet: hello})
	}
	w.after(wait, nil, func() {
		s.later(func() {
			switch {
			case !mine():
				return
			case s.m != nil:
				enter()
				return
			case w.council.slip == followerAdmits:
				s.usurp()
				enter()
				return
			}
			w.after(w.rng.between(0, standby), nil, func() {
				s.later(func() {
					switch {
					case !mine():
					case s.m != nil:
						enter()
					default:
						s.turnAway(p, client)
					}
				})
			})
		})
	})
}

// turnAway sends a peer on to the master that leads, or away.
func (s *seat) turnAway(p *peer, client mfsm.ClientID) {
	w := p.w
	i := slices.IndexFunc(s.c.seats, func(o *seat) bool { return o.members.Self() == s.q.Leader() })
	lat := w.rng.between(100*time.Microsecond, 2*time.Millisecond)
	w.after(lat, p, func() {
		switch {
		case p.line.client != client || !p.line.dialing || p.over:
		case i < 0 || i == s.id:
			p.lineEnded(client, errors.New("closed"))
		default:
			r := wire.M2CSessionRegistrationResponse{Ext: wire.Ext{Native: true}}
			r.Ext.Resuming.Leader = []netip.AddrPort{s.c.seats[i].addr}
			p.attach(r)
		}
	})
}

// usurp serves without the lead, with what this master knows of the run.
func (s *seat) usurp() {
	w := s.c.w
	kept, _ := lead.Decode(s.kept)
	if kept.Key == nil {
		kept.Key = s.key
	}
	cfg := w.masterConfig(0)
	cfg.Term, cfg.Registry, cfg.IdentityKey = uint32(s.q.Status().Term), kept.Registry, kept.Key
	s.begin(s.reign, cfg)
}

// keeps is what a registry is written down as.
func (s *seat) keeps(r mfsm.Registry) []byte {
	if s.reign == nil {
		return nil
	}
	return s.sealed(lead.Kept{Key: s.key, Registry: r}.Encode())
}

// rough reports whether peers may lose their place.
func (w *world) rough() bool { return w.council != nil && w.council.rough }

// excuses reports whether others may go on without p.
func (w *world) excuses(p *peer) bool { return w.rough() && w.council.record.dropped[p.uuid] }

// mayEnd reports whether a session may end without its trainer: one that was dropped, or
// had not begun.
func (w *world) mayEnd(p *peer) bool {
	return w.council != nil && (!p.m.View().Connected || w.excuses(p))
}

// tryAgain starts a newcomer once more that had lost its master before it was one of the
// members.
func (p *peer) tryAgain() {
	w := p.w
	if p.memory.torn && p.native && p.trainer.lives < 2 {
		return // it comes back
	}
	w.served(func() {
		w.spawn(p.group, p.native, p.trainer.loops)
		n := w.peers[len(w.peers)-1]
		n.memory = p.memory
	})
}

// abandon ends the connections to m, each at a time of its own.
func (m *master) abandon(within time.Duration) {
	w := m.w
	var parts []part
	for _, p := range w.peers {
		if p.line.to == m && m.conns[p.line.client] == p && !p.line.cut {
			parts = append(parts, part{p: p, at: w.rng.between(0, within) + w.holds(p, m, true)})
		}
	}
	m.hangUp(parts)
}
