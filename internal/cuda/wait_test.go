package cuda

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// A trainer's stream may never come to where it was at the call: the end of the
// context ends every wait for it, and nothing of ours is queued behind it. No
// wait keeps a processor busy, as the driver's for a stream does.
func TestStreamThatNeverEnds(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	only := r.interpreter()
	x := r.tensor(0, random(5000, 1))
	r.on(0, func() {
		s, err := r.d.StreamCreate()
		require.NoError(t, err)
		x.Stream = uint64(s)
	})
	calls := map[string]func(ctx context.Context) error{
		"hash": func(ctx context.Context) error { _, err := r.hash(ctx, x); return err },
		"read": func(ctx context.Context) error {
			src, err := r.p.Read(ctx, x)
			if err == nil {
				_, err = src.Next()
				src.Close()
			}
			return err
		},
		"write": func(ctx context.Context) error {
			dst, err := r.p.Write(ctx, x)
			if err == nil {
				err = dst.Close()
			}
			return err
		},
	}
	for what, call := range calls {
		before := r.d.Calls()
		release := only.Hold(driver.Stream(x.Stream))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- call(ctx) }()
		require.Eventually(t, func() bool { return r.d.Calls()["cuEventQuery"] > before["cuEventQuery"]+3 }, time.Minute, 100*time.Microsecond, what)
		cancel()
		err := <-over
		require.ErrorIs(t, err, errs.Canceled, what)
		require.ErrorContains(t, err, "the work that was queued on the buffer's stream before is not done", what)
		release()
		require.NoError(t, call(t.Context()), what)
		require.Equal(t, before["cuStreamSynchronize"], r.d.Calls()["cuStreamSynchronize"], what)
	}
	r.on(0, func() { require.NoError(t, r.d.StreamDestroy(driver.Stream(x.Stream))) })
	x.Stream = 0
	r.close(x)
}
