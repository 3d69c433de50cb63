package platform

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/internal/invariants"
)

// Parker puts one thread, or one goroutine, to sleep until another wakes it. It
// remembers one wake-up, from Begin on:
//
//	for {
//		p.Begin()
//		if there is work {
//			p.Cancel()
//			do it
//			continue
//		}
//		p.Park(time.Time{})
//	}
//
// and a thread that makes work calls Wake afterwards. Work that was made before Begin
// is seen by the look behind it, and work that is made later finds Begin's mark,
// so no wake-up is lost; the look and the making of work need atomic variables
// or a lock, as between any two threads. While nobody sleeps no call enters the
// kernel.
//
// Begin, Cancel and Park belong to one thread at a time, Wake to all. A Parker
// of NewParker blocks its operating system thread: the goroutine should own it
// (runtime.LockOSThread), and Go needs a moment to notice that the processor is
// free.
type Parker struct {
	state uint32 // one of the constants below
	sleep entries
}

const (
	parkIdle     uint32 = iota
	parkArmed           // Begin was called, nobody has called Wake since
	parkParked          // the owner sleeps or is about to
	parkNotified        // Wake was called since Begin
)

// sleeper is how a thread waits for a number to change. wait may return early.
type sleeper interface {
	wait(state *uint32, old uint32, d time.Duration) error // d < 0: no bound
	wake(state *uint32)
}

// entries counts the calls to a sleeper. The parker has no other way to it, so
// that none can be missed.
type entries struct {
	by           sleeper
	waits, wakes atomic.Uint64
}

func (e *entries) wait(state *uint32, old uint32, d time.Duration) error {
	e.waits.Add(1)
	return e.by.wait(state, old, d)
}

func (e *entries) wake(state *uint32) {
	e.wakes.Add(1)
	e.by.wake(state)
}

// NewParker returns a Parker that rests on the system's own call (futex,
// __ulock_wait, WaitOnAddress), a portable one where there is none.
func NewParker() *Parker {
	if !nativeParking() {
		return NewPortableParker()
	}
	return &Parker{sleep: entries{by: nativeSleeper{}}}
}

// NewPortableParker returns a Parker that rests on a Go channel: it blocks the
// goroutine and not the thread.
func NewPortableParker() *Parker {
	s := &channelSleeper{token: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	s.timer.Stop()
	return &Parker{sleep: entries{by: s}}
}

// Native reports whether p rests on a call of the system.
func (p *Parker) Native() bool {
	_, ok := p.sleep.by.(nativeSleeper)
	return ok
}

// nativeParking tries the system's call once, with a number that differs: it
// has to return at once.
var nativeParking = sync.OnceValue(func() bool {
	n := new(uint32)
	return native.Wait(n, 1, time.Second) == nil
})

// Begin announces that the caller is about to look for work and to park. What
// was remembered is forgotten.
func (p *Parker) Begin() { atomic.StoreUint32(&p.state, parkArmed) }

// Cancel takes Begin back: there is work.
func (p *Parker) Cancel() { atomic.StoreUint32(&p.state, parkIdle) }

// Park sleeps until a Wake since Begin, or until deadline (the zero time: no
// bound), and reports whether it was a Wake. Without a Begin it returns at once.
func (p *Parker) Park(deadline time.Time) bool {
	if !atomic.CompareAndSwapUint32(&p.state, parkArmed, parkParked) {
		was := atomic.SwapUint32(&p.state, parkIdle)
		invariants.Check(was == parkNotified, "Park in state %d without Begin", was)
		return true
	}
	for {
		d := time.Duration(-1)
		if !deadline.IsZero() {
			if d = time.Until(deadline); d <= 0 {
				return atomic.SwapUint32(&p.state, parkIdle) == parkNotified
			}
		}
		err := p.sleep.wait(&p.state, parkParked, d)
		if atomic.CompareAndSwapUint32(&p.state, parkNotified, parkIdle) {
			return true
		}
		if err != nil { // a system that refuses half way makes us slow, not deaf
			time.Sleep(time.Millisecond)
		}
	}
}

// Wake ends the Park that runs or follows the last Begin; without a Begin
// nobody looks for work, and it does nothing.
func (p *Parker) Wake() {
	for {
		switch was := atomic.LoadUint32(&p.state); was {
		case parkIdle, parkNotified:
			return
		default:
			if !atomic.CompareAndSwapUint32(&p.state, was, parkNotified) {
				continue
			}
			if was == parkParked {
				p.sleep.wake(&p.state)
			}
			return
		}
	}
}

// Entries returns how often the system was called, or the channel used, to
// sleep and to wake.
func (p *Parker) Entries() (waits, wakes uint64) {
	return p.sleep.waits.Load(), p.sleep.wakes.Load()
}

type nativeSleeper struct{}

func (nativeSleeper) wait(state *uint32, old uint32, d time.Duration) error {
	return native.Wait(state, old, d)
}

func (nativeSleeper) wake(state *uint32) { native.Wake(state) }

// channelSleeper keeps at most one token. One that is there when the sleeper
// comes is an old one: the sleeper looks at the number and comes again.
type channelSleeper struct {
	token chan struct{}
	timer *time.Timer
}

func (s *channelSleeper) wait(_ *uint32, _ uint32, d time.Duration) error {
	if d < 0 {
		<-s.token
		return nil
	}
	s.timer.Reset(d)
	select {
	case <-s.token:
		s.timer.Stop()
	case <-s.timer.C:
	}
	return nil
}

func (s *channelSleeper) wake(*uint32) {
	select {
	case s.token <- struct{}{}:
	default:
	}
}
