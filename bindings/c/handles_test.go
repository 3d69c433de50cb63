//go:build cgo

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
)

// thing is an object whose end takes as long as a test wants.
type thing struct{ end chan struct{} }

// impatient makes the caller's poll function say that the caller gives up, until
// the test ends.
func impatient(t *testing.T) {
	polls, poll := hasPoll, askPoll
	hasPoll, askPoll = func() bool { return true }, func() bool { return true }
	t.Cleanup(func() { hasPoll, askPoll = polls, poll })
}

var callTest = call{"end of a thing", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}

// The masters of the settings stand behind the one that the program names, if they are several.
func TestOtherMasters(t *testing.T) {
	require.Equal(t, "10.0.0.1:48148", withOthers("10.0.0.1:48148", "127.0.0.1:48148"))
	require.Equal(t, "10.0.0.1:48148,a:1,[::1]:2", withOthers("10.0.0.1:48148", "a:1, 10.0.0.1:48148,[::1]:2"))
}

// A caller that gives up destroying something leaves it ending, and can come back; nobody
// else can use it any more.
func TestDestroyingCanBeInterrupted(t *testing.T) {
	impatient(t)
	it := &thing{end: make(chan struct{})}
	n := objects.add(it)
	ended := 0
	destroy := func() error {
		return retire(callTest, n, func(i *thing) error {
			require.Same(t, it, i)
			<-i.end
			ended++
			return nil
		})
	}
	for range 3 {
		require.ErrorIs(t, destroy(), errs.Canceled)
		_, err := lookup[thing](callTest, n)
		require.ErrorIs(t, err, errs.InvalidArgument)
		require.ErrorIs(t, retire(callTest, n, func(*comm) error { return nil }), errs.InvalidArgument, "a function of other objects")
	}
	close(it.end)
	var err error
	require.Eventually(t, func() bool {
		err = destroy()
		return errs.CodeOf(err) != errs.Canceled
	}, time.Minute, time.Millisecond)
	if err != nil { // it had ended before this call
		require.ErrorIs(t, err, errs.InvalidArgument)
	}
	require.Equal(t, 1, ended)
	require.ErrorIs(t, destroy(), errs.InvalidArgument)
}

// Threads that destroy one thing at the same time all wait for its end.
func TestDestroyingTwiceWaits(t *testing.T) {
	it := &thing{end: make(chan struct{})}
	n := objects.add(it)
	began := make(chan struct{})
	results := make(chan error, 4)
	destroy := func() { results <- retire(callTest, n, func(i *thing) error { close(began); <-i.end; return nil }) }
	go destroy()
	<-began
	for range 3 {
		go destroy()
	}
	select {
	case err := <-results:
		t.Fatalf("destroyed before its end: %v", err)
	case <-time.After(50 * time.Millisecond): // nothing may come; a longer wait would see more
	}
	close(it.end)
	for range 4 {
		if err := <-results; err != nil {
			require.ErrorIs(t, err, errs.InvalidArgument, "it came behind the end")
		}
	}
}
