package tlsconn_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// trusts makes a run with two peers once.
var trusts = sync.OnceValue(func() [2]*secure.Trust {
	now := time.Now()
	s, err := authority.NewAuthority("test", "", now)
	if err != nil {
		panic(err)
	}
	var out [2]*secure.Trust
	for i, name := range []string{"a", "b"} {
		_, text, err := s.NewCredential(secure.Identity{Role: secure.Peer, Name: name}, []*x509.Certificate{s.Cert}, time.Hour, now)
		if err != nil {
			panic(err)
		}
		c, err := secure.ParseCredential(text)
		if err != nil {
			panic(err)
		}
		if out[i], err = secure.NewTrust(secure.TrustOptions{Credential: c}); err != nil {
			panic(err)
		}
	}
	return out
})

var pool = buf.NewPool(0)

func configs() (client, server *tls.Config) {
	t := trusts()
	return t[0].Client(secure.Want{Purpose: secure.Data, Name: "b"}), secure.NewKeeper(t[1]).Server(secure.Data)
}

// shake puts TLS on both ends of a connection.
func shake(t testing.TB, x, y net.Conn) (a, b *tlsconn.Conn) {
	client, server := configs()
	a, b = tlsconn.Client(x, client, pool), tlsconn.Server(y, server, pool)
	over := make(chan error)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() { over <- b.Handshake(ctx) }()
	require.NoError(t, a.Handshake(ctx))
	require.NoError(t, <-over)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func sockets(t testing.TB) (a, b net.Conn) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	a, err = net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	b, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return transport.Quiet(a), transport.Quiet(b)
}

func overSockets(t testing.TB) (a, b net.Conn) {
	x, y := sockets(t)
	return shake(t, x, y)
}

func overMemory(o transporttest.Options) func(testing.TB) (a, b net.Conn) {
	return func(t testing.TB) (a, b net.Conn) {
		x, y := transporttest.Pair(o)
		return shake(t, x, y)
	}
}

// A connection in TLS does what every connection of the data path does.
func TestConnections(t *testing.T) {
	for name, pair := range map[string]func(testing.TB) (a, b net.Conn){
		"sockets": overSockets,
		"memory":  overMemory(transporttest.Options{}),
		"narrow":  overMemory(transporttest.Options{Buffer: 1000}),
		"pieces":  overMemory(transporttest.Options{Piece: 777}),
	} {
		t.Run(name, func(t *testing.T) { transporttest.Suite{Pair: pair}.Run(t) })
	}
	require.Zero(t, pool.Stats().InUse, "every buffer was given back")
}

// A call allocates no more than one of crypto/tls does.
func TestAllocations(t *testing.T) {
	ours := transporttest.Suite{Pair: overSockets}.Allocations(t)
	client, server := configs()
	a, b := sockets(t)
	c, s := tls.Client(a, client), tls.Server(b, server)
	over := make(chan error)
	go func() { over <- s.Handshake() }()
	require.NoError(t, c.Handshake())
	require.NoError(t, <-over)
	p, got := make([]byte, 1020), make([]byte, 1020)
	bare := allocs.PerRun(100, func() {
		if _, err := c.Write(p); err != nil {
			panic(err)
		}
		if _, err := io.ReadFull(s, got); err != nil {
			panic(err)
		}
	})
	require.LessOrEqual(t, ours, bare+slack)
}

