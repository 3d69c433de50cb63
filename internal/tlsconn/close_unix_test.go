//go:build unix

package tlsconn_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/transport"
)

// The other end hears of a Close though a write waits, and another process, as a child that was
// forked, has the socket, too.
func TestCloseIsHeardThoughTheSocketIsHeld(t *testing.T) {
	x, y := sockets(t)
	a, b := shake(t, x, y)
	held, err := a.TCP().File()
	require.NoError(t, err)
	defer held.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := a.Write(make([]byte, 64<<20))
		wrote <- err
	}()
	_, err = io.ReadFull(b, make([]byte, 1<<20)) // it writes
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.Error(t, <-wrote)
	require.NoError(t, b.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.Copy(io.Discard, b)
	require.ErrorIs(t, err, tlsconn.ErrCut)
}

// Behind the words of a connection there is nothing to look at, until the other end has ended it.
func TestEndsCanBeLookedAt(t *testing.T) {
	x, y := sockets(t)
	a, b := shake(t, x, y)
	_, err := a.Write([]byte("hello"))
	require.NoError(t, err)
	_, err = io.ReadFull(b, make([]byte, 5))
	require.NoError(t, err)
	n, err := transport.Look(b)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, a.CloseWrite())
	n, err = transport.AwaitLook(context.Background(), b)
	require.True(t, n > 0 || err == io.EOF, "%d bytes, %v", n, err)
	_, err = b.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err, "nothing was taken")
}
