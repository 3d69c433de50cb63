package secure_test

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
)

// Any bytes are a credential or an error, and a credential is one that checks.
func FuzzCredential(f *testing.F) {
	ours := newRun(f)
	desk := ours.issuer(secure.Identity{Name: "desk"}, noon, month)
	for _, s := range []run{ours, desk} {
		_, text, err := s.NewCredential(secure.Identity{Role: secure.Peer, Name: "gpu-7", Groups: []uint32{1}}, []*x509.Certificate{ours.Cert}, month, noon)
		require.NoError(f, err)
		f.Add(text)
		blocks := split(text)
		f.Add([]byte(blocks[1] + blocks[0]))
		f.Add([]byte(strings.ReplaceAll(string(text), secure.AuthorityHeader, "Proc-Type")))
	}
	for _, kind := range []string{"CERTIFICATE", "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "X509 CRL", "CERTIFICATE REQUEST", "PUBLIC KEY"} {
		f.Add(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte("0\x03\x02\x01\x01")}))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := secure.ParseCredential(text)
		if err != nil {
			require.ErrorIs(t, err, errs.CorruptFile)
			require.Less(t, len(err.Error()), 1000)
			return
		}
		require.NotNil(t, c.Signer())
		require.NotEmpty(t, c.Authorities())
		_, err = secure.NewTrust(secure.TrustOptions{Credential: c})
		require.NoError(t, err)
		_, _ = c.Identity()
	})
}

// Any text is a token or an error; a token is written as it was read.
func FuzzToken(f *testing.F) {
	for _, masters := range [][]string{nil, {"10.0.0.1:48148"}, {"a:1", "[fd00::1]:65535"}} {
		text, err := secure.Token{Secret: secure.NewSecret([]byte("sixteen letters!")), Masters: masters}.Text()
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add("gopccl1.")
	f.Add("gopccl2.AAAA")
	f.Add("K10abc::server:secret")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := secure.ParseToken(text)
		if err != nil {
			require.ErrorIs(t, err, errs.InvalidConfig)
			return
		}
		again, err := token.Text()
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(text), again)
	})
}

// Any bytes are a revocation list or an error.
func FuzzList(f *testing.F) {
	ours := newRun(f)
	l := ours.list(3, []secure.Denied{{Role: secure.Peer, Name: "gpu-7", Upto: noon}}, ours.Cert)
	f.Add(l.DER())
	f.Add(ours.list(0, nil).DER())
	f.Fuzz(func(t *testing.T, der []byte) {
		l, err := secure.ParseList(der)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, l.Number(), int64(0))
		_ = l.Serials()
		_ = l.Names()
	})
}
