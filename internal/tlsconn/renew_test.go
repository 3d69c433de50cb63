package tlsconn_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// renewable are two ends whose keys are made new whenever the first one has written so many
// records; judged counts the handshakes of either end.
func renewable(t testing.TB, x, y net.Conn, after int64) (a, b *tlsconn.Conn, judged *[2]atomic.Int64) {
	a, b = shake(t, x, y)
	judged = &[2]atomic.Int64{}
	say := func(i int) func(tls.ConnectionState) error {
		return func(tls.ConnectionState) error {
			judged[i].Add(1)
			return nil
		}
	}
	client, server := configs()
	a.Renewable(true, tlsconn.Renewal{Config: func() *tls.Config { return client }, Judge: say(0), After: after})
	b.Renewable(false, tlsconn.Renewal{Config: func() *tls.Config { return server }, Judge: say(1)})
	hear(t, a, b)
	return a, b, judged
}

// hear has a read a byte that b writes.
func hear(t testing.TB, a, b net.Conn) {
	wrote := make(chan error, 1)
	go func() {
		_, err := b.Write([]byte("."))
		wrote <- err
	}()
	_, err := io.ReadFull(a, make([]byte, 1))
	require.NoError(t, errors.Join(err, <-wrote))
}

// send writes p to c in parts of all sizes, as senders do: without waiting, and then with.
func send(c *tlsconn.Conn, p []byte) error {
	try, _ := transport.NonBlocking(c).(transport.VecWriter)
	sizes := []int{1, 24, 4 << 10, 100, 70 << 10, 16 << 10, 600 << 10, 3}
	for i := 0; len(p) > 0; i++ {
		part := p[:min(len(p), sizes[i%len(sizes)])]
		p = p[len(part):]
		if try != nil && i%3 > 0 {
			n, err := try.TryWriteAll([][]byte{part[:len(part)/2], part[len(part)/2:]})
			if err != nil {
				return err
			}
			part = part[n:]
		}
		if _, err := c.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// The keys are made new in the middle of streams in both directions, and every byte
// arrives in its order.
func TestRenewal(t *testing.T) {
	for name, pair := range map[string]func() (net.Conn, net.Conn){
		"sockets": func() (net.Conn, net.Conn) { return sockets(t) },
		"narrow":  func() (net.Conn, net.Conn) { return transporttest.Pair(transporttest.Options{Buffer: 1000}) },
		"pieces":  func() (net.Conn, net.Conn) { return transporttest.Pair(transporttest.Options{Piece: 777}) },
	} {
		t.Run(name, func(t *testing.T) {
			x, y := pair()
			a, b, judged := renewable(t, x, y, 8)
			up, down := fill(2<<20), fill(1<<20)
			var wg sync.WaitGroup
			fails := make([]error, 4)
			got := [2][]byte{make([]byte, len(down)), make([]byte, len(up))}
			wg.Go(func() { fails[0] = send(a, up) })
			wg.Go(func() { fails[1] = send(b, down) })
			wg.Go(func() { _, fails[2] = io.ReadFull(a, got[0]); _, _ = io.Copy(io.Discard, a) })
			wg.Go(func() {
				_, fails[3] = io.ReadFull(b, got[1])
				for range 3 { // nobody writes any more
					n := judged[0].Load()
					require.NoError(t, a.Renew())
					go func() { _, _ = b.Read(make([]byte, 1)) }()
					require.Eventually(t, func() bool { return judged[0].Load() > n }, time.Minute, time.Millisecond)
				}
				_ = b.Close()
			})
			wg.Wait()
			for _, err := range fails {
				require.NoError(t, err)
			}
			require.True(t, bytes.Equal(down, got[0]))
			require.True(t, bytes.Equal(up, got[1]))
			require.Greater(t, judged[0].Load(), int64(8))
			_ = a.Close()
		})
	}
	require.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, time.Minute, time.Millisecond, "every buffer was given back")
}

// Behind the first word of an end that has dialled comes nothing before it is answered: the
// other end may look whether it is still there. Then the keys are made new.
func TestRenewalWaitsForAnAnswer(t *testing.T) {
	x, y := sockets(t)
	a, b := shake(t, x, y)
	client, server := configs()
	var judged atomic.Int64
	judge := func(tls.ConnectionState) error { judged.Add(1); return nil }
	a.Renewable(true, tlsconn.Renewal{Config: func() *tls.Config { return client }, Judge: judge})
	b.Renewable(false, tlsconn.Renewal{Config: func() *tls.Config { return server }, Judge: judge})
	got, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := io.ReadFull(b, make([]byte, 10))
		got <- err
		_, err = io.Copy(io.Discard, b)
		ended <- err
	}()
	go func() { _, _ = io.Copy(io.Discard, a) }()
	_, err := a.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, a.Renew())
	_, err = a.Write([]byte("again")) // it would wait for new keys that are being made
	require.NoError(t, err)
	require.NoError(t, <-got)
	require.Zero(t, judged.Load())
	_, err = b.Write([]byte("."))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return judged.Load() == 2 }, time.Minute, time.Millisecond)
	_, err = a.Write([]byte("on")) // it waits until the handshake is over
	require.NoError(t, err)
	_ = a.Close()
	require.NoError(t, <-ended)
}

