package message

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// Together is the largest message that travels with its offer.
	Together = 64 << 10
	// maxAhead bounds what travels with offers to one member and is not answered.
	maxAhead = 1 << 20
	// MaxOpen bounds the messages to one member that are not answered.
	MaxOpen = 1024

	rankEngine = 30 // above link.RankConn
)

// Engine has the messages of one member. Safe for concurrent use.
type Engine struct {
	hub      *link.Hub
	frame    int           // bytes of data in a frame
	patience time.Duration // partTime

	mu       invariants.Mutex
	closed   error
	epoch    uint64                  // messages may be sent in it; 0: none may
	next     uint64                  // of the round that runs: what comes for it is kept
	members  []wire.UUID             // of the group of next
	gone     []departure             // of members, since the last round
	partings map[wire.UUID]parting   // by member
	numbers  uint64                  // of messages that were sent
	links    map[wire.UUID]*courier  // by member
	sends    map[name]*Transfer      // offered and not answered
	taken    map[name]*Transfer      // receives that have taken an offer and wait for data
	recvs    []*Transfer             // without an offer, in order
	offers   []*offer                // without a receive, in order
	held     map[wire.UUID]allowance // what the offers of a member take
	quiet    chan struct{}           // closed when a courier has nothing to send; nil: nobody waits
	later    later
}

// allowance is how many messages of a member are offered, and their bytes that came with
// them.
type allowance struct{ count, bytes int }

// name is what a message is called by both ends.
type name struct {
	peer   wire.UUID // the other end
	number uint64    // the sender's
}

// offer is one that came.
type offer struct {
	name
	tag, epoch uint64
	size       uint64
	data       []byte // nil: it is to be taken
}

// later is what is to be done when Engine.mu is let go, in this order.
type later struct {
	drops []*Transfer // whose data is not to be sent any more
	sends []*Transfer // whose data is to be sent
	kicks []*courier
	ended []*Transfer
}

// NewEngine returns an engine on the connections of hub, which asks router for frames of
// messages. The hub has no connections yet.
func NewEngine(hub *link.Hub) *Engine {
	e := &Engine{
		hub: hub, frame: hub.Config().FrameBytes, patience: partTime, links: map[wire.UUID]*courier{}, sends: map[name]*Transfer{},
		taken: map[name]*Transfer{}, held: map[wire.UUID]allowance{}, partings: map[wire.UUID]parting{},
	}
	e.mu.Rank(rankEngine, "message.Engine.mu")
	hub.Share(mark, router{e})
	return e
}

// unlock lets go of e.mu and does what could not be done with it.
func (e *Engine) unlock() {
	l := e.later
	e.later = later{}
	e.mu.Unlock()
	for _, t := range l.drops {
		t.out.on.Detach(t)
	}
	for _, t := range l.sends {
		if pool := e.hub.Senders(t.peer); len(pool) > 0 {
			t.out.on = pool[0]
			e.mu.Lock()
			t.out.attached = true
			e.mu.Unlock()
			pool[0].Attach(t) // unless it has failed meanwhile
			pool[0].Kick(false, true)
			if !pool[0].Broken() {
				continue
			}
		}
		t.Fail(errNone)
	}
	for _, c := range l.kicks {
		c.push()
	}
	for _, t := range l.ended {
		close(t.done)
	}
}

var errNone = errors.New("there is no connection to the peer")

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
func (e *Engine) Expect(epoch uint64, members []wire.UUID) {
	e.mu.Lock()
	defer e.unlock()
	e.failAll(func(*Transfer) bool { return true }, func(t *Transfer) error {
		return errs.New(errs.RankConnectionLost, t.op(), errors.New("a round has begun")).WithHint("repeat it after the round")
	})
	e.epoch, e.next, e.members, e.gone = 0, epoch, slices.Clone(members), nil
	e.stay()
	e.forget(func(o *offer) bool { return o.epoch != epoch || !slices.Contains(members, o.peer) })
	for peer := range e.links {
		if !slices.Contains(members, peer) {
			delete(e.links, peer)
		}
	}
}

// Begin says that the round is over: messages are of its epoch.
func (e *Engine) Begin() {
	e.mu.Lock()
	defer e.unlock()
	e.epoch = e.next
}

// Lost says that a member has gone, until the next round. What concerns it fails as soon
// as everything that it has sent is read, receives from any member included: nobody knows
// whether it would have sent.
func (e *Engine) Lost(peer wire.UUID, cause error) {
	heard := e.hears(peer)
	e.mu.Lock()
	defer e.unlock()
	if slices.Contains(e.members, peer) {
		e.gone = append(e.gone, departure{peer, cause})
	}
	e.part(peer, heard, cause)
}

