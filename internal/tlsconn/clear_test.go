package tlsconn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// cleared ends TLS on both ends of a pair.
func cleared(pair func(testing.TB) (a, b net.Conn)) func(testing.TB) (a, b net.Conn) {
	return func(t testing.TB) (net.Conn, net.Conn) {
		a, b := pair(t)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		over := make(chan error)
		go func() { over <- b.(*tlsconn.Conn).Clear(ctx, false) }()
		require.NoError(t, a.(*tlsconn.Conn).Clear(ctx, true))
		require.NoError(t, <-over)
		return a, b
	}
}

// A connection that goes on in plaintext does what every connection of the data path does.
func TestConnectionsInClear(t *testing.T) {
	for name, pair := range map[string]func(testing.TB) (a, b net.Conn){
		"sockets": overSockets,
		"narrow":  overMemory(transporttest.Options{Buffer: 1000}),
	} {
		t.Run(name, func(t *testing.T) { transporttest.Suite{Pair: cleared(pair)}.Run(t) })
	}
	require.Zero(t, pool.Stats().InUse, "every buffer was given back")
}

// Both ends have agreed, so one that goes on in TLS, and one that says nothing, fail.
func TestClearNeedsBoth(t *testing.T) {
	a, b := overSockets(t)
	go func() { _, _ = a.Write([]byte("secret")) }()
	require.ErrorContains(t, b.(*tlsconn.Conn).Clear(context.Background(), false), "goes on in TLS")
	require.False(t, b.(*tlsconn.Conn).InClear())

	a, _ = overSockets(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, a.(*tlsconn.Conn).Clear(ctx, true), context.Canceled)
	require.False(t, a.(*tlsconn.Conn).InClear())

	a, b = overSockets(t)
	require.NoError(t, b.(*tlsconn.Conn).Conn.Close()) // without a word
	require.Error(t, a.(*tlsconn.Conn).Clear(context.Background(), true))
}

// A reason that a connection was ended for is that of its calls in plaintext, too.
func TestEndInClear(t *testing.T) {
	a, b := cleared(overSockets)(t)
	gone := errors.New("revoked")
	done := make(chan error)
	go func() {
		_, err := io.ReadFull(a, make([]byte, 10))
		done <- err
	}()
	_, err := b.Write([]byte("half"))
	require.NoError(t, err)
	a.(*tlsconn.Conn).End(gone)
	require.ErrorIs(t, <-done, gone)
	_, err = a.Write([]byte("more"))
	require.ErrorIs(t, err, gone)
}

// begun accepts a connection at which the other end comes in plaintext.
func begun(pair func(testing.TB) (a, b net.Conn)) func(testing.TB) (a, b net.Conn) {
	return func(t testing.TB) (net.Conn, net.Conn) {
		a, b := pair(t)
		taken := tlsconn.Server(b, nil, pool)
		over := make(chan error)
		go func() {
			_, err := a.Write([]byte{0})
			over <- err
		}()
		inTLS, err := taken.Begins(context.Background())
		require.NoError(t, err)
		require.False(t, inTLS)
		require.NoError(t, <-over)
		_, err = io.ReadFull(taken, make([]byte, 1)) // which was not lost
		require.NoError(t, err)
		return a, taken
	}
}

// A connection that does not begin in TLS does what every connection of the data path does,
// and the first byte of one that does is its handshake's.
func TestConnectionsThatDoNotBeginInTLS(t *testing.T) {
	transporttest.Suite{Pair: begun(sockets)}.Run(t)
	require.Zero(t, pool.Stats().InUse, "every buffer was given back")
}

// An end that says nothing is waited for until ctx ends, and one whose first byte is that of
// TLS has its handshake still to come.
func TestBegins(t *testing.T) {
	client, server := configs()
	a, b := sockets(t)
	taken := tlsconn.Server(b, server, pool)
	go func() { _ = tlsconn.Client(a, client, pool).Handshake(context.Background()) }()
	inTLS, err := taken.Begins(context.Background())
	require.NoError(t, err)
	require.True(t, inTLS)
	require.False(t, taken.InClear())
	require.NoError(t, taken.Handshake(context.Background()))

	_, b = sockets(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = tlsconn.Server(b, server, pool).Begins(ctx)
	require.ErrorIs(t, err, context.Canceled)

	a, b = sockets(t)
	a.Close()
	_, err = tlsconn.Server(b, server, pool).Begins(context.Background())
	require.ErrorIs(t, err, io.EOF)
}
