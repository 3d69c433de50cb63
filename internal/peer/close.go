package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
)

// flushTime bounds the wait of Close for the caller's log handler, for its trace
// listener, and for a peer to take the answers to its messages.
const flushTime = time.Second

// Shutdown lets no more all-reduces in, waits until those that were launched
// have their verdicts, and closes the session as Close does: nothing is lost,
// and Wait still returns what each of them did. If ctx ends first, what is left
// is aborted as Close does, and the error is errs.Canceled.
func (s *Session) Shutdown(ctx context.Context) error {
	err := s.quiesce(ctx, "shutdown")
	if late := s.Close(); err == nil {
		err = late
	}
	return err
}

// Close leaves the run: running operations are aborted for all peers, their
// buffers restored, every pending call answered, every connection and goroutine
// ended. (An operation of which this peer has already reported that it is
// through may have succeeded for the others; see Shutdown.) It is idempotent
// and may be called from any goroutine.
//
// It waits for functions of the caller that are running, such as
// SyncOptions.Progress, but not for ever: after twice Options.HandshakeTimeout
// it returns errs.Timeout, which says what is left. The arguments of calls that
// have not returned are in use until they do. Inside such a function Close has
// to wait for itself, so call it from another goroutine there.
func (s *Session) Close() error {
	s.closeOnce.Do(func() { go s.shut() })
	t := time.NewTimer(2 * s.opt.HandshakeTimeout)
	defer t.Stop()
	select {
	case <-s.closed:
		return nil
	case <-t.C:
		err := errs.New(errs.Timeout, "close", errors.New(s.remains())).
			WithHint("let callbacks return, and do not close a communicator inside of them")
		s.log.Warn("not everything has ended", "error", err)
		return err
	}
}

// remains says in words what Close waits for.
func (s *Session) remains() string {
	s.mu.Lock()
	calls, ops := max(0, len(s.calls)+len(s.opCalls)-1), len(s.ops) // without Close's own
	s.mu.Unlock()
	if calls == 0 && ops == 0 {
		return "a goroutine of the communicator has not ended: it is in a callback"
	}
	return fmt.Sprintf("%d calls and %d operations have not ended", calls, ops)
}

// shut does what Close says, in its own time.
func (s *Session) shut() {
	defer close(s.closed)
	defer errs.Catch("close", s.crash)
	s.leaveRun()
	close(s.quit)
	<-s.done
	s.cancel()
	<-s.master.conn().ended
	s.entry.port.Close()
	s.entry.port.Wait()
	s.mesh.Wait()
	s.sharing.Close()
	s.bench.Close()
	s.blocks.Stop() // before the hub's connections go
	s.engine.Close()
	s.blocks.Close()
	s.work.Wait()
	live.remove(s)
	s.events.Close(flushTime)
	s.lines.Close(flushTime)
}

// leaveRun tells the machine to leave and waits until nothing of the caller's
// memory is in use.
func (s *Session) leaveRun() {
	s.entry.closing.Store(true)
	id := fsm.CallID(s.ids.Add(1))
	c := &call{done: make(chan struct{})}
	s.flushPosts()
	ctx, cancel := context.WithTimeout(s.ctx, flushTime)
	s.posted.Flush(ctx)
	cancel()
	s.mu.Lock()
	s.calls[id] = c
	s.mu.Unlock()
	if s.crashed.Load() == nil {
		s.handle(fsm.CallClose{Call: id})
		s.entry.listen.Close()
		select {
		case <-c.done: // crash answers, too
		case <-s.done:
		}
	}
	s.mesh.Close()
	s.entry.listen.Close()
}

// leave ends the calls and posts that will never be picked up or answered: the
// machine has made its last step.
func (s *Session) leave() {
	s.posts.mu.Lock()
	s.posts.closed = true
	late := s.posts.queue
	s.posts.queue = nil
	s.posts.mu.Unlock()
	s.register(late)
	s.mu.Lock()
	s.left = true
	ends := s.opCalls
	s.opCalls = map[fsm.CallID]*Operation{}
	s.mu.Unlock()
	for id, op := range ends {
		s.notify(op.answered(id, closed()))
	}
}
