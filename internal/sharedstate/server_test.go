package sharedstate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// lockedBuffer is a log that a test may read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Other protocols are closed with one line that names the remote end.
func TestGarbageIsClosed(t *testing.T) {
	for name, b := range map[string][]byte{
		"http":       []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"tls":        {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 1, 2, 3, 4, 5, 6},
		"unknown id": {0, 0, 0, 0, 0, 0, 0, 2, 0, 77},
		"length 0":   make([]byte, 16),
		"short body": {0, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0},
		"huge count": {0, 0, 0, 0, 0, 0, 0, 10, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255},
	} {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer
			s, addr := serve(t, ServerConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
			s.Open(1, state(1, 5), false)
			c, err := net.Dial("tcp4", addr.String())
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write(b)
			require.NoError(t, err)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
			n, err := c.Read(make([]byte, 100))
			require.Zero(t, n)
			require.Error(t, err)
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			require.Contains(t, log.String(), c.LocalAddr().String())
		})
	}
}

func TestThousandSilentConnections(t *testing.T) {
	src, dst := state(1, 100<<10), state(2, 100<<10)
	s, addr := serve(t, ServerConfig{MaxConns: 900})
	s.Open(1, src, false)
	for range 1000 {
		c, err := net.Dial("tcp4", addr.String())
		require.NoError(t, err)
		defer c.Close()
	}
	_, err := Fetch(context.Background(), FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst})
	require.NoError(t, err)
	requireSame(t, src, dst)
	require.LessOrEqual(t, s.conns.Len(), 1000)
}

// A connection that asks nothing is closed after the request timeout.
func TestSilentConnectionIsClosed(t *testing.T) {
	_, addr := serve(t, ServerConfig{RequestTimeout: 20 * time.Millisecond})
	c, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte{0, 0, 0})
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, isTimeout(err), "the server did not close")
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

// clingingConn reads one request; a write of tensor bytes blocks until the
// connection is closed and looks at its buffer once more before it returns.
type clingingConn struct {
	net.Conn
	request io.Reader
	writing chan struct{}
	closed  chan struct{}
	once    sync.Once
	seen    byte
}

func (c *clingingConn) Read(b []byte) (int, error) { return c.request.Read(b) }

func (c *clingingConn) Write(b []byte) (int, error) {
	if len(b) < sendPiece {
		return len(b), nil
	}
	close(c.writing)
	<-c.closed
	for _, x := range b {
		c.seen |= x
	}
	return 0, net.ErrClosed
}

func (c *clingingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *clingingConn) SetReadDeadline(time.Time) error  { return nil }
func (c *clingingConn) SetWriteDeadline(time.Time) error { return nil }
func (c *clingingConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// After Shut nobody reads the tensors, not even a requester that takes
// nothing: the trainer may write at once.
func TestShutStopsReaders(t *testing.T) {
	tensors := []Tensor{{Key: "t0", Data: make([]byte, 4*sendPiece)}}
	s := NewServer(ServerConfig{ShutGrace: time.Millisecond})
	w := s.Open(1, tensors, false)
	c := &clingingConn{
		request: bytes.NewReader(wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"t0"}})),
		writing: make(chan struct{}), closed: make(chan struct{}),
	}
	s.conns.Adopt(c)
	<-c.writing
	s.Shut(w)
	for i := range tensors[0].Data {
		tensors[0].Data[i] = 0xee
	}
	s.Close()
	require.Zero(t, c.seen, "a byte was read after Shut")
}

// The same with real sockets.
func TestShutCutsTransfers(t *testing.T) {
	src := state(1, 32<<20)
	s, addr := serve(t, ServerConfig{ShutGrace: time.Millisecond})
	w := s.Open(1, src, false)
	c, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"t0"}}))
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 100<<10)) // it is running
	require.NoError(t, err)
	s.Shut(w)
	clear(src[0].Data)
	n, _ := io.Copy(io.Discard, c)
	require.Less(t, n, int64(32<<20), "the transfer was cut")
}

