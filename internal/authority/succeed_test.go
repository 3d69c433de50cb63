package authority

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
)

// A run goes on with another authority: those who know the former one alone believe those
// who have rotated, and the other way round, until it is over. Revocation goes on.
func TestSucceed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	now := time.Now().Add(-24 * time.Hour)
	clock := func() time.Time { return now }
	run, err := Init(path, "trial", clock)
	require.NoError(t, err)
	d, err := Open(path, clock)
	require.NoError(t, err)
	parse := func(text []byte, err error) *secure.Credential {
		require.NoError(t, err)
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		return c
	}
	issue := func(name string) *secure.Credential {
		text, _, err := d.Issue(secure.Identity{Name: name, Role: secure.Peer}, 48*time.Hour, "test")
		return parse(text, err)
	}
	believes := func(a, b *secure.Credential) error {
		l, err := d.List()
		require.NoError(t, err)
		tr, err := secure.NewTrust(secure.TrustOptions{Credential: a, Now: clock, Lists: []*secure.List{l}})
		require.NoError(t, err)
		_, err = tr.Verify(tls.ConnectionState{Version: tls.VersionTLS13, NegotiatedProtocol: secure.Data.String(), PeerCertificates: b.Chain()}, secure.Want{Purpose: secure.Data})
		return err
	}
	require.ErrorContains(t, d.Finish(false), "no rotation is under way")
	first, gone := issue("gpu-0"), issue("gpu-1")

	now = now.Add(time.Hour)
	require.NoError(t, d.Succeed())
	require.ErrorContains(t, d.Succeed(), "the last rotation is not over")
	now = now.Add(time.Minute)
	second := issue("gpu-2")
	text, _, err := d.Rotate(first, 48*time.Hour)
	rotated := parse(text, err)
	id, err := rotated.Identity()
	require.NoError(t, err)
	require.Equal(t, run, id.Run)
	require.Len(t, second.Authorities(), 2)
	require.False(t, second.Authorities()[0].Equal(first.Authorities()[0]))
	for _, pair := range [][2]*secure.Credential{{first, second}, {second, first}, {first, rotated}, {rotated, gone}} {
		require.NoError(t, believes(pair[0], pair[1]))
	}
	_, err = d.Revoke("gpu-1")
	require.NoError(t, err)
	require.ErrorIs(t, believes(first, gone), secure.Revoked)
	require.ErrorIs(t, believes(second, gone), secure.Revoked)
	behind, err := d.Behind()
	require.NoError(t, err)
	require.Empty(t, behind, "one has a successor, and one is revoked")

	late := issue("gpu-3")
	require.NoError(t, d.Finish(false))
	now = now.Add(time.Minute)
	third := issue("gpu-4")
	require.Len(t, third.Authorities(), 1)
	require.NoError(t, believes(third, second))
	require.NoError(t, believes(second, third))
	require.NoError(t, believes(late, third))
	require.ErrorIs(t, believes(third, first), secure.Unknown)
	require.ErrorIs(t, believes(third, gone), secure.Unknown)
	// One that was renewed by itself trusts the former authority alone, and takes the list of
	// the present one for all that both have signed.
	id, err = first.Identity()
	require.NoError(t, err)
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	now = now.Add(30 * time.Hour)
	chain, _, err := d.Renew(first.Leaf(), id, pub)
	require.NoError(t, err)
	renewed := parse(Encode(chain[0], chain[1:], key, first.Authorities()))
	now = now.Add(-30 * time.Hour).Add(6 * time.Minute)
	require.ErrorIs(t, believes(renewed, gone), secure.Revoked)
	_, err = os.Stat(filepath.Join(path, formerKey))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, d.Succeed(), "and again")
	require.NoError(t, believes(third, issue("gpu-5")))
}

// An endpoint that has not rotated is behind, and a directory that was cut off between two
// files is as before.
func TestSucceedBehindAndCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	now := time.Now().Add(-24 * time.Hour)
	clock := func() time.Time { return now }
	_, err := Init(path, "trial", clock)
	require.NoError(t, err)
	d, err := Open(path, clock)
	require.NoError(t, err)
	_, _, err = d.Issue(secure.Identity{Name: "gpu-0", Role: secure.Peer}, 48*time.Hour, "test")
	require.NoError(t, err)
	before, err := os.ReadFile(filepath.Join(path, certFile))
	require.NoError(t, err)
	now = now.Add(time.Hour)
	require.NoError(t, d.Succeed())
	behind, err := d.Behind()
	require.NoError(t, err)
	require.Len(t, behind, 1)
	require.ErrorContains(t, d.Finish(false), "peer gpu-0")

	require.NoError(t, os.WriteFile(filepath.Join(path, certFile), before, 0o600)) // the last file was not written
	text, _, err := d.Issue(secure.Identity{Name: "gpu-1", Role: secure.Peer}, 48*time.Hour, "test")
	require.NoError(t, err)
	c, err := secure.ParseCredential(text)
	require.NoError(t, err)
	require.Len(t, c.Authorities(), 1)
	require.Len(t, c.Chain(), 1)
	require.NoError(t, d.Succeed())
	require.NoError(t, d.Finish(true))
	root, err := d.Authority()
	require.NoError(t, err)
	require.NotEqual(t, before, certText(root))
	_, err = root.Verify(x509.VerifyOptions{Roots: pool(root), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	require.NoError(t, err)
}

func pool(c *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(c)
	return p
}
