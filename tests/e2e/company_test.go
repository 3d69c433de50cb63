package e2e

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
)

// company is an authority that knows nothing of gopccl: a root, and below it what signs.
type company struct {
	t            testing.TB
	root, office *x509.Certificate
	key          crypto.Signer // of the office
}

func newCompany(t testing.TB) company {
	key := func(curve elliptic.Curve) crypto.Signer {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		require.NoError(t, err)
		return k
	}
	c := company{t: t}
	top := key(elliptic.P384())
	c.root = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "Example Root"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}, nil, top.Public(), top)
	c.key = key(elliptic.P256())
	c.office = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "Example Office"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}, c.root, c.key.Public(), top)
	return c
}

// sign makes a certificate; without a parent it is self-signed.
func (c company) sign(x, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(c.t, err)
	x.SerialNumber, x.BasicConstraintsValid = n, true
	x.NotBefore, x.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if parent == nil {
		parent = x
	}
	der, err := x509.CreateCertificate(rand.Reader, x, parent, pub, key)
	require.NoError(c.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(c.t, err)
	return cert
}

// file writes a credential as docs/security.md says. The key is in RSA, which gopccl itself
// does not make.
func (c company) file(change func(*x509.Certificate)) string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(c.t, err)
	x := &x509.Certificate{
		Subject: pkix.Name{CommonName: "no matter"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	change(x)
	leaf := c.sign(x, c.office, key.Public(), c.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(c.t, err)
	var text bytes.Buffer
	for _, b := range []*pem.Block{
		{Type: "CERTIFICATE", Bytes: leaf.Raw},
		{Type: "CERTIFICATE", Bytes: c.office.Raw},
		{Type: "PRIVATE KEY", Bytes: der},
		{Type: "CERTIFICATE", Headers: map[string]string{secure.AuthorityHeader: "yes"}, Bytes: c.root.Raw},
	} {
		require.NoError(c.t, pem.Encode(&text, b))
	}
	path := filepath.Join(c.t.TempDir(), "me.pem")
	require.NoError(c.t, os.WriteFile(path, text.Bytes(), 0o600))
	return path
}

// A run with certificates that a company has made: URIs and DNS names say who is what.
// The master refuses a certificate that fits none of the identities, or is not for the group
// or the purpose. One of another company is refused, whatever names it has.
func TestCompanysCertificates(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, other := newCompany(t), newCompany(t)
	identities := []secure.Mapping{
		{URI: "spiffe://example.org/train/*", Role: secure.Peer, Groups: []uint32{0, 3}},
		{URI: "dns:*.train.example.org", Role: secure.Peer, Groups: []uint32{0}},
		{URI: "spiffe://example.org/head", Role: secure.Master},
	}
	of := func(c company, change func(*x509.Certificate)) core.SecurityOptions {
		return core.SecurityOptions{File: c.file(change), Identities: identities}
	}
	uri := func(text string) func(*x509.Certificate) {
		u, err := url.Parse(text)
		require.NoError(t, err)
		return func(x *x509.Certificate) { x.URIs = []*url.URL{u} }
	}
	head := of(c, uri("spiffe://example.org/head"))
	leads := func() (string, *lockedLog) {
		return newRealm(t).master(func(o *core.MasterOptions) { o.Security = head })
	}
	addr, log := leads()
	peers := []core.SecurityOptions{
		of(c, uri("spiffe://example.org/train/gpu-0")),
		of(c, func(x *x509.Certificate) { x.DNSNames = []string{"gpu-1.train.example.org"} }),
	}
	comms := world(t, ctx, addr, 2, func(id int, o *core.Options) { o.Security = peers[id] })
	sums(t, ctx, comms)
	weights := make([]float32, 100)
	for _, err := range each(comms, func(id int, c *core.Communicator) error {
		st := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("w", weights)}}
		if id == 0 {
			st.Revision, st.Tensors[0] = 1, core.TensorOf("w", slices.Repeat([]float32{7}, 100))
		}
		_, err := c.SyncSharedState(ctx, st, core.SyncOptions{})
		return err
	}) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 7, weights[99])
	log.has(t, "spiffe://example.org/train/gpu-0", "dns:gpu-1.train.example.org")

	for _, no := range []struct {
		who   core.SecurityOptions
		group uint32
		says  string // the log of the master, or the error
	}{
		{of(c, uri("spiffe://example.org/infer/gpu-2")), 0, "no mapping of security.identities fits it"},
		{of(c, uri("spiffe://example.org/train/a/gpu-2")), 0, "no mapping of security.identities fits it"},
		{of(c, func(x *x509.Certificate) { x.Subject.CommonName = "gpu-2.train.example.org" }), 0, "no mapping of security.identities fits it"},
		{of(c, uri("spiffe://example.org/head")), 0, "wrong role"},
		{of(other, uri("spiffe://example.org/train/gpu-0")), 0, "unknown authority"},
		{of(c, func(x *x509.Certificate) {
			uri("spiffe://example.org/train/gpu-2")(x)
			x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), 0, "incompatible key usage"},
		{of(c, uri("spiffe://example.org/train/gpu-2")), 5, "group 5"},
		{of(c, func(x *x509.Certificate) { x.DNSNames = []string{"gpu-2.train.example.org"} }), 3, "group 3"},
	} {
		at, log := leads() // a log has one line for an address and a kind
		err := tryConnect(ctx, at, no.who, no.group)
		require.Error(t, err, no.says)
		if !strings.Contains(err.Error(), no.says) {
			log.has(t, no.says)
		}
	}
	sums(t, ctx, comms)

	// A peer believes no master that is none.
	fake, _ := newRealm(t).master(func(o *core.MasterOptions) { o.Security = of(c, uri("spiffe://example.org/train/gpu-2")) })
	require.ErrorContains(t, tryConnect(ctx, fake, peers[0], 0), "wrong role")
	fake, _ = newRealm(t).master(func(o *core.MasterOptions) { o.Security = of(other, uri("spiffe://example.org/head")) })
	require.ErrorContains(t, tryConnect(ctx, fake, peers[0], 0), "unknown authority")
}
