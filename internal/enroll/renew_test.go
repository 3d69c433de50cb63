package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/guard"
)

// A master renews its own credential where the authority is at hand, with another key, and not
// with an issuer, which signs no masters, nor when it is revoked.
func TestRenewalAtTheDesk(t *testing.T) {
	then := func() time.Time { return time.Now().Add(-25 * 24 * time.Hour) }
	path, below := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "desk")
	_, err := authority.Init(path, "trial", then)
	require.NoError(t, err)
	d, err := authority.Open(path, then)
	require.NoError(t, err)
	issue := func(name string, role secure.Role, days time.Duration, at string) {
		text, _, err := d.Issue(secure.Identity{Name: name, Role: role}, days*24*time.Hour, "test")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(at, text, 0o600))
	}
	head := filepath.Join(t.TempDir(), "head.pem")
	issue("head", secure.Master, 30, head)
	require.NoError(t, os.Mkdir(below, 0o700))
	issue("desk", secure.Issuer, 200, filepath.Join(below, "issuer.pem"))
	attempt := func(dir string) (before, after *secure.Credential, err error) {
		var desk *Desk
		if dir != "" {
			desk, err = NewDesk(dir, time.Now)
			require.NoError(t, err)
		}
		g, err := guard.New(guard.Options{File: head}, secure.Master)
		require.NoError(t, err)
		before = g.Credential()
		err = renew(context.Background(), g, before, AtDesk(desk), func(*guard.News) {})
		return before, g.Credential(), err
	}
	_, _, err = attempt("")
	require.ErrorContains(t, err, "no authority at hand")
	_, _, err = attempt(below)
	require.ErrorContains(t, err, "an issuer signs peers and observers only")
	_, err = d.Revoke("head")
	require.NoError(t, err)
	_, _, err = attempt(path)
	require.ErrorContains(t, err, "it is revoked")
	issue("head", secure.Master, 30, head)
	before, after, err := attempt(path)
	require.NoError(t, err)
	require.NotEqual(t, before.Leaf().PublicKey, after.Leaf().PublicKey)
	require.Greater(t, time.Until(after.Leaf().NotAfter), 29*24*time.Hour)
	stored, err := secure.LoadCredential(head, secure.LoadOptions{})
	require.NoError(t, err)
	require.Equal(t, after.Leaf(), stored.Leaf())
	is, err := stored.Identity()
	require.NoError(t, err)
	require.Equal(t, secure.Master, is.Role)
}

// Whatever a master answers, the file is replaced by a credential alone that the peer can
// use: one for it, of its authority, that is valid now.
func TestRenewalAnswers(t *testing.T) {
	now := time.Now()
	s, err := authority.NewAuthority("trial", "", now.Add(-100*24*time.Hour))
	require.NoError(t, err)
	other, err := authority.NewAuthority("trial", "", now.Add(-100*24*time.Hour))
	require.NoError(t, err)
	_, text, err := s.NewCredential(secure.Identity{Name: "gpu-7", Role: secure.Peer}, []*x509.Certificate{s.Cert}, 30*24*time.Hour, now.Add(-25*24*time.Hour))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "gpu-7.pem")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	g, err := guard.New(guard.Options{File: path}, secure.Peer)
	require.NoError(t, err)

	sign := func(s *authority.Signer, name string, at time.Time) func(any) []*x509.Certificate {
		return func(key any) []*x509.Certificate {
			cert, err := s.Sign(secure.Identity{Name: name, Role: secure.Peer}, key, 30*24*time.Hour, at)
			require.NoError(t, err)
			return []*x509.Certificate{cert}
		}
	}
	attempt := func(grant func(any) []*x509.Certificate) error {
		return renew(context.Background(), g, g.Credential(), AtMaster(func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				der, err := readRenewal(there)
				if err != nil {
					return
				}
				csr, err := x509.ParseCertificateRequest(der)
				if err == nil {
					_, _ = there.Write((&answer{clock: now, chain: grant(csr.PublicKey)}).append(nil))
				}
			}()
			return here, nil
		}), func(*guard.News) {})
	}
	strange, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	for name, grant := range map[string]func(any) []*x509.Certificate{
		"another name":      sign(s, "gpu-8", now),
		"another authority": sign(other, "gpu-7", now),
		"not valid yet":     sign(s, "gpu-7", now.Add(time.Hour)),
		"another key":       func(any) []*x509.Certificate { return sign(s, "gpu-7", now)(strange) },
		"an authority":      func(any) []*x509.Certificate { return []*x509.Certificate{s.Cert} },
	} {
		require.ErrorContains(t, attempt(grant), "what was granted cannot be used", name)
		is, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, is, name)
	}
	require.NoError(t, attempt(sign(s, "gpu-7", now)))
	c, err := secure.LoadCredential(path, secure.LoadOptions{})
	require.NoError(t, err)
	require.Equal(t, c.Leaf(), g.Credential().Leaf())
	require.Greater(t, time.Until(c.Leaf().NotAfter), 29*24*time.Hour)
}
