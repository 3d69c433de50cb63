package e2e

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

// The directory of the authority is restored from a copy of before a revocation. Whatever
// is revoked from then on, and though the numbers of lists come twice, who was revoked stays
// out; once the list that was in force is taken up, masters that begin then know it, too.
func TestRestoredAuthority(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	dir := filepath.Dir(k.list)
	names := []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
	var files []string
	for _, name := range names {
		files = append(files, k.file(name, secure.Peer))
	}
	refused := func(addr string, id int) {
		t.Helper()
		require.ErrorContains(t, tryConnect(ctx, addr, core.SecurityOptions{File: files[id]}, 0), "refuse")
	}
	addr, log := k.master(k.list)
	there := &lockedLog{}
	comms := world(t, ctx, addr, 4, func(id int, o *core.Options) {
		if o.Security.File = files[id]; id == 0 {
			o.Logger = slog.New(slog.NewTextHandler(there, nil))
		}
	})
	sums(t, ctx, comms)
	older, err := os.ReadFile(k.list)
	require.NoError(t, err)
	_, err = k.Revoke("gpu-3")
	require.NoError(t, err)
	log.has(t, "is gone: certificate revoked of peer gpu-3")
	newer, err := os.ReadFile(k.list)
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(k.list, older, 0o600))
	log.has(t, "list 1 is older than list 2, which is in force, and has no ")
	refused(addr, 3)
	_, err = k.Revoke("gpu-2") // list 2 once more
	require.NoError(t, err)
	log.has(t, "is gone: certificate revoked of peer gpu-2", "the revocation list has forgotten ")
	there.has(t, "the revocation list has forgotten ")
	refused(addr, 3)
	refused(addr, 2)
	for _, err := range each(comms[:2], func(_ int, c *core.Communicator) error { return c.UpdateTopology(ctx) }) {
		require.NoError(t, err)
	}
	sums(t, ctx, comms[:2])

	d, err := authority.Open(dir, time.Now)
	require.NoError(t, err)
	l, err := secure.ParseList(newer)
	require.NoError(t, err)
	added, _, err := d.TakeUp(l)
	require.NoError(t, err)
	require.Contains(t, added, "peer gpu-3")
	log.has(t, "number=3")
	next, _ := k.master(k.list)
	refused(next, 3)
	refused(next, 2)
	fresh := world(t, ctx, next, 1, func(_ int, o *core.Options) { o.Security.File = k.file("gpu-3", secure.Peer) })
	require.Len(t, fresh, 1, "the name can be used again")
}
