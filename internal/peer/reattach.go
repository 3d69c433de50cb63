package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// maxMasters bounds the list of them.
	maxMasters = wire.MaxAddresses
	// firstTry bounds the first tries of a list of masters, each round of which may
	// take twice as long as the one before: one that does not answer holds up the
	// others, and one that is far away has its turn.
	firstTry = time.Second
	// crowd is from how many members on they spread their returns to a master, over
	// so long.
	crowd     = 64
	crowdTime = 50 * time.Millisecond
	// maxPointers bounds how often Connect is sent on to another master in one round
	// through its list.
	maxPointers = 8
	// roundPause is between two rounds of Connect through a list of masters.
	roundPause = 100 * time.Millisecond
)

// control is the connection to the master, and what finds the next one.
type control struct {
	at atomic.Pointer[masterConn] // replaced by the holder of the box
	// away is what is known while no master has taken this peer back; nil: one has.
	away atomic.Pointer[Away]
	// pointed is where a master that does not lead has sent this peer on. Its reader
	// sets it.
	pointed atomic.Pointer[[]string]
	greeted atomic.Bool   // a master that leads has answered the registration
	again   atomic.Uint64 // how often a master has taken this peer back

	// The holder of the box has them.
	masters []string // as configured
	turn    int      // of them, which was dialled last
	first   []string // to dial before them
	tries   int      // since the loss
	last    string   // the one that was dialled last
}

// Away is a session without a master.
type Away struct {
	Since  time.Time
	Trying string // the master that is dialled
	Err    error  // why the last try failed; nil: there was none
}

// String says it for people.
func (a *Away) String() string {
	text := fmt.Sprintf("no master for %v, trying %s", time.Since(a.Since).Round(10*time.Millisecond), a.Trying)
	if a.Err != nil {
		text += fmt.Sprintf(" (%v)", a.Err)
	}
	return text
}

// note remembers where a master that does not lead has sent this peer.
func (c *control) note(m wire.M2CSessionRegistrationResponse) {
	if m.Accepted || len(m.Ext.Resuming.Leader) == 0 {
		c.greeted.Store(true)
		return
	}
	var at []string
	for _, a := range m.Ext.Resuming.Leader {
		at = append(at, a.String())
	}
	c.pointed.Store(&at)
}

// conn returns the connection to the master.
func (c *control) conn() *masterConn { return c.at.Load() }

// next returns which master to try, and for how long at most. The caller holds the box.
func (c *control) next(o *Options) (string, time.Duration) {
	bound := o.DialTimeout + o.HandshakeTimeout
	if len(c.masters) > 1 || len(c.first) > 0 {
		bound = min(bound, firstTry<<min(c.tries/max(1, len(c.masters)), 10))
	}
	c.tries++
	switch {
	case len(c.first) > 0:
		c.last, c.first = c.first[0], c.first[1:]
		return c.last, bound
	case c.tries == 1 && c.last != "":
		// The one that was lost comes first: it may be back at once. Another one may have
		// pointed to it.
		return c.last, bound
	case c.tries > 1:
		c.turn = (c.turn + 1) % len(c.masters)
		if c.masters[c.turn] == c.last { // it has had its turn
			c.turn = (c.turn + 1) % len(c.masters)
		}
	}
	c.last = c.masters[c.turn]
	return c.last, bound
}

// attached is what comes of a Reattach that has found a master: its answer, and the
// connection, which is the holder's of the box when taken is closed.
type attached struct {
	fsm.Attached
	conn  *masterConn
	rest  *bufio.Reader // what has come behind the answer
	taken chan struct{}
}

