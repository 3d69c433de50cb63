package e2e

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
)

// oldKeys is an authority whose certificates have five of thirty days left.
func oldKeys(t testing.TB) keys {
	dir := filepath.Join(t.TempDir(), "keys")
	then := func() time.Time { return time.Now().Add(-25 * 24 * time.Hour) }
	_, err := authority.Init(dir, "trial", then)
	require.NoError(t, err)
	d, err := authority.Open(dir, then)
	require.NoError(t, err)
	return keys{t, d, filepath.Join(dir, "revoked.crl")}
}

// Credentials that are due are renewed by the master while all-reduces run, its own too, which
// has the authority at hand: none is aborted. Two that share a file renew once, one that is in no file renews in memory, and
// a newcomer meets the new ones.
func TestRenewalInARun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := oldKeys(t)
	head := k.file("head", secure.Master)
	addr, log := newRealm(t).master(func(o *core.MasterOptions) { o.Security, o.Enroll = core.SecurityOptions{File: head}, k.path() })
	file, there := k.file("gpu-0", secure.Peer), &lockedLog{}
	alone, err := secure.LoadCredential(k.file("gpu-1", secure.Peer), secure.LoadOptions{})
	require.NoError(t, err)
	change := func(id int, o *core.Options) {
		if o.Security.File, o.Logger = file, slog.New(slog.NewTextHandler(there, nil)); id == 2 {
			o.Security.File, o.Security.Credential = "", alone
		}
	}
	first, err := durable.AwaitLock(ctx, file+".lock") // none renews before the other has read the file
	require.NoError(t, err)
	comms := world(t, ctx, addr, 3, change)
	require.NoError(t, first.Unlock())
	var renewed atomic.Bool
	over := make(chan struct{})
	go func() {
		defer close(over)
		log.times(t, 2, "was renewed until")
		log.has(t, "the credential was taken over: credential master head")
		there.times(t, 3, "the credential was taken over")
		renewed.Store(true)
	}()
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		for v := []int32{0}; v[0] == 0; {
			if v[0] = 0; renewed.Load() {
				v[0] = 1
			}
			if _, err := core.AllReduceSlice(ctx, c, v, v, core.Min); err != nil {
				return err
			}
		}
		return nil
	}) {
		require.NoError(t, err, "no operation is aborted")
	}
	<-over
	require.Equal(t, 2, log.count("was renewed until"))
	for _, path := range []string{file, head} {
		c, err := secure.LoadCredential(path, secure.LoadOptions{})
		require.NoError(t, err)
		require.Greater(t, time.Until(c.Leaf().NotAfter), 29*24*time.Hour)
	}
	for i := range comms {
		require.NoError(t, comms[i].Close())
	}
	sums(t, ctx, world(t, ctx, addr, 3, change))
}

// A master that has nothing to sign with renews nothing, and the logs say when the credentials
// of peers, and its own, expire.
func TestRenewalIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := oldKeys(t)
	addr, log := k.master("")
	there := &lockedLog{}
	comms := world(t, ctx, addr, 2, func(id int, o *core.Options) {
		o.Security.File, o.Logger = k.file("gpu-"+string(rune('0'+id)), secure.Peer), slog.New(slog.NewTextHandler(there, nil))
	})
	sums(t, ctx, comms)
	there.has(t, "renew credential", "peer gpu-0", "peer gpu-1", "expires at")
	log.has(t, "renew credential", "master head", "expires at", "no authority at hand")
	sums(t, ctx, comms)
}
