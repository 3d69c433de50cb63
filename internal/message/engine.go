package message

import (
	"context"
	"errors"
	"time"

	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/message/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

const rankEngine = 30 // above link.RankConn

// Engine has the messages of one member. Safe for concurrent use.
type Engine struct {
	hub   *link.Hub
	frame int       // bytes of data in a frame
	began time.Time // the machine's time is since then

	mu    invariants.Mutex
	m     *fsm.Machine
	links map[wire.UUID]*courier // by member
	quiet chan struct{}          // closed when everything is said; nil: nobody waits
	timer *time.Timer            // nil: never set
	due   time.Duration          // of the timer; 0: it is not set
}

// NewEngine returns an engine on the connections of hub, which asks router for frames of
// messages. The hub has no connections yet.
func NewEngine(hub *link.Hub) *Engine {
	e := &Engine{
		hub: hub, frame: hub.Config().FrameBytes, began: time.Now(),
		m: fsm.New(fsm.Defaults()), links: map[wire.UUID]*courier{},
	}
	e.mu.Rank(rankEngine, "message.Engine.mu")
	hub.Share(mark, router{e})
	return e
}

// now is the time of the machine.
func (e *Engine) now() time.Duration { return time.Since(e.began) }

// unlock lets go of e.mu and does what the machine has asked for.
func (e *Engine) unlock() {
	var few [8]fsm.Effect
	all := append(few[:0], e.m.Effects()...)
	for i, f := range all {
		if f.Do == fsm.Halt && !f.Of.Owner.(*Transfer).halt() {
			all[i].Do = 0
		}
	}
	e.wind()
	e.wake()
	e.mu.Unlock()
	for _, f := range all {
		switch f.Do {
		case fsm.Speak:
			e.speak(f.Peer)
		case fsm.Stream:
			e.stream(f.Of.Owner.(*Transfer))
		case fsm.Halt:
			t := f.Of.Owner.(*Transfer)
			t.on.Detach(t)
		case fsm.Free:
			close(f.Of.Owner.(*Transfer).done)
		}
	}
}

// wind sets the timer to the next deadline of the machine. e.mu is held.
func (e *Engine) wind() {
	at, due := e.m.Deadline()
	if !due || at == e.due {
		return // a timer that nothing waits for any more does nothing
	}
	e.due = at
	d := max(0, at-e.now())
	if e.timer != nil {
		e.timer.Reset(d)
		return
	}
	e.timer = time.AfterFunc(d, func() {
		e.mu.Lock()
		defer e.unlock()
		e.due = 0
		e.m.Tick(e.now())
	})
}

var errNone = errors.New("there is no connection to the peer")

// Expect says that a round runs: what was under way fails because of it, and members may
// offer messages of epoch as soon as they have heard that it is over. epoch 0: none of
// the group may send any.
func (e *Engine) Expect(epoch uint64, members []wire.UUID) {
	e.mu.Lock()
	defer e.unlock()
	e.m.Expect(epoch, members)
}

// Begin says that the round is over: messages are of its epoch.
func (e *Engine) Begin() {
	e.mu.Lock()
	defer e.unlock()
	e.m.Begin()
}

// Lost says that a member has gone, until the next round. What concerns it fails as soon
// as everything that it has sent is read, receives from any member included: nobody knows
// whether it would have sent.
func (e *Engine) Lost(peer wire.UUID, cause error) {
	e.mu.Lock()
	defer e.unlock()
	e.m.Lost(e.now(), peer, cause)
}

// Stop fails everything, and all that is still to come.
func (e *Engine) Stop(cause error) {
	e.mu.Lock()
	defer e.unlock()
	e.m.Stop(cause)
	if e.timer != nil {
		e.timer.Stop()
	}
}

// Flush waits until the other ends can hear all that was said to them, or ctx ends. A
// member that leaves without it may have a message whose sender never learns that.
func (e *Engine) Flush(ctx context.Context) {
	for {
		e.mu.Lock()
		var wait chan struct{}
		if !e.said() {
			if e.quiet == nil {
				e.quiet = make(chan struct{})
			}
			wait = e.quiet
		}
		e.mu.Unlock()
		if wait == nil {
			return
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return
		}
	}
}

// said reports whether connections have taken everything. e.mu is held.
func (e *Engine) said() bool {
	for _, c := range e.links {
		if c.refs > 0 {
			return false
		}
	}
	return e.m.Quiet()
}

// wake wakes Flush if everything is said. e.mu is held.
func (e *Engine) wake() {
	if e.quiet != nil && e.said() {
		close(e.quiet)
		e.quiet = nil
	}
}

// Send begins to send data to a member, to whom there is a connection.
func (e *Engine) Send(to wire.UUID, tag, epoch uint64, data []byte) (*Transfer, error) {
	t := e.newTransfer(tag, data)
	e.mu.Lock()
	defer e.unlock()
	if err := e.m.Send(to, epoch, &t.Transfer); err != nil {
		return nil, err
	}
	return t, nil
}

// Receive begins to receive a message into buf, from a member or, if from is zero, from
// any.
func (e *Engine) Receive(from wire.UUID, tag, epoch uint64, buf []byte) (*Transfer, error) {
	t := e.newTransfer(tag, buf)
	e.mu.Lock()
	defer e.unlock()
	if err := e.m.Receive(from, epoch, &t.Transfer); err != nil {
		return nil, err
	}
	return t, nil
}
