package sharedstate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/tlsconn"
)

// gate is the socket of an end that writes no more than a part of what its keys are good for before it has begun to
// make them new: on a machine that is busy it would go on for as long as the goroutines that do it wait.
type gate struct {
	net.Conn
	most int // bytes

	mu    sync.Mutex
	left  int
	begun chan struct{} // closed when keys are made new, and made again
}

func newGate(conn net.Conn, most int) *gate {
	return &gate{Conn: conn, most: most, left: most, begun: make(chan struct{})}
}

func (g *gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	shut := g.left < 0
	g.left -= len(b)
	begun := g.begun
	g.mu.Unlock()
	if shut {
		select {
		case <-begun:
		case <-time.After(time.Minute):
			return 0, errors.New("the keys were not made new")
		}
	}
	return g.Conn.Write(b)
}

func (g *gate) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = g.most
	close(g.begun)
	g.begun = make(chan struct{})
}

// A transfer in TLS goes on when the keys of its connection are used up: they are made new
// as often as it takes, also within one tensor. The bounds are lowered here.
func TestKeysAreMadeNewInATransfer(t *testing.T) {
	const record, after, most, size = 16 << 10, 64, 2048, 40 << 20 // at least 5,120 records in all
	now, pool := time.Now(), buf.NewPool(0)
	s, err := authority.NewAuthority("test", "", now)
	require.NoError(t, err)
	trust := func(name string) *secure.Trust {
		_, text, err := s.NewCredential(secure.Identity{Role: secure.Peer, Name: name}, []*x509.Certificate{s.Cert}, time.Hour, now)
		require.NoError(t, err)
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		trust, err := secure.NewTrust(secure.TrustOptions{Credential: c})
		require.NoError(t, err)
		return trust
	}
	var renewed atomic.Int64
	renewal := func(config *tls.Config, begin func()) tlsconn.Renewal {
		return tlsconn.Renewal{After: after, Most: most, Config: func() *tls.Config { begin(); return config }, Judge: func(tls.ConnectionState) error {
			renewed.Add(1)
			return nil
		}}
	}
	server := secure.NewKeeper(trust("b")).Server(secure.State)
	holder, addr := serve(t, ServerConfig{LongAnswer: size, Security: sockets.Security{
		Wrap: func(conn net.Conn) net.Conn { return tlsconn.Server(newGate(conn, most/2*record), server, pool) },
		Greet: func(conn net.Conn) (string, error) {
			c := conn.(*tlsconn.Conn)
			err := c.Handshake(context.Background())
			c.Renewable(false, renewal(server, c.Conn.(*gate).begin))
			return "a", err
		},
	}})
	theirs, mine := state(3, size, 1000, size), state(4, size, 1000, size)
	defer holder.Shut(holder.Open(7, theirs, false))
	client := trust("a").Client(secure.Want{Purpose: secure.State, Name: "b"})
	got, err := impatient(FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(theirs, false), Tensors: mine, Dial: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		c := tlsconn.Client(conn, client, pool)
		if err := c.Handshake(ctx); err != nil {
			return nil, err
		}
		c.Renewable(true, renewal(client, func() {}))
		return c, nil
	}})
	require.NoError(t, err)
	require.Zero(t, got.Retries)
	requireSame(t, theirs, mine)
	require.Positive(t, renewed.Load())
}
