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

// patient runs f, which may block for long. Meanwhile this thread asks the
// caller's poll function, if there is one, and ends f's context when it says so.
func patient[T any](c call, ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	if C.gopccl_polls() == 0 {
		return f(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var value T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = errs.New(errs.Internal, c.name, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
			}
		}()
		value, err = f(ctx)
	}()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return value, err
		case <-tick.C:
			if C.gopccl_poll() != 0 {
				cancel()
				<-done
				return value, err
			}
		}
	}
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

// rest waits for an all-reduce with the caller's thread parked, which the one
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
	polls, next := C.gopccl_polls() != 0, time.Now().Add(pollInterval)
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
		if ctx.Err() == nil && (!polls || C.gopccl_poll() == 0) {
			continue
		}
		if !gaveUp() {
			return false
		}
		polls, ctx = false, context.Background()
	}
}

// reduced runs one all-reduce; whoever gives it up aborts it for all peers.
func reduced(ctx context.Context, s *core.Communicator, r core.Reduce) (core.ReduceInfo, error) {
	h, err := s.AllReduceAsync(ctx, r)
	if err != nil {
		return core.ReduceInfo{}, err
	}
	rest(ctx, h, func() bool {
		h.Cancel()
		return true
	})
	return h.Wait(context.Background())
}

// awaited waits for a launched all-reduce; whoever gives up gives up only the waiting.
func awaited(h *core.Handle) (core.ReduceInfo, error) {
	if !rest(context.Background(), h, func() bool { return false }) {
		return core.ReduceInfo{}, errs.New(errs.Canceled, callAwait.name, errors.New("interrupted")).At("waiting")
	}
	return h.Wait(context.Background())
}
