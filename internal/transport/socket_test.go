package transport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
)

func sockets(t *testing.T) (a, b net.Conn) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	a, err = net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	b, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// A Source gives what the connection gives: bytes, then its end.
func TestSource(t *testing.T) {
	a, b := sockets(t)
	want := make([]byte, 3<<20)
	fill(want)
	go func() {
		a.Write(want)
		a.Close()
	}()
	src := transport.Source(b)
	n, err := src.Read(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	got, err := io.ReadAll(src)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

// A Source that waits is woken by a deadline and by Close, and goes on after
// the deadline was taken back.
func TestSourceIsWoken(t *testing.T) {
	a, b := sockets(t)
	src, p := transport.Source(b), make([]byte, 8)
	woken := make(chan error)
	read := func() {
		_, err := src.Read(p)
		woken <- err
	}
	go read()
	b.SetReadDeadline(time.Unix(1, 0))
	require.True(t, transport.IsTimeout(<-woken))
	b.SetReadDeadline(time.Time{})
	a.Write([]byte("x"))
	n, err := src.Read(p)
	require.NoError(t, err)
	require.Equal(t, "x", string(p[:n]))
	go read()
	b.Close()
	require.ErrorIs(t, <-woken, net.ErrClosed)
	_, err = src.Read(p)
	require.ErrorIs(t, err, net.ErrClosed)
}

// A connection that is not a socket is read as it is.
func TestSourceOfAnything(t *testing.T) {
	a, b := net.Pipe()
	require.Equal(t, io.Reader(b), transport.Source(b))
	require.Nil(t, transport.NonBlocking(a))
	a.Close()
	b.Close()
}

// fill makes p differ in every place that a test could mix up.
func fill(p []byte) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
}

// cuts divides p into buffers of all sizes, empty ones too.
func cuts(p []byte, rng *rand.Rand) (vec [][]byte) {
	for len(p) > 0 {
		n := min(len(p), rng.IntN(1<<uint(4+rng.IntN(16))))
		vec = append(vec, p[:n:n])
		p = p[n:]
	}
	return vec
}

// Several buffers arrive in order, whether the writer waits or asks again.
func TestVecWriter(t *testing.T) {
	a, b := sockets(t)
	w, ok := transport.NonBlocking(a).(transport.VecWriter)
	if !ok {
		require.Nil(t, transport.NonBlocking(a), "this system has no writes that never wait")
		return
	}
	want := make([]byte, 3<<20)
	fill(want)
	received := make(chan []byte)
	go func() {
		got := make([]byte, 2*len(want))
		n, _ := io.ReadFull(b, got)
		received <- got[:n]
	}()
	rng := rand.New(rand.NewPCG(3, 4))
	n, err := w.WriteAll(cuts(want, rng))
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	tried, stopped := 0, 0
	for tried < len(want) {
		vec := cuts(want[tried:], rng)
		n, err := w.TryWriteAll(vec)
		require.NoError(t, err)
		if n == 0 {
			stopped++
			_, err = w.WriteAll([][]byte{want[tried : tried+1]})
			require.NoError(t, err)
			n = 1
		}
		tried += n
	}
	require.True(t, bytes.Equal(append(bytes.Clone(want), want...), <-received))
}

// A write that a deadline interrupts says how much it sent.
func TestInterruptedWriteAll(t *testing.T) {
	a, b := sockets(t)
	w, ok := transport.NonBlocking(a).(transport.VecWriter)
	if !ok || !transport.Resumable(a) {
		return
	}
	want := make([]byte, 16<<20)
	fill(want)
	type result struct {
		n   int
		err error
	}
	over := make(chan result)
	go func() {
		n, err := w.WriteAll([][]byte{want[:10], want[10:]})
		over <- result{n, err}
	}()
	first := make([]byte, 1) // it has begun
	_, err := io.ReadFull(b, first)
	require.NoError(t, err)
	a.SetWriteDeadline(time.Unix(1, 0))
	r := <-over
	require.ErrorIs(t, r.err, os.ErrDeadlineExceeded)
	require.Less(t, r.n, len(want))
	a.SetWriteDeadline(time.Time{})
	go func() {
		n, err := w.WriteAll([][]byte{want[r.n:]})
		a.Close()
		over <- result{n, err}
	}()
	rest, err := io.ReadAll(b)
	require.NoError(t, err)
	require.NoError(t, (<-over).err)
	require.True(t, bytes.Equal(want, append(first, rest...)))
}

// Calls on a connection that is closed, here or at the other end, say so.
func TestVecWriterOfAClosedConnection(t *testing.T) {
	a, b := sockets(t)
	w, ok := transport.NonBlocking(a).(transport.VecWriter)
	if !ok {
		return
	}
	b.Close()
	var err error
	for err == nil {
		_, err = w.WriteAll([][]byte{make([]byte, 1<<20)})
	}
	a.Close()
	_, err = w.TryWriteAll([][]byte{{1}})
	require.True(t, errors.Is(err, net.ErrClosed))
}

// Nothing is allocated per call.
func TestNoAllocation(t *testing.T) {
	a, b := sockets(t)
	w, ok := transport.NonBlocking(a).(transport.VecWriter)
	if !ok {
		return
	}
	src := transport.Source(b)
	head, payload, got := make([]byte, 20), make([]byte, 1000), make([]byte, 1020)
	vec := make([][]byte, 2)
	each := func() {
		vec[0], vec[1] = head, payload
		if _, err := w.TryWriteAll(vec); err != nil {
			panic(err)
		}
		if _, err := io.ReadFull(src, got); err != nil {
			panic(err)
		}
	}
	each()
	if allocs := testing.AllocsPerRun(100, each); allocs > maxAllocs {
		t.Fatalf("%v allocations", allocs) // S0-14
	}
}
