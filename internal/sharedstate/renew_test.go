package sharedstate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
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

// A transfer in TLS goes on when the keys of its connection are used up: they are made new
// as often as it takes, also within one tensor. The bounds are lowered here.
func TestKeysAreMadeNewInATransfer(t *testing.T) {
	const after, most, size = 64, 2048, 40 << 20 // records of 16 KiB, and at least 5,120 of them in all
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
	renewal := func(config *tls.Config) tlsconn.Renewal {
		return tlsconn.Renewal{After: after, Most: most, Config: func() *tls.Config { return config }, Judge: func(tls.ConnectionState) error {
			renewed.Add(1)
			return nil
		}}
	}
	server := secure.NewKeeper(trust("b")).Server(secure.State)
	holder, addr := serve(t, ServerConfig{LongAnswer: size, Security: sockets.Security{
		Wrap: func(conn net.Conn) net.Conn { return tlsconn.Server(conn, server, pool) },
		Greet: func(conn net.Conn) (string, error) {
			c := conn.(*tlsconn.Conn)
			err := c.Handshake(context.Background())
			c.Renewable(false, renewal(server))
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
		c.Renewable(true, renewal(client))
		return c, nil
	}})
	require.NoError(t, err)
	require.Zero(t, got.Retries)
	requireSame(t, theirs, mine)
	require.Positive(t, renewed.Load())
}