// fill makes p differ in every place that a test could mix up.
func fill(n int) []byte {
	p, rng := make([]byte, n), rand.New(rand.NewPCG(1, 2))
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

// stutter is a connection whose deadline passes after every byte, once it is told.
type stutter struct {
	net.Conn
	on   atomic.Bool
	turn bool // of the one goroutine that reads
}

func (s *stutter) Read(p []byte) (int, error) {
	if !s.on.Load() {
		return s.Conn.Read(p)
	}
	if s.turn = !s.turn; s.turn {
		return 0, os.ErrDeadlineExceeded
	}
	return s.Conn.Read(p[:1])
}

func (s *stutter) Write(p []byte) (int, error) {
	if !s.on.Load() {
		return s.Conn.Write(p)
	}
	n, err := s.Conn.Write(p[:1])
	if err == nil && len(p) > 1 {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// A deadline may come at every byte of a record: reads go on behind it.
func TestDeadlineAtEveryByteRead(t *testing.T) {
	x, y := transporttest.Pair(transporttest.Options{})
	s := &stutter{Conn: y}
	a, b := shake(t, x, s)
	s.on.Store(true)
	want := fill(3000)
	_, err := a.Write(want[:1500])
	require.NoError(t, err)
	_, err = a.Write(want[1500:])
	require.NoError(t, err)
	var got []byte
	timeouts := 0
	for p := make([]byte, 4096); len(got) < len(want); {
		n, err := b.Read(p)
		if got = append(got, p[:n]...); err != nil {
			require.True(t, transport.IsTimeout(err), "%v", err)
			timeouts++
		}
	}
	require.Equal(t, want, got)
	require.GreaterOrEqual(t, timeouts, len(want), "crypto/tls went on after each of them")
}

// The same of writes: what was sealed is not lost, and nothing is sent twice.
func TestDeadlineAtEveryByteWritten(t *testing.T) {
	x, y := transporttest.Pair(transporttest.Options{})
	s := &stutter{Conn: x}
	a, b := shake(t, s, y)
	require.Nil(t, transport.NonBlocking(a), "nothing below it writes without waiting")
	s.on.Store(true)
	want := fill(3000)
	var sent, timeouts int
	for sent < len(want) {
		n, err := a.Write(want[sent:min(sent+700, len(want))])
		if sent += n; err != nil {
			require.True(t, transport.IsTimeout(err), "%v", err)
			timeouts++
		}
	}
	for {
		_, err := a.Write(nil)
		if err == nil {
			break
		}
		require.True(t, transport.IsTimeout(err), "%v", err)
		timeouts++
	}
	require.Greater(t, timeouts, len(want))
	got := make([]byte, len(want))
	_, err := io.ReadFull(b, got)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// A bit that is flipped anywhere ends the connection, and no byte of its record, or
// of a later one, is handed out.
func TestFlippedBits(t *testing.T) {
	const size = 300
	want := fill(3 * size)
	for at := 0; at < 3*(size+22); at += 7 {
		x, y := transporttest.Pair(transporttest.Options{})
		a, b := shake(t, x, y)
		x.Corrupt(x.Written()+int64(at), 1<<(at%8))
		for i := range 3 {
			_, err := a.Write(want[i*size : (i+1)*size])
			require.NoError(t, err)
		}
		require.NoError(t, a.CloseWrite())
		got, err := io.ReadAll(b)
		require.Error(t, err, "bit of byte %d", at)
		whole := at / (size + 22) * size
		require.True(t, bytes.Equal(want[:whole], got), "%d bytes of %d before byte %d", len(got), whole, at)
		// A length that grew may wait for more than was sent, and is cut off.
		a.Close()
		b.Close()
	}
}

// A stream that is cut anywhere is not one that has ended.
func TestCutStreams(t *testing.T) {
	const size = 300
	want := fill(2 * size)
	for at := 1; at <= 2*(size+22)+24; at += 5 {
		x, y := transporttest.Pair(transporttest.Options{})
		a, b := shake(t, x, y)
		x.CutAfter(x.Written() + int64(at))
		for i := range 2 {
			if _, err := a.Write(want[i*size : (i+1)*size]); err != nil {
				break
			}
		}
		_ = a.CloseWrite()
		got, err := io.ReadAll(b)
		require.Error(t, err, "after byte %d", at)
		require.True(t, bytes.HasPrefix(want, got))
		a.Close()
		b.Close()
	}
	// On the boundary of a record, and with an end of the socket that is not an error.
	x, y := sockets(t)
	a, b := shake(t, x, y)
	_, err := a.Write(want)
	require.NoError(t, err)
	require.NoError(t, x.(interface{ CloseWrite() error }).CloseWrite())
	got, err := io.ReadAll(b)
	require.Equal(t, want, got)
	require.ErrorIs(t, err, tlsconn.ErrCut)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	c, d := overSockets(t)
	_, err = c.Write(want)
	require.NoError(t, err)
	require.NoError(t, c.Close(), "which says the end")
	got, err = io.ReadAll(d)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// plain is a connection on which writes cannot be tried, as on Windows.
type plain struct{ net.Conn }

// A stream says its end on every system, and Close does not wait for a peer that reads
// nothing.
func TestEndWithoutTries(t *testing.T) {
	x, y := transporttest.Pair(transporttest.Options{Buffer: 4 << 10})
	a, b := shake(t, plain{x}, plain{y})
	require.Nil(t, a.NonBlocking())
	want := fill(300)
	_, err := a.Write(want)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, want, got)

	x, y = transporttest.Pair(transporttest.Options{Buffer: 4 << 10})
	a, _ = shake(t, plain{x}, plain{y})
	require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Millisecond)))
	_, err = a.Write(make([]byte, 16<<10))
	require.Error(t, err)
	require.NoError(t, a.Close())
}

// The end of the stream inside a frame is unexpected, though it was said.
func TestCloseNotifyInsideAFrame(t *testing.T) {
	a, b := overSockets(t)
	head := make([]byte, transport.HeaderSize)
	transport.Header{Payload: 100}.Put((*[transport.HeaderSize]byte)(head))
	_, err := a.Write(append(head, 1, 2, 3))
	require.NoError(t, err)
	require.NoError(t, a.(*tlsconn.Conn).CloseWrite())
	rd := transport.NewReader(transport.Source(b), 64)
	h, err := rd.Next()
	require.NoError(t, err)
	require.Equal(t, 100, h.Payload)
	p := make([]byte, 100)
	n, err := rd.Payload(p)
	for err == nil && n < 100 {
		var k int
		k, err = rd.Payload(p[n:])
		n += k
	}
	require.Equal(t, 3, n)
	require.Equal(t, io.ErrUnexpectedEOF, err)
}

// A handshake ends with its context, on either side.
func TestHandshakeEnds(t *testing.T) {
	client, server := configs()
	broken := errors.New("broken")
	for _, begin := range []func(net.Conn) *tlsconn.Conn{
		func(c net.Conn) *tlsconn.Conn { return tlsconn.Client(c, client, pool) },
		func(c net.Conn) *tlsconn.Conn { return tlsconn.Server(c, server, pool) },
	} {
		x, _ := sockets(t)
		c := begin(x)
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(broken)
		require.Equal(t, broken, c.Handshake(ctx))
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Close(), net.ErrClosed)
	}
	require.Zero(t, pool.Stats().InUse)
}

