package authority

import (
	"crypto/ed25519"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
)

// A certificate is renewed in the second half of its life, for the same endpoint and as
// long, a few times; not once it is revoked, and not for another run.
func TestRenew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	now := time.Now().Add(-100 * 24 * time.Hour)
	clock := func() time.Time { return now }
	_, err := Init(path, "trial", clock)
	require.NoError(t, err)
	d, err := Open(path, clock)
	require.NoError(t, err)
	issued := func(id secure.Identity) *secure.Credential {
		text, _, err := d.Issue(id, 30*24*time.Hour, "test")
		require.NoError(t, err)
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		return c
	}
	renew := func(c *secure.Credential) (Entry, error) {
		pub, _, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)
		id, err := c.Identity()
		require.NoError(t, err)
		chain, e, err := d.Renew(c.Leaf(), id, pub)
		if err != nil {
			require.ErrorIs(t, err, ErrNotRenewed)
			return e, err
		}
		require.Equal(t, pub, chain[0].PublicKey)
		require.WithinDuration(t, now.Add(30*24*time.Hour), chain[0].NotAfter, 2*time.Second)
		return e, nil
	}
	c := issued(secure.Identity{Name: "gpu-7", Role: secure.Peer, Groups: []uint32{1, 2}})
	_, err = renew(c)
	require.ErrorContains(t, err, "more than half of its life is left")
	now = now.Add(16 * 24 * time.Hour)
	for range mostRenewals {
		e, err := renew(c)
		require.NoError(t, err)
		require.Equal(t, []string{"gpu-7", "peer"}, []string{e.Name, e.Role})
		require.Equal(t, []uint32{1, 2}, e.Groups)
		require.True(t, strings.HasPrefix(e.By, "renew "))
	}
	_, err = renew(c)
	require.ErrorContains(t, err, "it was renewed 4 times")

	gone := issued(secure.Identity{Name: "gpu-8", Role: secure.Peer})
	_, err = d.Revoke("gpu-8")
	require.NoError(t, err)
	now = now.Add(16 * 24 * time.Hour)
	_, err = renew(gone)
	require.ErrorContains(t, err, "it is revoked")

	other, err := NewAuthority("other", "", now)
	require.NoError(t, err)
	leaf, _, err := other.NewCredential(secure.Identity{Name: "gpu-9", Role: secure.Peer}, nil, time.Hour, now.Add(-time.Hour))
	require.NoError(t, err)
	_, _, err = d.Renew(leaf, secure.Identity{Name: "gpu-9", Role: secure.Peer, Run: other.Run}, leaf.PublicKey)
	require.ErrorContains(t, err, "another run")

	// A key that was stolen has renewed: what it got goes with the certificate.
	stolen := issued(secure.Identity{Name: "gpu-10", Role: secure.Peer})
	now = now.Add(16 * 24 * time.Hour)
	e, err := renew(stolen)
	require.NoError(t, err)
	next := issued(secure.Identity{Name: "gpu-10", Role: secure.Peer})
	id, err := stolen.Identity()
	require.NoError(t, err)
	found, err := d.Revoke(id.Serial)
	require.NoError(t, err)
	require.Len(t, found, 2)
	l, err := d.List()
	require.NoError(t, err)
	require.True(t, Revoked(l, e))
	require.False(t, Revoked(l, entry(id, next.Leaf(), now, "")), "the one that was issued")

	// Nothing follows on a certificate that ends with what has signed it.
	root, err := d.Authority()
	require.NoError(t, err)
	now = root.NotAfter.Add(-20 * 24 * time.Hour)
	text, _, err := d.Issue(secure.Identity{Name: "gpu-11", Role: secure.Peer}, 30*24*time.Hour, "test")
	require.NoError(t, err)
	last, err := secure.ParseCredential(text)
	require.NoError(t, err)
	now = now.Add(16 * 24 * time.Hour)
	log, err := d.Log()
	require.NoError(t, err)
	_, err = renew(last)
	require.ErrorContains(t, err, "what signs it expires itself")
	after, err := d.Log()
	require.NoError(t, err)
	require.Len(t, after, len(log))
}
