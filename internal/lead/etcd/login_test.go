package etcd

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// A user of etcd is known by a password, and again when its token has ended.
func TestUsers(t *testing.T) {
	f := newFake(t)
	f.password = "secret words"
	urls := map[string]string{"fake": f.URL}
	if url := startEtcd(t); url != "" {
		urls["etcd"] = url
		root := openAs(t, url, Options{})
		for _, call := range []struct {
			method string
			in     any
		}{
			{"auth/role/add", map[string]any{"name": "root"}},
			{"auth/user/add", map[string]any{"name": "root", "password": "x"}},
			{"auth/user/grant", map[string]any{"user": "root", "role": "root"}},
			{"auth/user/add", map[string]any{"name": "master", "password": f.password}},
			{"auth/user/grant", map[string]any{"user": "master", "role": "root"}},
			{"auth/enable", map[string]any{}},
		} {
			require.NoError(t, root.call(context.Background(), call.method, call.in, &struct{}{}), call.method)
		}
	}
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			as := strings.Replace(url, "http://", "http://master@", 1)
			a := openAs(t, as, Options{Password: write(t, f.password+"\n")})
			take(t, a)
			require.NoError(t, a.Commit(ctx, []byte("kept")))
			a.mu.Lock()
			a.token += "x" // as one that has ended
			a.mu.Unlock()
			require.NoError(t, a.Confirm(ctx))
			require.NoError(t, a.Resign())

			_, _, _, err := openAs(t, as, Options{Password: write(t, "another")}).Lead(ctx)
			require.Equal(t, errs.InvalidUsage, errs.CodeOf(err))
			require.ErrorContains(t, err, "invalid user ID or password")
			require.NotContains(t, err.Error(), "another")
			_, _, _, err = open(t, url).Lead(ctx)
			require.ErrorContains(t, err, "user name is empty")
		})
	}
}

// A cluster in TLS is known by who has issued its certificate, and knows the master by its own.
func TestCertificates(t *testing.T) {
	f := newFake(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	defer s.Close()
	ca := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	cert, key := pairOf(t)
	a := openAs(t, s.URL, Options{CA: ca, Cert: cert, Key: key})
	take(t, a)
	require.NoError(t, a.Confirm(context.Background()))
	for _, o := range []Options{{CA: ca}, {Cert: cert, Key: key}} {
		_, _, _, err := openAs(t, s.URL, o).Lead(context.Background())
		require.Equal(t, errs.InvalidUsage, errs.CodeOf(err))
	}
	for text, o := range map[string]Options{
		"needs its key":         {Cert: cert},
		"a key its certificate": {Key: key},
		"no certificate in PEM": {CA: key},
		"without a user":        {Password: key},
		"no such file":          {CA: ca + ".missing"},
	} {
		_, err := New(s.URL, o)
		require.Equal(t, errs.InvalidConfig, errs.CodeOf(err), text)
		require.ErrorContains(t, err, text)
	}
	_, err := New("http://a:1", Options{CA: ca})
	require.ErrorContains(t, err, "is not https")
	_, err = New("http://x@a:1", Options{Password: write(t, " \n")})
	require.ErrorContains(t, err, "is empty")
}

// Masters that do not lead know where the leader is found, if it has said so.
func TestLeaderIsFound(t *testing.T) {
	for name, url := range clusters(t) {
		t.Run(name, func(t *testing.T) {
			at := netip.MustParseAddrPort("10.1.2.3:48148")
			a, b := openAs(t, url+"/found", Options{Serves: at}), open(t, url+"/found")
			take(t, a)
			r, _, _, err := b.try(context.Background())
			require.NoError(t, err)
			require.Nil(t, r)
			require.Equal(t, at, b.Leader())
			require.False(t, a.Leader().IsValid(), "it leads itself")
			require.Contains(t, b.Describe()[0], at.String())
			require.NoError(t, a.Resign())
			take(t, b)
			require.False(t, b.Leader().IsValid())
			r, _, _, err = a.try(context.Background())
			require.NoError(t, err)
			require.Nil(t, r)
			require.False(t, a.Leader().IsValid(), "it has not said")
		})
	}
}
