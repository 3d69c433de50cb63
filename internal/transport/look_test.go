package transport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
)

// A look waits for nothing, takes nothing, and tells a byte from the end.
func TestLook(t *testing.T) {
	a, b := sockets(t)
	n, err := transport.Look(b)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = a.Write([]byte("word"))
	require.NoError(t, err)
	for range 2 {
		n, err = transport.AwaitLook(context.Background(), b)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	n, err = transport.Look(transport.Replay(transport.Quiet(b), []byte("more")))
	require.NoError(t, err, "whatever lies over the socket")
	require.Equal(t, 1, n)
	require.NoError(t, a.(*net.TCPConn).CloseWrite())
	n, err = transport.AwaitLook(context.Background(), b)
	require.NoError(t, err)
	require.Equal(t, 1, n, "the end comes behind what was sent")
	said, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, "word", string(said))
	_, err = transport.Look(b)
	require.Equal(t, io.EOF, err)
	_, err = transport.AwaitLook(context.Background(), b)
	require.Equal(t, io.EOF, err)

	a, b = sockets(t)
	require.NoError(t, a.(*net.TCPConn).SetLinger(0))
	require.NoError(t, a.Close())
	_, err = transport.AwaitLook(context.Background(), b)
	require.Error(t, err)
}

// A wait for something to look at ends with its context, and leaves no deadline behind.
func TestAwaitLookEnds(t *testing.T) {
	a, b := sockets(t)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error)
	go func() {
		_, err := transport.AwaitLook(ctx, b)
		over <- err
	}()
	cancel()
	require.ErrorIs(t, <-over, context.Canceled)
	go a.Write([]byte("word"))
	word := make([]byte, 4)
	_, err := io.ReadFull(b, word)
	require.NoError(t, err)

	p, q := net.Pipe()
	defer p.Close()
	defer q.Close()
	_, err = transport.AwaitLook(context.Background(), p)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = transport.Look(p)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
