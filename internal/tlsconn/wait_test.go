package tlsconn_test

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// gate is a connection whose writes wait until it is closed, and which knows of no deadlines
// but for reads.
type gate struct {
	net.Conn
	shut  atomic.Bool
	ended chan struct{}
	once  sync.Once
}

func (g *gate) Write(p []byte) (int, error) {
	if g.shut.Load() {
		<-g.ended
		return 0, net.ErrClosed
	}
	return g.Conn.Write(p)
}

func (g *gate) SetDeadline(t time.Time) error  { return g.Conn.SetReadDeadline(t) }
func (*gate) SetWriteDeadline(time.Time) error { return nil }

func (g *gate) Close() error {
	g.once.Do(func() { close(g.ended) })
	return g.Conn.Close()
}

// Close does not wait where nothing can be written, and where the connection below knows of no
// deadlines, which is that of a program.
func TestCloseDoesNotWait(t *testing.T) {
	x, y := sockets(t)
	g := &gate{Conn: x, ended: make(chan struct{})}
	a, b := shake(t, g, y)
	g.shut.Store(true)
	require.NoError(t, a.Close())
	_, err := b.Read(make([]byte, 1))
	require.ErrorIs(t, err, tlsconn.ErrCut)
}

// A write that waits for the turn, which a handshake for new keys may have, ends at its deadline,
// and when the connection is closed.
func TestTurnIsAwaitedWithinBounds(t *testing.T) {
	x, y := sockets(t)
	a, b := shake(t, x, y)
	give := tlsconn.TakeTurn(a)
	require.NoError(t, a.SetWriteDeadline(time.Unix(1, 0)))
	_, err := a.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, a.CloseWrite(), os.ErrDeadlineExceeded)
	_, err = b.Read(make([]byte, 1))
	require.ErrorIs(t, err, tlsconn.ErrCut, "one side of the socket is shut all the same")
	give()

	x, y = sockets(t)
	a, _ = shake(t, x, y)
	give = tlsconn.TakeTurn(a)
	wrote, said := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := a.Write([]byte("x"))
		wrote <- err
	}()
	go func() { said <- a.CloseWrite() }()
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-wrote, net.ErrClosed)
	require.Error(t, <-said)
	give()
}

// A deadline of a write that is over does not hold new keys up, and one that comes meanwhile is
// that of the writes behind them.
func TestRenewalIgnoresDeadlines(t *testing.T) {
	x, y := sockets(t)
	a, b, judged := renewable(t, x, y, 1<<30)
	go func() { _, _ = a.Read(make([]byte, 1)) }()
	require.NoError(t, a.SetWriteDeadline(time.Unix(1, 0)))
	require.NoError(t, b.SetWriteDeadline(time.Unix(1, 0)))
	require.NoError(t, a.Renew())
	got := make([]byte, 1)
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(b, got)
		read <- err
	}()
	require.Eventually(t, func() bool { return judged[0].Load() > 0 && judged[1].Load() > 0 }, 20*time.Second, time.Millisecond)
	_, err := a.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	_, err = a.Write([]byte("x")) // it may be sealed already
	require.NoError(t, err)
	require.NoError(t, <-read)
}

// A read is interrupted while new keys wait for an end that reads nothing, and goes on later.
func TestReadIsInterruptedInARenewal(t *testing.T) {
	x, y := transporttest.Pair(transporttest.Options{Buffer: 1000}) // a flight of the handshake is larger
	a, b, judged := renewable(t, x, y, 1<<30)
	over, before := make(chan error, 1), y.Written()
	go func() {
		_, err := b.Read(make([]byte, 1))
		over <- err
	}()
	require.NoError(t, a.Renew()) // nobody reads at this end
	require.Eventually(t, func() bool { return y.Written() >= before+1000 }, 20*time.Second, time.Millisecond)
	require.NoError(t, b.SetReadDeadline(time.Unix(1, 0)))
	require.ErrorIs(t, <-over, os.ErrDeadlineExceeded)
	require.NoError(t, b.SetReadDeadline(time.Time{}))
	go func() { _, _ = a.Read(make([]byte, 1)) }()
	go func() {
		_, err := b.Read(make([]byte, 1))
		over <- err
	}()
	_, err := a.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, <-over)
	require.EqualValues(t, 1, judged[1].Load())
}