// seek connects to the master that leads. Where several are named, one of them may not
// answer, close the connection or point to another one.
func seek(ctx context.Context, opt Options) (*Session, error) {
	masters, _ := bounds.Endpoints(opt.Master, maxMasters) // open checks it again
	began := time.Now()
	var first []string
	// Each has its turn, and then the rounds go on for a while: they may be about to choose.
	over := func(tries int) bool { return tries+1 >= len(masters) && time.Since(began) > opt.DialTimeout }
	var followed []string // pointers, in this round: nobody may be there
	for tries := 0; ; {
		s, err := connect(ctx, opt, first, tries)
		if err == nil {
			return s, nil
		}
		c := &s.master
		first = nil
		if p := c.pointed.Load(); p != nil {
			first = slices.DeleteFunc(slices.Clone(*p), func(a string) bool { return slices.Contains(followed, a) })
		}
		switch {
		case ctx.Err() != nil:
			return nil, err
		case len(first) > 0 && len(followed) < maxPointers:
			followed = append(followed, first...)
			continue
		case len(masters) < 2 || c.greeted.Load() || errs.CodeOf(err) == errs.InvalidArgument || over(tries):
			return nil, err
		}
		first = nil
		if tries++; tries%len(masters) == 0 {
			if wait(ctx, roundPause) != nil {
				return nil, err
			}
			followed = nil
		}
	}
}

// wait waits for d, or for the end of ctx, which it returns.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dial connects to the first master that can be reached: of those that this peer was
// sent to, and then of its own.
func (s *Session) dial(ctx context.Context) error {
	c := &s.master
	var failed []error
	for range len(c.first) + len(c.masters) {
		pointed := len(c.first) > 0
		addr, bound := c.next(&s.opt)
		short, cancel := context.WithCancel(ctx)
		if pointed { // it may be an address of another network
			cancel()
			short, cancel = context.WithTimeout(ctx, bound)
		}
		mc, err := dialMaster(short, s.opt, addr, s.names.guard)
		cancel()
		if err == nil {
			c.at.Store(mc)
			return nil
		}
		if ctx.Err() != nil {
			return errs.New(errs.Canceled, "connect", ctx.Err()).WithPhase("dial").WithPeer(addr)
		}
		if len(c.masters) > 1 {
			err = fmt.Errorf("%s: %w", addr, err)
		}
		failed = append(failed, err)
	}
	return errs.New(errs.MasterConnectionFailed, "connect", errors.Join(failed...)).WithPeer(s.opt.Master).
		WithHint("check that a master listens there")
}

// changeMaster does what an effect says about the master of the session. The caller
// holds the box.
func (s *Session) changeMaster(e fsm.Effect) {
	switch e := e.(type) {
	case fsm.Reattach:
		s.reattach(e)
	case fsm.Reattached:
		s.reattached()
	case fsm.Disconnect:
		s.disconnect(e.Reason)
	}
}

// reattach finds a master, as the effect says. The caller holds the box.
func (s *Session) reattach(e fsm.Reattach) {
	c := &s.master
	away := Away{Since: time.Now()}
	if was := c.away.Load(); was != nil {
		away.Since, away.Err = was.Since, was.Err
	} else {
		c.tries = 0
	}
	if len(e.At) > 0 {
		c.first = c.first[:0]
		for _, a := range e.At {
			c.first = append(c.first, a.String())
		}
	}
	addr, bound := c.next(&s.opt)
	away.Trying = addr
	c.away.Store(&away)
	old := c.conn()
	pause := s.spread(e.After / time.Duration(len(c.masters))) // it is for a round through all of them
	s.publishView()
	s.spawn(func() {
		// What is on its way from the old connection comes before what the new one brings.
		old.close()
		old.work.Wait()
		ev, err := s.greet(pause, addr, bound, e.Hello)
		if err != nil {
			failed := Away{Since: away.Since, Trying: addr, Err: err}
			c.away.Store(&failed)
			s.handle(fsm.NotAttached{Err: err})
			return
		}
		s.handle(ev)
		select {
		case <-ev.taken:
		case <-s.done:
			select {
			case <-ev.taken:
			default:
				ev.conn.conn.Close()
			}
		}
	})
}

// spread varies a pause, so that peers that have lost a master together do not come to
// the next one together.
func (s *Session) spread(d time.Duration) time.Duration {
	if d > 0 {
		return d/2 + rand.N(d)
	}
	if s.m.View().LocalWorldSize < crowd {
		return 0
	}
	return rand.N(crowdTime)
}