// partTime bounds how long a member from which connections are still open may have sent
// something that was not read. It is long for bytes that are in this host's buffers.
const partTime = time.Second

// parting is of a member that may have gone, and whose last words are still being read:
// its answer that it has a message may be behind the news that it has left.
type parting struct {
	cause error
	end   *time.Timer
}

// hears reports whether a connection from peer is open. e.mu is not held.
func (e *Engine) hears(peer wire.UUID) bool {
	return slices.ContainsFunc(e.hub.Receivers(peer), func(r *link.Receiver) bool { return !r.Closed() })
}

// part fails what concerns peer: at once if nothing can come from it any more, else when
// the last connection from it ends. e.mu is held.
func (e *Engine) part(peer wire.UUID, heard bool, cause error) {
	p, parts := e.partings[peer]
	switch {
	case !heard && parts:
		e.parted(peer)
	case !heard:
		e.leave(peer, cause)
	case !parts:
		p.cause = cause
		p.end = time.AfterFunc(e.patience, func() {
			e.mu.Lock()
			defer e.unlock()
			if e.partings[peer].end == p.end {
				e.parted(peer)
			}
		})
		e.partings[peer] = p
	}
}

// parted ends a parting. e.mu is held.
func (e *Engine) parted(peer wire.UUID) {
	p := e.partings[peer]
	p.end.Stop()
	delete(e.partings, peer)
	e.leave(peer, p.cause)
}

// stay takes all partings back. e.mu is held.
func (e *Engine) stay() {
	for peer, p := range e.partings {
		p.end.Stop()
		delete(e.partings, peer)
	}
}

// departure is of a member that has gone since the last round.
type departure struct {
	peer  wire.UUID
	cause error
}

// without returns why peer cannot take part any more; zero: any member. e.mu is held.
func (e *Engine) without(op string, peer wire.UUID) error {
	for _, d := range e.gone {
		if d.peer == peer || peer == (wire.UUID{}) {
			err := lost(d.peer, d.cause)
			err.Op = op
			return err
		}
	}
	return nil
}

// leave fails what concerns peer. e.mu is held.
func (e *Engine) leave(peer wire.UUID, cause error) {
	e.failAll(func(t *Transfer) bool { return t.peer == peer || t.any && t.number == 0 }, func(t *Transfer) error {
		err := lost(peer, cause)
		err.Op = t.op()
		return err
	})
	e.forget(func(o *offer) bool { return o.peer == peer })
}

// Stop fails everything, and all that is still to come.
func (e *Engine) Stop(cause error) {
	e.mu.Lock()
	defer e.unlock()
	if e.closed == nil {
		e.closed = cause
	}
	e.failAll(func(*Transfer) bool { return true }, func(*Transfer) error { return cause })
	e.forget(func(*offer) bool { return true })
	e.stay()
}

// Flush waits until the other ends can hear all that was said to them, or ctx ends. A
// member that leaves without it may have a message whose sender never learns that.
func (e *Engine) Flush(ctx context.Context) {
	for {
		e.mu.Lock()
		said := true
		for _, c := range e.links {
			said = said && len(c.queue) == 0 && c.refs == 0
		}
		var wait chan struct{}
		if !said {
			if e.quiet == nil {
				e.quiet = make(chan struct{})
			}
			wait = e.quiet
		}
		e.mu.Unlock()
		if said {
			return
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return
		}
	}
}

// spoken wakes Flush. e.mu is held.
func (e *Engine) spoken() {
	if e.quiet != nil {
		close(e.quiet)
		e.quiet = nil
	}
}

// failAll fails those that hit tells. e.mu is held.
func (e *Engine) failAll(hit func(*Transfer) bool, why func(*Transfer) error) {
	var all []*Transfer
	for _, t := range e.sends {
		all = append(all, t)
	}
	for _, t := range e.taken {
		all = append(all, t)
	}
	all = append(all, e.recvs...)
	for _, t := range all {
		if hit(t) {
			e.end(t, why(t))
		}
	}
}

// forget drops offers. e.mu is held.
func (e *Engine) forget(which func(*offer) bool) {
	e.offers = slices.DeleteFunc(e.offers, func(o *offer) bool {
		if !which(o) {
			return false
		}
		e.release(o)
		return true
	})
}

