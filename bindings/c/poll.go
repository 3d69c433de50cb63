//go:build cgo

package main

// int gopccl_poll(void);
// int gopccl_polls(void);
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/platform"
)

// pollInterval is how long a signal may wait for an answer.
const pollInterval = 50 * time.Millisecond

// The caller's poll function, as C knows it: whether there is one, and whether it
// says that the caller gives up. Variables for tests, which have no C.
var (
	hasPoll = func() bool { return C.gopccl_polls() != 0 }
	askPoll = func() bool { return C.gopccl_poll() != 0 }
)

// until waits for done. Meanwhile this thread asks the caller's poll function, if
// there is one. It returns false if that says that the caller gives up, or if ctx
// ends. Every exported function that can wait does it here or in rest.
func until(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
	}
	var asks <-chan time.Time
	if hasPoll() {
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		asks = tick.C
	}
	for {
		select {
		case <-done:
			return true
		case <-ctx.Done():
			return false
		case <-asks:
			if askPoll() {
				return false
			}
		}
	}
}

// task is something that runs on a goroutine of its own; value and err are valid
// once done is closed.
type task[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func newTask[T any]() *task[T] { return &task[T]{done: make(chan struct{})} }

// run does f, whose panic becomes the task's error.
func (t *task[T]) run(c call, f func() (T, error)) {
	defer close(t.done)
	defer func() {
		if p := recover(); p != nil {
			t.err = errs.New(errs.Internal, c.name, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	t.value, t.err = f()
}

// patient runs f, which may block for long, and ends its context when the
// caller's poll function says so.
func patient[T any](c call, ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	if !hasPoll() {
		return f(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTask[T]()
	go t.run(c, func() (T, error) { return f(ctx) })
	if !until(context.Background(), t.done) {
		cancel()
		<-t.done
	}
	return t.value, t.err
}

// patiently is patient for an f without a value.
func patiently(c call, ctx context.Context, f func(context.Context) error) error {
	_, err := patient(c, ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// spareProcessor lets Go run on one processor more than there are. A caller's
// thread that has left Go, or sleeps in rest, keeps one of Go's until a monitor
// takes it away; with a spare one nobody has to wait for that, and the monitor
// does not run 10,000 times a second. GOMAXPROCS in the environment overrules.
func spareProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}

var parkers = sync.Pool{New: func() any { return platform.NewParker() }}

// rest waits for an operation with the caller's thread parked, which the one
// that brings the verdict wakes directly: a goroutine of this thread that waits
// costs a second thread at either end. It returns false if the caller's poll
// function says so or ctx ends; gaveUp is called then, and if it returns true
// the waiting goes on.
func rest(ctx context.Context, h *core.Handle, gaveUp func() bool) bool {
	p := parkers.Get().(*platform.Parker)
	defer parkers.Put(p)
	var done atomic.Bool
	h.Notify(func() {
		done.Store(true)
		p.Wake()
	})
	polls, next := hasPoll(), time.Now().Add(pollInterval)
	for {
		p.Begin()
		if done.Load() {
			p.Cancel()
			return true
		}
		if p.Park(next) || time.Now().Before(next) {
			continue
		}
		next = time.Now().Add(pollInterval)
		if ctx.Err() == nil && (!polls || !askPoll()) {
			continue
		}
		if !gaveUp() {
			return false
		}
		polls, ctx = false, context.Background()
	}
}

// interrupted is the error of a call whose waiting has ended, and nothing else.
func interrupted(c call) error {
	return errs.New(errs.Canceled, c.name, errors.New("interrupted")).WithPhase("waiting")
}

// launched starts an operation; a caller that gives up while the session cannot take it
// yet has launched nothing.
func launched(ctx context.Context, launch func() (*core.Handle, error)) (*core.Handle, error) {
	h, err := launch()
	if err != nil {
		return nil, err
	}
	if !until(ctx, h.Taken()) {
		h.Withdraw()
	}
	return h, h.Refused()
}

// reduced runs one all-reduce; a caller that gives up aborts it for all peers.
func reduced(ctx context.Context, s *core.Communicator, r core.Reduce) (core.ReduceInfo, error) {
	h, err := s.Launch(r)
	return finished(ctx, h, err)
}

// finished waits for what a launch has returned; a caller that gives up aborts it for
// all peers.
func finished(ctx context.Context, h *core.Handle, err error) (core.ReduceInfo, error) {
	if err != nil {
		return core.ReduceInfo{}, err
	}
	rest(ctx, h, func() bool {
		h.Cancel()
		return true
	})
	return h.Wait(context.Background())
}

// awaited waits for a launched operation and reports whether its verdict is
// known; a caller that gives up only stops waiting.
func awaited(h *core.Handle) (info core.ReduceInfo, known bool, err error) {
	if !rest(context.Background(), h, func() bool { return false }) {
		return info, false, interrupted(callAwait)
	}
	info, err = h.Wait(context.Background())
	return info, true, err
}
