package e2e

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

// keys is an authority's directory, with its revocation list.
type keys struct {
	t testing.TB
	*authority.Dir
	list string
}

func newKeys(t testing.TB) keys {
	dir := filepath.Join(t.TempDir(), "keys")
	_, err := authority.Init(dir, "trial", time.Now)
	require.NoError(t, err)
	d, err := authority.Open(dir, time.Now)
	require.NoError(t, err)
	return keys{t, d, filepath.Join(dir, "revoked.crl")}
}

// file issues a credential.
func (k keys) file(name string, role secure.Role) string {
	text, _, err := k.Issue(secure.Identity{Name: name, Role: role}, 30*24*time.Hour, "test")
	require.NoError(k.t, err)
	path := filepath.Join(k.t.TempDir(), name)
	require.NoError(k.t, os.WriteFile(path, text, 0o600))
	return path
}

// master runs one that looks for a new list often, if it has one.
func (k keys) master(list string) (addr string, log *lockedLog) {
	return newRealm(k.t).master(func(o *core.MasterOptions) {
		o.Security = core.SecurityOptions{File: k.file("head", secure.Master), Revoked: list}
		o.HeartbeatInterval, o.HeartbeatTimeout = 50*time.Millisecond, 30*time.Second
	})
}

func (l *lockedLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// A member that is revoked is put out of the run by the master alone, in the middle of a
// call, and told why; the others go on without it.
func TestRevokedInARun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	addr, log := k.master(k.list)
	files := []string{k.file("gpu-0", secure.Peer), k.file("gpu-1", secure.Peer), k.file("gpu-2", secure.Peer)}
	comms := world(t, ctx, addr, 3, func(id int, o *core.Options) { o.Security.File = files[id] })
	sums(t, ctx, comms)
	over := make(chan error, 1)
	go func() { // it waits for the others, which do not come
		v := make([]float32, 1000)
		_, err := core.AllReduceSlice(ctx, comms[2], v, v, core.Sum)
		over <- err
	}()
	_, err := k.Revoke("gpu-2")
	require.NoError(t, err)
	err = <-over
	require.ErrorIs(t, err, errs.Kicked)
	require.ErrorContains(t, err, "certificate revoked of peer gpu-2")
	log.has(t, "is gone: certificate revoked of peer gpu-2")
	require.Equal(t, 1, log.count("certificate revoked"))

	for _, err := range each(comms[:2], func(_ int, c *core.Communicator) error {
		v := []float32{1, 2, 3}
		_, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(v, v, core.Sum)}, 1)
		return err
	}) {
		require.NoError(t, err)
	}
	sums(t, ctx, comms[:2])
	require.ErrorContains(t, tryConnect(ctx, addr, core.SecurityOptions{File: files[2]}, 0), "refuse")
}

// A peer with the list ends its own connections with a revoked member, in both
// directions, though the master does not know of it.
func TestPeerHeedsTheList(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	addr, _ := k.master("")
	log, there := &lockedLog{}, &lockedLog{}
	lost := make(chan string, 100)
	comms := world(t, ctx, addr, 2, func(id int, o *core.Options) {
		o.Trace = &core.Listener{ConnLost: func(peer string, _ uint32, _ bool, _ error) { lost <- peer }}
		if o.HeartbeatInterval, o.Logger = 50*time.Millisecond, slog.New(slog.NewTextHandler(log, nil)); id == 0 {
			o.Security = core.SecurityOptions{File: k.file("gpu-0", secure.Peer), Revoked: k.list}
			return
		}
		o.Security.File, o.Logger = k.file("gpu-1", secure.Peer), slog.New(slog.NewTextHandler(there, nil))
	})
	sums(t, ctx, comms)
	a := comms[0].Attributes()
	other := a.Ring[1-a.Rank]
	called := "gpu-1/" + other.Short()
	names := []string{"gpu-0", "gpu-0"}
	names[1-a.Rank] = "gpu-1"
	require.Equal(t, names, comms[0].State().Names)
	var dump strings.Builder
	require.NoError(t, core.DumpState(&dump))
	require.Contains(t, dump.String(), "peer "+called)
	_, err := k.Revoke("gpu-1")
	require.NoError(t, err)
	log.has(t, "connections ended: certificate revoked of peer gpu-1", "connections=2")
	fail := each(comms, func(_ int, c *core.Communicator) error {
		v := make([]float32, 1<<16)
		_, err := core.AllReduceSlice(ctx, c, v, v, core.Sum)
		return err
	})
	require.ErrorIs(t, fail[0], errs.RankConnectionLost)
	require.ErrorIs(t, fail[1], errs.RankConnectionLost)
	require.Equal(t, 1, log.count("connections ended"))
	require.ErrorContains(t, fail[0], "with gpu-1/"+other.String())
	log.has(t, "peer="+called)
	require.Contains(t, []string{"gpu-0/" + a.UUID.String(), "gpu-1/" + other.String()}, <-lost)
}
