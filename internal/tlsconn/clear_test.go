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
