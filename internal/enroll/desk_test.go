package enroll

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"testing"

	"github.com/stretchr/testify/require"
)

// A request is for the Ed25519 key that has signed it, and for no other one.
func TestOnlyRequestsOfEd25519Keys(t *testing.T) {
	request := func(key crypto.Signer, err error) []byte {
		require.NoError(t, err)
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		require.NoError(t, err)
		return der
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	good := request(key, err)
	csr, ok := parse(good)
	require.True(t, ok)
	require.Equal(t, key.Public(), csr.PublicKey)

	forged := append([]byte(nil), good...)
	forged[len(forged)-1] ^= 1 // the end of the signature
	short, err := rsa.GenerateKey(rand.Reader, 2048)
	refused := map[string][]byte{
		"signed by nobody": forged, "cut": good[:len(good)-1], "nothing": nil,
		"RSA": request(short, err),
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	refused["P-256"] = request(curve, err)
	for name, der := range refused {
		_, ok := parse(der)
		require.False(t, ok, name)
	}
}
