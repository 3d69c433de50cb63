//go:build unix

package tlsconn_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/tlsconn"
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