// An endpoint that may not go on is refused in a connection that is open, and both ends say
// why they end it.
func TestRenewalIsJudged(t *testing.T) {
	a, b := overSockets(t)
	client, server := configs()
	gone := errors.New("it has expired")
	a.(*tlsconn.Conn).Renewable(true, tlsconn.Renewal{Config: func() *tls.Config { return client }, Judge: func(tls.ConnectionState) error { return nil }})
	b.(*tlsconn.Conn).Renewable(false, tlsconn.Renewal{Config: func() *tls.Config { return server }, Judge: func(tls.ConnectionState) error { return gone }})
	require.Error(t, b.(*tlsconn.Conn).Renew(), "it has not dialled")
	hear(t, a, b)
	require.NoError(t, a.(*tlsconn.Conn).Renew())
	fails := make(chan error)
	go func() {
		_, err := a.Read(make([]byte, 1))
		fails <- err
	}()
	_, err := b.Read(make([]byte, 1))
	require.ErrorIs(t, err, gone)
	require.ErrorContains(t, err, "could not be made new")
	require.Error(t, <-fails)
}

// held is a socket that somebody on the way keeps open when its end has closed it.
type held struct{ net.Conn }

func (held) Close() error { return nil }

// The handshake of a fresh connection does not continue one that has ended.
func TestRenewalIsOfItsConnection(t *testing.T) {
	x, y := sockets(t)
	a, b, judged := renewable(t, held{x}, y, 0)
	got := make(chan error, 1)
	go func() {
		n, err := b.Read(make([]byte, 100))
		if n > 0 {
			err = errors.New("it took bytes of another connection")
		}
		got <- err
	}()
	require.NoError(t, a.Close())
	client, _ := configs()
	fresh := tls.Client(x, client)
	go func() { // its handshake may end well: it is not told that it was refused until later
		_, _ = fresh.Write([]byte("what a fresh connection says"))
	}()
	err := <-got
	require.ErrorContains(t, err, "does not belong to this connection")
	require.Zero(t, judged[1].Load())
	_ = x.Close()
}

// A write that may not wait takes nothing while another goroutine has the turn.
func TestTryWriteDoesNotWaitForATurn(t *testing.T) {
	x, y := sockets(t)
	a, b, _ := renewable(t, x, y, 0)
	try := transport.NonBlocking(a)
	go func() { _, _ = b.Read(make([]byte, 1)) }()
	give := tlsconn.TakeTurn(a)
	n, err := try.TryWrite([]byte("x"))
	require.NoError(t, err)
	require.Zero(t, n)
	give()
	n, err = try.TryWrite([]byte("x"))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, _ = a.Close(), b.Close()
}

// A write waits for new keys no longer than it may, never where it is not to wait, and goes
// on where it was; an end that is closed then leaves nothing behind.
func TestRenewalIsInterrupted(t *testing.T) {
	x, y := sockets(t)
	a, b, _ := renewable(t, x, y, 1<<30)
	over := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		over <- err
	}()
	require.NoError(t, a.Renew()) // nobody reads at the other end
	n, err := transport.NonBlocking(a).TryWrite([]byte("x"))
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Millisecond)))
	_, err = a.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	go func() { _, _ = io.Copy(io.Discard, b) }()
	_, err = a.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-over, net.ErrClosed)

	p := fill(600 << 10)
	for i := range 20 { // at all moments
		x, y := sockets(t)
		a, b, _ := renewable(t, x, y, 2)
		go func() { _, _ = io.Copy(io.Discard, a) }()
		done := make(chan struct{})
		go func() { defer close(done); _ = send(a, p) }()
		_, err := io.CopyN(io.Discard, b, int64(i)*20_000)
		require.NoError(t, err)
		_ = []*tlsconn.Conn{a, b}[i%2].Close()
		<-done
	}
}

// An end that has read all that there is goes on to write, with the keys that it has.
func TestNoRenewalWhenNothingIsRead(t *testing.T) {
	x, y := sockets(t)
	a, b, judged := renewable(t, x, y, 30)
	require.NoError(t, b.CloseWrite())
	_, err := a.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	p := fill(600 << 10)
	done := make(chan error, 1)
	go func() { done <- errors.Join(send(a, p), a.Renew(), a.CloseWrite()) }()
	all, err := io.ReadAll(b)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, bytes.Equal(p, all))
	require.Zero(t, judged[0].Load()+judged[1].Load())
}

// A connection that is reset while new keys are made has no goroutine that reads any more: who
// writes reads why.
func TestRenewalIsReset(t *testing.T) {
	x, y := sockets(t)
	a, b, _ := renewable(t, x, y, 1<<30)
	over := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		over <- err
	}()
	require.NoError(t, a.Renew()) // nobody reads at the other end
	done := make(chan error, 1)
	go func() {
		_, err := a.Write([]byte("x"))
		done <- err
	}()
	// The system tells of a reset once, to the call that comes first: the read, when there is nothing
	// left to write.
	_, err := b.Conn.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, b.SetLinger(0))
	require.NoError(t, b.Conn.Close())
	require.ErrorIs(t, <-over, syscall.ECONNRESET)
	require.ErrorContains(t, <-done, "could not be made new")
}

// What the end that was dialled writes wears the keys out, too: the other one, which alone can
// begin, counts what it reads.
func TestRenewalBecauseOfWhatIsRead(t *testing.T) {
	x, y := sockets(t)
	a, b, judged := renewable(t, x, y, 8)
	go func() { _, _ = io.Copy(io.Discard, b) }()
	got := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(a)
		got <- all
	}()
	down := fill(16 * 16 << 10)
	for i := range int64(3) {
		require.NoError(t, send(b, down))
		require.Eventually(t, func() bool { return judged[0].Load() > i && judged[1].Load() > i }, time.Minute, time.Millisecond)
	}
	require.NoError(t, b.CloseWrite())
	require.True(t, bytes.Equal(slices.Repeat(down, 3), <-got))
}
