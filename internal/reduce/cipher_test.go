package reduce

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/transport"
)

// quietLoopback is a connection as mesh makes it.
func quietLoopback(t testing.TB) (send, recv net.Conn) {
	a, b := loopback(t)
	return transport.Quiet(a), transport.Quiet(b)
}

// enciphered returns what makes connections in TLS.
func enciphered(t testing.TB) func(testing.TB) (send, recv net.Conn) { return rekeyed(t, 0, nil) }

// rekeyed is enciphered with connections whose keys are made new after so many records,
// which is counted; 0: never.
func rekeyed(t testing.TB, after int64, count *atomic.Int64) func(testing.TB) (send, recv net.Conn) {
	s, err := authority.NewAuthority("test", "", time.Now())
	require.NoError(t, err)
	_, text, err := s.NewCredential(secure.Identity{Role: secure.Peer, Name: "a"}, []*x509.Certificate{s.Cert}, time.Hour, time.Now())
	require.NoError(t, err)
	c, err := secure.ParseCredential(text)
	require.NoError(t, err)
	trust, err := secure.NewTrust(secure.TrustOptions{Credential: c})
	require.NoError(t, err)
	server, pool := secure.NewKeeper(trust).Server(secure.Data), buf.NewPool(0)
	return func(t testing.TB) (net.Conn, net.Conn) {
		x, y := quietLoopback(t)
		send, recv := tlsconn.Client(x, trust.Client(secure.Want{Purpose: secure.Data}), pool), tlsconn.Server(y, server, pool)
		over := make(chan error)
		go func() { over <- recv.Handshake(context.Background()) }()
		require.NoError(t, send.Handshake(context.Background()))
		require.NoError(t, <-over)
		if after > 0 {
			judge := func(tls.ConnectionState) error { count.Add(1); return nil }
			send.Renewable(true, tlsconn.Renewal{Config: func() *tls.Config { return trust.Client(secure.Want{Purpose: secure.Data}) }, Judge: judge, After: after})
			recv.Renewable(false, tlsconn.Renewal{Config: func() *tls.Config { return server }, Judge: judge})
		}
		return send, recv
	}
}

// timed is a ring that counts what its all-reduces cost.
type timed struct {
	*ring
	specs []Spec
	want  []byte
	times []time.Duration
	took  uint64 // allocations
}

func newTimed(t testing.TB, n, bytes int, link func(testing.TB) (net.Conn, net.Conn)) *timed {
	r := newRing(t, shape{n: n, native: true, knows: true, link: link})
	specs, want := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, bytes/4, false)
	return &timed{ring: r, specs: specs, want: want}
}

func (r *timed) run(t testing.TB) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	r.start(r.specs).ok(t)
	r.times = append(r.times, time.Since(began))
	runtime.ReadMemStats(&after)
	r.took += after.Mallocs - before.Mallocs
}

// frames returns how many were sent.
func (r *timed) frames() (n uint64) {
	for _, e := range r.eng {
		n += e.Stats().TxFrames
	}
	return n
}

func (r *timed) median() float64 {
	slices.Sort(r.times)
	return float64(r.times[len(r.times)/2])
}

// An all-reduce in TLS has the result of one in plaintext.
func TestCipher(t *testing.T) {
	r := newTimed(t, 3, 1<<20, enciphered(t))
	r.run(t)
	for i, s := range r.specs {
		require.Equal(t, r.want, s.Dst, "rank %d", i)
	}
}

// Keys are made new in the middle of all-reduces of all sizes: none is aborted, and the
// bits are those of one in plaintext.
func TestKeysMadeNew(t *testing.T) {
	for bytes, turns := range map[int]int{4 << 10: 60, 400 << 10: 8, 4 << 20: 2} {
		var count atomic.Int64
		r := newTimed(t, 3, bytes, rekeyed(t, 4, &count))
		for range turns {
			r.run(t)
			for i, s := range r.specs {
				require.Equal(t, r.want, s.Dst, "rank %d", i)
			}
		}
		require.Greater(t, count.Load(), int64(20), "of %d bytes", bytes)
	}
}

// BenchmarkCipher makes all-reduces in plaintext and in TLS by turns. It prints the
// ratio of the medians of their times, and the allocations for each piece of an
// operation, which is a frame.
func BenchmarkCipher(b *testing.B) {
	for _, bytes := range []int{4 << 10, 400 << 10, 64 << 20} {
		b.Run(fmt.Sprintf("n2/%dKiB", bytes>>10), func(b *testing.B) {
			plain, tls := newTimed(b, 2, bytes, quietLoopback), newTimed(b, 2, bytes, enciphered(b))
			for _, r := range []*timed{plain, tls} {
				r.start(r.specs).ok(b)
			}
			skip := [2]uint64{plain.frames(), tls.frames()}
			for b.Loop() {
				plain.run(b)
				tls.run(b)
			}
			b.ReportMetric(0, "ns/op") // it would be that of both
			b.ReportMetric(plain.median()/1e6, "plain-ms")
			b.ReportMetric(tls.median()/1e6, "tls-ms")
			b.ReportMetric(tls.median()/plain.median(), "tls/plain")
			b.ReportMetric(float64(plain.took)/float64(plain.frames()-skip[0]), "plain-allocs/piece")
			b.ReportMetric(float64(tls.took)/float64(tls.frames()-skip[1]), "tls-allocs/piece")
		})
	}
}