// greet dials the master at addr after a pause and says hello. bound is for all but the pause.
func (s *Session) greet(pause time.Duration, addr string, bound time.Duration, hello wire.Packet) (ev attached, err error) {
	if err := wait(s.ctx, pause); err != nil {
		return ev, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel()
	mc, err := dialMaster(ctx, s.opt, addr, s.names.guard)
	if err != nil {
		return ev, err
	}
	stop := context.AfterFunc(ctx, func() { mc.conn.SetDeadline(time.Unix(1, 0)) })
	ev = attached{conn: mc, rest: bufio.NewReaderSize(mc, 64<<10), taken: make(chan struct{})}
	ev.Packet, err = askBack(mc, ev.rest, hello)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		mc.conn.Close()
		if ctx.Err() != nil && s.ctx.Err() == nil {
			err = fmt.Errorf("it did not answer within %v", bound)
		}
		return ev, err
	}
	ev.Broken = s.broken()
	return ev, nil
}

// askBack says hello to a master and returns its answer.
func askBack(mc *masterConn, r *bufio.Reader, hello wire.Packet) (m wire.M2CSessionRegistrationResponse, err error) {
	if _, err := mc.conn.Write(wire.Append(nil, hello)); err != nil {
		return m, err
	}
	p, err := wire.Read(r, wire.M2C, wire.MaxPacket)
	if err != nil {
		return m, err
	}
	m, ok := p.(wire.M2CSessionRegistrationResponse)
	if !ok {
		return m, fmt.Errorf("it answered with %T", p)
	}
	return m, nil
}

// broken returns the neighbours whose connections to this peer have ended by themselves.
func (s *Session) broken() (gone []wire.UUID) {
	v := s.View()
	n := len(v.Ring)
	if n < 2 || v.Rank < 0 {
		return nil
	}
	next, prev := v.Ring[(v.Rank+1)%n], v.Ring[(v.Rank+n-1)%n]
	if s.endedTo(next) {
		gone = append(gone, next)
	}
	if s.endedFrom(prev) && !slices.Contains(gone, prev) {
		gone = append(gone, prev)
	}
	return gone
}

// endedTo and endedFrom report whether there were connections to and from a peer, and all
// have ended.
func (s *Session) endedTo(peer wire.UUID) bool {
	pool := s.hub.Senders(peer)
	return len(pool) > 0 && !slices.ContainsFunc(pool, func(o *link.Sender) bool { return !o.Broken() })
}

func (s *Session) endedFrom(peer wire.UUID) bool {
	pool := s.hub.Receivers(peer)
	return len(pool) > 0 && !slices.ContainsFunc(pool, func(r *link.Receiver) bool { return !r.Closed() })
}

// connectionEnded tells the machine of the last connection to or from a peer that has ended.
// A goroutine of the data path calls it, which does not step the machine.
func (s *Session) connectionEnded(peer wire.UUID) {
	if to := s.endedTo(peer); to || s.endedFrom(peer) {
		s.box.post(fsm.LinkEnded{Peer: peer, Incoming: !to})
	}
}

// take makes the connection of a master that was found the one to the master. The
// caller holds the box.
func (s *Session) take(ev attached) {
	close(ev.taken)
	ev.conn.native.Store(ev.Packet.Ext.Native)
	s.master.at.Store(ev.conn)
	if s.ctx.Err() != nil { // nothing reads it, and a crash may have closed the one before
		ev.conn.conn.Close()
		close(ev.conn.ended)
		return
	}
	s.converse(ev.conn, ev.rest)
}

// converse begins to read and write the connection to the master.
func (s *Session) converse(mc *masterConn, r *bufio.Reader) {
	mc.work.Add(2)
	s.spawn(func() {
		defer mc.work.Done()
		s.readMaster(mc, r)
	})
	s.spawn(func() {
		defer mc.work.Done()
		mc.write(func(err error) { s.handle(fsm.MasterGone{Err: err}) })
	})
}

// reattached notes that a master has taken this peer back.
func (s *Session) reattached() {
	s.master.again.Add(1)
	s.master.away.Store(nil)
	s.publishView()
}
