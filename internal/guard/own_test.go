package guard

import (
	"context"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/durable"
)

// write puts a new credential in a file.
func (r run) write(path string, id secure.Identity, at time.Time) {
	_, text, err := r.NewCredential(id, []*x509.Certificate{r.Cert}, 48*time.Hour, at)
	require.NoError(r.t, err)
	require.NoError(r.t, durable.Replace(path, text, 0o600))
}

// A credential that was replaced is shown in new connections, and the others go on.
func TestRotation(t *testing.T) {
	r := newRun(t)
	path := filepath.Join(t.TempDir(), "gpu-1.pem")
	peer := secure.Identity{Role: secure.Peer, Name: "gpu-1"}
	r.write(path, peer, time.Now())
	one, err := New(Options{File: path, Revoked: r.path}, secure.Peer)
	require.NoError(t, err)
	two := r.guard(r.issue("gpu-2", time.Now()))
	a, b := r.connected(one, two)
	before := one.keeper.Trust().Credential()
	news, err := one.Reload()
	require.NoError(t, err)
	require.Nil(t, news, "it is the same")

	r.write(path, peer, time.Now())
	news, err = one.Reload()
	require.NoError(t, err)
	require.NotNil(t, news.Credential)
	require.False(t, news.Listed)
	require.False(t, before.Leaf().Equal(one.keeper.Trust().Credential().Leaf()))
	r.connected(one, two)
	r.connected(two, one)
	_, err = a.Write([]byte("still"))
	require.NoError(t, err)
	got := make([]byte, 5)
	_, err = b.Read(got)
	require.NoError(t, err)
	require.Equal(t, "still", string(got))

	// The list stays in force with the new credential.
	gone := r.issue("gpu-3", time.Now())
	r.revoke(2, gone)
	news, err = one.Reload()
	require.NoError(t, err)
	require.True(t, news.Listed)
	r.write(path, peer, time.Now())
	_, err = one.Reload()
	require.NoError(t, err)
	_, _, _, taken := r.connect(of(t, gone), one)
	require.ErrorIs(t, taken, secure.Revoked)
}

// What is not another credential of the same endpoint, valid now, is not taken over.
func TestRotationIsRefused(t *testing.T) {
	r, other := newRun(t), newRun(t)
	path := filepath.Join(t.TempDir(), "gpu-1.pem")
	peer := secure.Identity{Role: secure.Peer, Name: "gpu-1"}
	r.write(path, peer, time.Now())
	one, err := New(Options{File: path}, secure.Peer)
	require.NoError(t, err)
	before := one.keeper.Trust()
	for want, write := range map[string]func(){
		"it is for peer gpu-9 and not for peer gpu-1": func() { r.write(path, secure.Identity{Role: secure.Peer, Name: "gpu-9"}, time.Now()) },
		"another run":          func() { other.write(path, peer, time.Now()) },
		"the clock of this":    func() { r.write(path, peer, time.Now().Add(-49*time.Hour)) },
		"does not allow to be": func() { r.write(path, secure.Identity{Role: secure.Observer, Name: "gpu-1"}, time.Now()) },
		"block 1: text":        func() { require.NoError(t, os.WriteFile(path, []byte("x"), 0o600)) },
		"load credential":      func() { require.NoError(t, os.Remove(path)) },
	} {
		write()
		news, err := one.Reload()
		require.Nil(t, news)
		var e *errs.Error
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, want)
		require.Same(t, before, one.keeper.Trust())
		r.write(path, peer, time.Now().Add(-time.Hour))
		one.list.opt.Credential, err = secure.LoadCredential(path, secure.LoadOptions{})
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	heard := make(chan *News, 1)
	go one.Watch(ctx, time.Millisecond, func(n *News, _ error) { heard <- n })
	r.write(path, peer, time.Now())
	require.NotNil(t, (<-heard).Credential)
}