// release notes that an offer is answered. e.mu is held.
func (e *Engine) release(o *offer) {
	a := e.held[o.peer]
	a.count, a.bytes = a.count-1, a.bytes-len(o.data)
	e.held[o.peer] = a
	if a == (allowance{}) {
		delete(e.held, o.peer)
	}
}

// may returns why no message can be sent or received in epoch. e.mu is held.
func (e *Engine) may(op string, epoch uint64) error {
	switch {
	case e.closed != nil:
		return e.closed
	case epoch == 0 || epoch != e.epoch:
		return errs.New(errs.Busy, op, errors.New("a round is running")).WithHint("repeat it after the round")
	}
	return nil
}

// Send begins to send data to a member, to whom there is a connection.
func (e *Engine) Send(to wire.UUID, tag, epoch uint64, data []byte) (*Transfer, error) {
	e.mu.Lock()
	defer e.unlock()
	t := &Transfer{e: e, sends: true, peer: to, tag: tag, buf: data, began: time.Now(), done: make(chan struct{})}
	if err := e.may(t.op(), epoch); err != nil {
		return nil, err
	}
	if err := e.without(t.op(), to); err != nil {
		return nil, err
	}
	c := e.to(to)
	if c.open.count == MaxOpen {
		return nil, errs.New(errs.Busy, t.op(), fmt.Errorf("%d messages were not received", MaxOpen)).WithPeer(to.String())
	}
	e.numbers++
	t.number = e.numbers
	e.sends[t.name()] = t
	c.open.count++
	what, body := byte(wantsTake), []byte(nil)
	if n := len(data); n <= Together && c.open.bytes+n <= maxAhead {
		what, body = together, slices.Clone(data)
		t.ahead = n
		c.open.bytes += n
	}
	c.post(t.tag, t.number, offerHead(what, epoch, uint64(len(data))), body)
	return t, nil
}

// Receive begins to receive a message into buf, from a member or, if from is zero, from
// any.
func (e *Engine) Receive(from wire.UUID, tag, epoch uint64, buf []byte) (*Transfer, error) {
	e.mu.Lock()
	defer e.unlock()
	t := &Transfer{e: e, peer: from, any: from == wire.UUID{}, tag: tag, buf: buf, began: time.Now(), done: make(chan struct{})}
	if err := e.may(t.op(), epoch); err != nil {
		return nil, err
	}
	for i, o := range e.offers {
		if o.epoch == epoch && t.wants(o) {
			e.offers = slices.Delete(e.offers, i, i+1)
			e.match(t, o)
			return t, nil
		}
	}
	if err := e.without(t.op(), from); err != nil {
		return nil, err
	}
	e.recvs = append(e.recvs, t)
	return t, nil
}

// match gives t what o offers. e.mu is held.
func (e *Engine) match(t *Transfer, o *offer) {
	t.peer, t.number = o.peer, o.number
	e.release(o)
	c := e.to(o.peer)
	switch {
	case o.size != uint64(len(t.buf)):
		c.post(o.tag, o.number, sized(refused, uint64(len(t.buf))), nil)
		e.end(t, t.mismatch(o.size))
	case o.data != nil || o.size == 0:
		copy(t.buf, o.data)
		c.post(o.tag, o.number, plain(done), nil)
		e.end(t, nil)
	default:
		e.taken[o.name] = t
		c.post(o.tag, o.number, plain(take), nil)
	}
}

// fail ends t because of err.
func (e *Engine) fail(t *Transfer, err error) {
	e.mu.Lock()
	defer e.unlock()
	e.end(t, err)
}

// end ends t, once. It is over when nothing touches its memory. e.mu is held.
func (e *Engine) end(t *Transfer, err error) {
	if t.over {
		return
	}
	t.over, t.err = true, err
	t.stop.Store(true)
	switch {
	case t.sends:
		delete(e.sends, t.name())
		c := e.to(t.peer)
		c.open.count, c.open.bytes = c.open.count-1, c.open.bytes-t.ahead
		if t.out.attached && err != nil {
			e.later.drops = append(e.later.drops, t)
		}
	case t.number > 0:
		delete(e.taken, t.name())
	default:
		e.recvs = slices.DeleteFunc(e.recvs, func(o *Transfer) bool { return o == t })
	}
	if t.reader != nil && err != nil {
		t.reader.Interrupt()
	}
	e.settle(t)
}

// settle lets t be over if nothing touches its memory. e.mu is held.
func (e *Engine) settle(t *Transfer) {
	if t.over && !t.settled && t.reader == nil && t.out.refs == 0 {
		t.settled = true
		e.later.ended = append(e.later.ended, t)
	}
}
