//go:build cgo

package main

// int gopccl_poll(void);
// int gopccl_polls(void);
import "C"

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gopccl/gopccl/core/errs"
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
