package link

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/platform"
)

// Threads says what the senders and readers of connections run on.
type Threads uint8

const (
	// Goroutines share the threads of the process, as the scheduler likes. It is
	// the default.
	Goroutines Threads = iota + 1
	// Pinned: each has an operating system thread of its own, named, bound to
	// Config.Affinity, and parked by package platform while a sender has nothing
	// to send.
	Pinned
)

// Names of the threads; Linux keeps fifteen bytes.
const (
	senderThread = "gopccl-sender"
	readerThread = "gopccl-reader"
)

// pin gives the calling goroutine a thread of its own, for good: the thread ends
// with it, and its binding and name with the thread.
func (h *Hub) pin(name string, at *atomic.Pointer[platform.Thread]) {
	if h.cfg.Threads != Pinned {
		return
	}
	runtime.LockOSThread()
	if err := platform.SetAffinity(h.cfg.Affinity); err != nil {
		h.cfg.Logger.Warn("a thread of the data path runs on any processor", "thread", name, "err", err)
	}
	t := platform.NameThread(name)
	at.Store(&t)
}

// bell wakes the goroutine of a sender, and starts it when it is rung for the
// first time: a connection over which nothing is sent, or only batches that others
// could write, has none. It is like a sync.Cond with one waiter: all methods want
// the sender's lock held.
type bell struct {
	s       *Sender
	started bool
	cond    *sync.Cond
	parker  *platform.Parker // instead of cond in a thread of its own
}

func newBell(s *Sender) *bell {
	b := &bell{s: s}
	if s.h.cfg.Threads == Pinned {
		b.parker = platform.NewParker()
	} else {
		b.cond = sync.NewCond(&s.mu)
	}
	return b
}

func (b *bell) Wait() {
	if b.parker == nil {
		b.cond.Wait()
		return
	}
	b.parker.Begin()
	b.s.mu.Unlock()
	b.parker.Park(time.Time{})
	b.s.mu.Lock()
}

func (b *bell) Signal() {
	switch {
	case !b.started:
		// A closed connection needs no goroutine; an open one has a watcher,
		// for which Close waits as well.
		if b.s.cause == nil {
			b.started = true
			b.s.h.spawn("sender", b.s.peer, b.s.run, b.s.close)
		}
	case b.parker != nil:
		b.parker.Wake()
	default:
		b.cond.Signal()
	}
}

func (b *bell) Broadcast() { b.Signal() }
