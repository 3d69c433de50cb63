package enroll

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/authority"
)

// Any bytes are a request or an error, and a request is written as it was read.
func FuzzRequest(f *testing.F) {
	r := request{token: [8]byte{1}, proof: [32]byte{2}, csr: []byte("request")}
	f.Add(r.append(nil))
	f.Add((&request{}).append(nil))
	f.Add(append((&request{csr: make([]byte, maxRequest)}).append(nil), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readRequest(bytes.NewReader(b))
		if err != nil {
			require.Less(t, len(err.Error()), 200)
			return
		}
		require.LessOrEqual(t, len(r.csr), maxRequest)
		require.True(t, bytes.HasPrefix(b, r.append(nil)))
	})
}

// Any bytes are a request to renew or an error, and a request is written as it was read.
func FuzzRenewal(f *testing.F) {
	f.Add(askRenewal([]byte("request")))
	f.Add(append(askRenewal(make([]byte, maxRequest)), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		csr, err := readRenewal(bytes.NewReader(b))
		if err != nil {
			require.Less(t, len(err.Error()), 200)
			return
		}
		require.LessOrEqual(t, len(csr), maxRequest)
		require.True(t, bytes.HasPrefix(b, askRenewal(csr)))
	})
}

// Any bytes are an answer or an error, and an answer is written as it was read.
func FuzzAnswer(f *testing.F) {
	s, err := authority.NewAuthority("test", "", time.Now())
	require.NoError(f, err)
	f.Add((&answer{clock: time.UnixMilli(1), chain: []*x509.Certificate{s.Cert, s.Cert}}).append(nil))
	f.Add((&answer{clock: time.UnixMilli(1), reason: "no"}).append(nil))
	f.Add([]byte{granted, 0, 0, 0, 0, 0, 0, 0, 0, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readAnswer(bytes.NewReader(b))
		if err != nil {
			require.Less(t, len(err.Error()), 200)
			return
		}
		require.LessOrEqual(t, len(a.chain), maxChain)
		require.True(t, bytes.HasPrefix(b, a.append(nil)))
	})
}
