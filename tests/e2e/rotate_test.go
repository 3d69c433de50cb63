package e2e

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/durable"
	"github.com/gopccl/gopccl/internal/enroll"
	"github.com/gopccl/gopccl/internal/guard"
)

// The credentials of the master and of all members are replaced again and again while
// they make two thousand all-reduces and more, ten thousand with -soak: none is aborted, and a newcomer meets the
// new ones.
func TestRotationInARun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	target, turns := 2000, 3
	if *soak {
		target, turns = 10000, 20
	}
	files := []string{k.file("head", secure.Master), k.file("gpu-0", secure.Peer), k.file("gpu-1", secure.Peer), k.file("gpu-2", secure.Peer)}
	addr, log := newRealm(t).master(func(o *core.MasterOptions) {
		o.Security.Credential, o.Security.File = nil, files[0]
		o.HeartbeatInterval, o.HeartbeatTimeout = 50*time.Millisecond, 30*time.Second
	})
	there := &lockedLog{}
	change := func(id int, o *core.Options) {
		o.Security.File, o.HeartbeatInterval = files[1+id], 50*time.Millisecond
		o.Logger = slog.New(slog.NewTextHandler(there, nil))
	}
	comms := world(t, ctx, addr, 3, change)
	var done atomic.Bool
	turned := make(chan error, 1)
	go func() {
		turned <- func() error {
			defer done.Store(true)
			for n := 1; n <= turns; n++ {
				for _, path := range files {
					c, err := secure.LoadCredential(path, secure.LoadOptions{})
					if err != nil {
						return err
					}
					text, _, err := k.Rotate(c, 30*24*time.Hour)
					if err == nil {
						err = durable.Replace(path, text, 0o600)
					}
					if err != nil {
						return err
					}
				}
				log.times(t, n, "the credential was taken over")
				there.times(t, 3*n, "the credential was taken over")
			}
			return nil
		}()
	}()
	count := make([]int, 3)
	for _, err := range each(comms, func(i int, c *core.Communicator) error {
		v, stop := []float32{1, 2, 3, 4}, []int32{0}
		for count[i] < target || stop[0] == 0 {
			if _, err := core.AllReduceSlice(ctx, c, v, v, core.Avg); err != nil {
				return err
			}
			if count[i]++; count[i]%100 == 0 { // all stop at the same one
				stop[0] = 0
				if done.Load() {
					stop[0] = 1
				}
				if _, err := core.AllReduceSlice(ctx, c, stop, stop, core.Min); err != nil {
					return err
				}
			}
		}
		return nil
	}) {
		require.NoError(t, err, "no operation is aborted")
	}
	require.NoError(t, <-turned)
	require.Equal(t, count[0], count[2])
	require.GreaterOrEqual(t, count[0], target)
	t.Logf("%d all-reduces, all %d credentials replaced %d times: 0 aborted", count[0], len(files), turns)
	for i := range comms {
		require.NoError(t, comms[i].Close())
	}
	sums(t, ctx, world(t, ctx, addr, 3, change))
}

// The authority of a run is replaced during all-reduces, and everybody gets credentials of
// the new one: none is aborted. Newcomers with tokens that were made before, meanwhile and
// after meet all others.
func TestAuthorityRotationInARun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	files := []string{k.file("head", secure.Master), k.file("gpu-0", secure.Peer), k.file("gpu-1", secure.Peer)}
	addr, log := newRealm(t).master(func(o *core.MasterOptions) {
		o.Security = core.SecurityOptions{File: files[0], Revoked: k.list}
		o.Enroll, o.HeartbeatInterval, o.HeartbeatTimeout = k.path(), 50*time.Millisecond, 30*time.Second
	})
	there := &lockedLog{}
	comms := world(t, ctx, addr, 2, func(id int, o *core.Options) {
		o.Security.File, o.HeartbeatInterval = files[1+id], 50*time.Millisecond
		o.Logger = slog.New(slog.NewTextHandler(there, nil))
	})
	newcomers := make([]core.SecurityOptions, 3)
	enrol := func(i int, join secure.Join) error {
		o, err := enroll.Obtain(ctx, guard.Options{Join: join}, addr, nil)
		newcomers[i].Credential = o.Credential
		return err
	}
	rotate := func(n int) error {
		for _, path := range files {
			c, err := secure.LoadCredential(path, secure.LoadOptions{})
			if err != nil {
				return err
			}
			text, _, err := k.Rotate(c, 30*24*time.Hour)
			if err == nil {
				err = durable.Replace(path, text, 0o600)
			}
			if err != nil {
				return err
			}
		}
		log.times(t, n, "the credential was taken over")
		there.times(t, 2*n, "the credential was taken over")
		return nil
	}
	var done atomic.Int32
	turned := make(chan error, 1)
	go func() {
		turned <- func() error {
			defer done.Store(1)
			before := text(t, k.token(1))
			for _, act := range []func() error{
				k.Succeed,
				func() error { return enrol(0, before) },
				func() error { return enrol(1, text(t, k.token(1))) },
				func() error { return rotate(1) },
				func() error { return k.Finish(false) },
				func() error { return rotate(2) },
				func() error { return enrol(2, text(t, k.token(1))) },
			} {
				if err := act(); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		for v := []int32{0}; v[0] == 0; {
			v[0] = done.Load()
			if _, err := core.AllReduceSlice(ctx, c, v, v, core.Min); err != nil {
				return err
			}
		}
		return nil
	}) {
		require.NoError(t, err, "no operation is aborted")
	}
	require.NoError(t, <-turned)
	for i := range comms {
		require.NoError(t, comms[i].Close())
	}
	sums(t, ctx, world(t, ctx, addr, 5, func(id int, o *core.Options) {
		if o.Security.File = ""; id < 2 {
			o.Security.File = files[1+id]
			return
		}
		o.Security = newcomers[id-2]
	}))
}

// times waits until the log has a text so often.
func (l *lockedLog) times(t testing.TB, n int, text string) {
	assert.Eventually(t, func() bool { return l.count(text) >= n }, patience, time.Millisecond, text)
}