// What is not a handshake, or too large for one, is refused without reading on.
func TestHostileHandshakes(t *testing.T) {
	_, server := configs()
	hello := append([]byte{0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff}, make([]byte, 0x4000-4)...)
	more := append([]byte{0x16, 3, 1, 0x40, 0}, make([]byte, 0x4000)...)
	for name, bytes := range map[string][]byte{
		"HTTP":  []byte("GET / HTTP/1.1\r\n\r\n"),
		"large": append(append(hello, more...), append(more, more...)...),
	} {
		x, y := sockets(t)
		c := tlsconn.Server(y, server, pool)
		go x.Write(bytes)
		require.Error(t, c.Handshake(context.Background()), name)
		require.NoError(t, c.Close())
	}
	require.Zero(t, pool.Stats().InUse)
}

// A writer that a stalled peer holds up is woken by Close, and leaves no buffer.
func TestCloseWakesAWriter(t *testing.T) {
	for name, c := range map[string]struct {
		connect func(testing.TB) (a, b net.Conn)
		bytes   int
	}{"memory": {overMemory(transporttest.Options{}), 1 << 20}, "sockets": {overSockets, 64 << 20}} {
		t.Run(name, func(t *testing.T) {
			a, b := c.connect(t)
			over := make(chan error)
			go func() {
				_, err := a.Write(make([]byte, c.bytes))
				over <- err
			}()
			_, err := b.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, a.Close())
			require.ErrorIs(t, <-over, net.ErrClosed)
			require.NoError(t, b.Close())
			require.Zero(t, pool.Stats().InUse)
		})
	}
}

// A connection that was closed between two reads hands nothing out: its buffer may be
// another one's by then.
func TestReadAfterClose(t *testing.T) {
	a, b := overSockets(t)
	want := fill(64 << 10)
	over := make(chan error)
	go func() {
		_, err := a.Write(want)
		over <- err
	}()
	got := make([]byte, len(want)/2)
	_, err := io.ReadFull(b, got) // a busy connection, with a buffer of the pool
	require.NoError(t, err)
	require.NoError(t, <-over)
	require.NoError(t, b.Close())
	n, err := b.Read(got)
	require.Zero(t, n)
	require.ErrorIs(t, err, net.ErrClosed)
}

// counted is a connection whose reads are full as long as enough is to come, and which says what the
// largest of them had room for.
type counted struct {
	net.Conn
	toCome  int
	largest int
}

func (c *counted) Read(b []byte) (n int, err error) {
	c.largest = max(c.largest, len(b))
	if c.toCome >= len(b) {
		n, err = io.ReadFull(c.Conn, b)
	} else {
		n, err = c.Conn.Read(b)
	}
	c.toCome -= n
	return n, err
}

// A connection has memory for what comes over it: a peer has many to each other, and little comes at
// once over most of them.
func TestReadsGrowWithWhatComes(t *testing.T) {
	for _, c := range []struct{ bytes, largest int }{{2 << 10, 4 << 10}, {32 << 10, 64 << 10}, {1 << 20, 512 << 10}} {
		x, y := sockets(t)
		in := &counted{Conn: y}
		a, b := shake(t, x, in)
		in.toCome, in.largest = c.bytes, 0
		want := fill(c.bytes)
		over := make(chan error)
		go func() {
			_, err := a.Write(want)
			over <- err
		}()
		got := make([]byte, c.bytes)
		_, err := io.ReadFull(b, got)
		require.NoError(t, err)
		require.NoError(t, <-over)
		require.True(t, bytes.Equal(want, got))
		require.Equal(t, c.largest, in.largest, c.bytes)
	}
}
