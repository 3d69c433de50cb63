package peer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/core/wire"
)

// A panic of what the watchdog calls ends the session and nothing else: its
// operation returns an internal error, and the process goes on.
func TestPanicInTheWatchdog(t *testing.T) {
	s := newScript(t)
	sess := s.welcome(func(o *Options) {
		o.WarnStuckAfter = time.Millisecond
		o.Trace = &trace.Listener{Stuck: func(uint64, uint64, time.Duration, string) { panic("barked") }}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	v := make([]byte, 64)
	h, err := sess.AllReduceAsync(ctx, Reduce{Tag: 1, Src: v, Dst: v, DType: dtype.Float32, Op: dtype.Sum})
	require.NoError(t, err)
	hear[wire.C2MCollectiveCommsInitiate](s)
	s.say(wire.M2CCollectiveCommsCommence{Tag: 1, SeqNr: 1}) // the other one never sends anything
	_, err = h.Wait(ctx)
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorContains(t, err, "barked")
	require.NoError(t, sess.Close())
}

// The same for a callback that waits for a verdict on a goroutine of its own.
func TestPanicInANotification(t *testing.T) {
	s := newScript(t)
	sess := s.welcome()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h, err := sess.AllReduceAsync(ctx, Reduce{Tag: 1, DType: dtype.Float32, Op: dtype.Sum})
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := h.Wait(ctx)
		waited <- err
	}()
	hear[wire.C2MCollectiveCommsInitiate](s)
	s.say(wire.M2CCollectiveCommsCommence{Tag: 1, SeqNr: 1})
	hear[wire.C2MCollectiveCommsComplete](s)
	s.say(wire.M2CCollectiveCommsAbort{Tag: 1}, wire.M2CCollectiveCommsComplete{Tag: 1})
	require.NoError(t, <-waited)
	h.Notify(func() { panic("called back") })
	require.Eventually(t, func() bool { return sess.crashed.Load() != nil }, time.Minute, time.Millisecond)
	_, err = sess.AllReduceAsync(ctx, Reduce{Tag: 2, DType: dtype.Float32, Op: dtype.Sum})
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorContains(t, err, "called back")
}
