package transporttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/internal/transport"
)

// Suite is what every kind of connection of the data path has to do.
type Suite struct {
	// Pair returns the two ends of a connection, which are closed with the test.
	Pair func(t testing.TB) (a, b net.Conn)
}

// finish says the end of what was written, where a connection has a way to wait
// for that, and closes it.
func finish(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	}
	c.Close()
}

// Run runs all of it.
func (s Suite) Run(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"source": s.source, "woken": s.woken, "vectors": s.vectors, "interrupted": s.interrupted,
		"closed": s.closed, "never waits": s.NeverWaits,
	} {
		t.Run(name, test)
	}
}

// NeverWaits: on a full connection TryWrite takes what fits and returns.
func (s Suite) NeverWaits(t *testing.T) {
	a, b := s.Pair(t)
	w := transport.NonBlocking(a)
	if w == nil {
		return // this system has none for sockets
	}
	block := bytes.Repeat([]byte("0123456789"), 10_000)
	sent := 0
	for {
		n, err := w.TryWrite(block)
		require.NoError(t, err)
		sent += n
		if n < len(block) {
			break
		}
	}
	drain := func(n int) []byte {
		done := make(chan []byte)
		go func() {
			p := make([]byte, n)
			k, _ := io.ReadFull(b, p)
			done <- p[:k]
		}()
		for {
			select {
			case got := <-done:
				require.Len(t, got, n)
				return got
			default:
			}
			if f, ok := w.(transport.Flusher); ok && !f.Flushed() {
				_, err := w.TryWrite(nil)
				require.NoError(t, err)
			}
			runtime.Gosched()
		}
	}
	drain(sent)
	a.SetWriteDeadline(time.Unix(1, 0))
	taken, err := w.TryWrite(block)
	require.True(t, transport.IsTimeout(err), "%v", err)
	a.SetWriteDeadline(time.Time{})
	require.Equal(t, block[:taken], drain(taken))
	n, err := w.TryWrite([]byte("x"))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "x", string(drain(1)))
	require.Zero(t, allocs.PerRun(1, func() { w.TryWrite(nil) }))
	a.Close()
	_, err = w.TryWrite(block)
	require.ErrorIs(t, err, net.ErrClosed)
}

// A Source gives what the connection gives: bytes, then its end.
func (s Suite) source(t *testing.T) {
	a, b := s.Pair(t)
	want := make([]byte, 3<<20)
	fill(want)
	go func() {
		a.Write(want)
		finish(a)
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
func (s Suite) woken(t *testing.T) {
	a, b := s.Pair(t)
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

// Several buffers arrive in order, whether the writer waits or asks again.
func (s Suite) vectors(t *testing.T) {
	a, b := s.Pair(t)
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
	if _, ok := w.(transport.Flusher); ok {
		_, err = w.WriteAll(nil)
		require.NoError(t, err)
	}
	require.True(t, bytes.Equal(append(bytes.Clone(want), want...), <-received))
}

// A write that a deadline interrupts says how much it sent.
func (s Suite) interrupted(t *testing.T) {
	a, b := s.Pair(t)
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
		finish(a)
		over <- result{n, err}
	}()
	rest, err := io.ReadAll(b)
	require.NoError(t, err)
	require.NoError(t, (<-over).err)
	require.True(t, bytes.Equal(want, append(first, rest...)))
}

// Calls on a connection that is closed, here or at the other end, say so.
func (s Suite) closed(t *testing.T) {
	a, b := s.Pair(t)
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

// Allocations returns what a write and a read of a small message allocate.
func (s Suite) Allocations(t *testing.T) float64 {
	a, b := s.Pair(t)
	w, ok := transport.NonBlocking(a).(transport.VecWriter)
	if !ok {
		return 0
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
	return allocs.PerRun(100, each)
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