// Shut lets a transfer that moves end by itself.
func TestShutLetsTransfersEnd(t *testing.T) {
	src, dst := state(1, 8<<20), state(2, 8<<20)
	s, addr := serve(t, ServerConfig{ShutGrace: time.Minute})
	w := s.Open(1, src, false)
	shut := make(chan struct{})
	var once sync.Once
	_, err := Fetch(context.Background(), FetchConfig{
		Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst,
		Progress: func(uint64, uint64, string) {
			once.Do(func() {
				go func() {
					s.Shut(w)
					close(shut)
				}()
			})
		},
	})
	require.NoError(t, err)
	<-shut
	requireSame(t, src, dst)
}

// A requester that takes nothing is given up after the stall timeout.
func TestStalledRequester(t *testing.T) {
	var log lockedBuffer
	s, addr := serve(t, ServerConfig{StallTimeout: 50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	s.Open(1, state(1, 32<<20), false)
	c, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"t0"}}))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "timeout") }, 20*time.Second, time.Millisecond)
}

// Many requesters, and some that ask again on the same connection.
func TestManyRequesters(t *testing.T) {
	sizes := []int{100 << 10, 0, 33}
	src := state(1, sizes...)
	s, addr := serve(t, ServerConfig{})
	s.Open(1, src, false)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			dst := state(uint64(i+2), sizes...)
			_, err := Fetch(context.Background(), FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst})
			if err == nil && !bytes.Equal(src[0].Data, dst[0].Data) {
				err = fmt.Errorf("content differs")
			}
			if err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()

	c, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer c.Close()
	for range 3 {
		_, err = c.Write(wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"t2"}}))
		require.NoError(t, err)
		_, err = wire.Read(c, wire.S2C, 1<<20)
		require.NoError(t, err)
		b := make([]byte, 33)
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, src[2].Data, b)
	}
}

// A holder keeps nobody waiting for a turn, however many requesters there are
// and however few of them read: a requester that hears nothing takes the holder for dead.
func TestNobodyWaitsForATurn(t *testing.T) {
	const crowd = 100
	src, dst := state(1, 1<<20), state(2, 1<<20)
	s, addr := serve(t, ServerConfig{Tune: func(c net.Conn) error {
		if q, ok := c.(interface{ TCP() *net.TCPConn }); ok {
			c = q.TCP()
		}
		return c.(*net.TCPConn).SetWriteBuffer(16 << 10)
	}})
	w := s.Open(1, src, false)
	for range crowd {
		c, err := net.Dial("tcp4", addr.String())
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.(*net.TCPConn).SetReadBuffer(16<<10))
		_, err = c.Write(wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"t0"}}))
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(15*time.Second))) // a turn would come after 30 s
		p, err := wire.Read(c, wire.S2C, 1<<10)                               // and none of the content
		require.NoError(t, err)
		require.Equal(t, wire.StateSuccess, p.(wire.S2CSharedStateResponse).Status)
	}
	_, err := Fetch(context.Background(), FetchConfig{
		Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst, StallTimeout: 8 * time.Second,
	})
	require.NoError(t, err)
	requireSame(t, src, dst)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.GreaterOrEqual(t, len(w.active), crowd, "they are all served")
}

// A request of several MiB is read, one above the cap is not.
func TestRequestSizes(t *testing.T) {
	s, addr := serve(t, ServerConfig{})
	s.Open(1, state(1, 1), false)
	keys := make([]string, 300_000)
	for i := range keys {
		keys[i] = "t0"
	}
	c, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer c.Close()
	go func() { _, _ = c.Write(wire.Append(nil, wire.C2SRequestSharedState{Keys: keys})) }()
	p, err := wire.Read(c, wire.S2C, 64<<20)
	require.NoError(t, err)
	require.Len(t, p.(wire.S2CSharedStateResponse).Entries, len(keys))
	n, err := io.CopyN(io.Discard, c, int64(len(keys)))
	require.NoError(t, err)
	require.EqualValues(t, len(keys), n)

	d, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer d.Close()
	_, err = d.Write([]byte{0, 0, 0, 0, 1, 0, 0, 1, 0, 1})
	require.NoError(t, err)
	_, err = d.Read(make([]byte, 1))
	require.Error(t, err)
}
