package peer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// A launch that has to wait, because an operation that was given up goes on
// without anybody, can be waited for at once. Taken back, it ends every wait with
// the same answer, though the machine has not come to the question yet.
func TestAWithdrawnLaunchEndsItsWaits(t *testing.T) {
	s := newScript(t)
	sess := s.welcome()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	v := make([]byte, 8)
	first, err := sess.AllReduceAsync(ctx, Reduce{Tag: 1, Src: v, Dst: v, DType: dtype.Float32, Op: dtype.Sum})
	require.NoError(t, err)
	hear[wire.C2MCollectiveCommsInitiate](s)
	first.Cancel()
	_, err = first.Wait(ctx)
	require.ErrorIs(t, err, errs.Canceled)
	select {
	case <-first.Done():
	default:
		t.Fatal("its buffers are not the caller's yet")
	}

	late, err := sess.Launch(Reduce{Tag: 2, Src: v, Dst: v, DType: dtype.Float32, Op: dtype.Sum})
	require.NoError(t, err)
	waits := make(chan error, 3)
	for range 2 {
		go func() {
			_, err := late.Wait(ctx)
			waits <- err
		}()
	}
	late.Notify(func() {
		_, err := late.Wait(ctx)
		waits <- err
	})
	select {
	case <-late.Taken():
		t.Fatal("nothing had to wait, which proves nothing")
	default:
	}
	late.Withdraw()
	for range 3 {
		require.ErrorIs(t, <-waits, errs.Canceled)
	}
	require.ErrorIs(t, late.Refused(), errs.Canceled)
	<-late.Done()
	require.NoError(t, ctx.Err())
	require.NoError(t, sess.Close())
}

// A cancel comes behind the operation that it is for, though that was only posted
// and the machine has not looked at it yet.
func TestCancelOfWhatWasOnlyPosted(t *testing.T) {
	for name, giveUp := range map[string]func(*Operation){"cancel": (*Operation).Cancel, "withdraw": (*Operation).Withdraw} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			sess := s.welcome()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			v := make([]byte, 8)
			first, err := sess.AllReduceAsync(ctx, Reduce{Tag: 1, Src: v, Dst: v, DType: dtype.Float32, Op: dtype.Sum})
			require.NoError(t, err)
			hear[wire.C2MCollectiveCommsInitiate](s)
			first.Cancel()
			_, err = first.Wait(ctx)
			require.ErrorIs(t, err, errs.Canceled)

			for !sess.box.claim() {
				require.NoError(t, ctx.Err())
			}
			late, err := sess.Post(Reduce{Tag: 2, Src: v, Dst: v, DType: dtype.Float32, Op: dtype.Sum})
			require.NoError(t, err)
			giveUp(late)
			sess.turn() // and lets go of the machine
			select {
			case <-late.Taken():
				require.ErrorIs(t, late.Refused(), errs.Canceled)
			case <-ctx.Done():
				t.Fatal("the operation waits, and nobody gives it up")
			}
			require.NoError(t, sess.Close())
		})
	}
}

// Channels of a gate are made by those who wait, before and behind it.
func TestGate(t *testing.T) {
	op := &Operation{s: &Session{}}
	before := op.opened(&op.settled)
	require.Equal(t, before, op.opened(&op.settled), "one for all")
	select {
	case <-before:
		t.Fatal("open too early")
	default:
	}
	op.settled.pass()
	op.settled.pass()
	<-before
	<-op.opened(&op.settled)
	require.Nil(t, op.over.closed)
}
