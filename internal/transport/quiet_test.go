//go:build unix

package transport_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/platform"
)

// No way to write to a connection whose other end is gone raises the signal
// that ends a process by default.
func TestWritesRaiseNoSignal(t *testing.T) {
	heard := make(chan os.Signal, 16)
	signal.Notify(heard, syscall.SIGPIPE, syscall.SIGWINCH)
	defer signal.Stop(heard)
	some := []byte("x")
	for name, write := range map[string]func(net.Conn) (int, error){
		"write":        func(c net.Conn) (int, error) { return c.Write(some) },
		"buffers":      func(c net.Conn) (int, error) { n, err := (&net.Buffers{some, some}).WriteTo(c); return int(n), err },
		"copy":         func(c net.Conn) (int, error) { n, err := io.Copy(c, io.LimitReader(zeros{}, 8)); return int(n), err },
		"try":          func(c net.Conn) (int, error) { return try(c).TryWrite(some) },
		"try several":  func(c net.Conn) (int, error) { return try(c).TryWriteAll([][]byte{some, some}) },
		"wait several": func(c net.Conn) (int, error) { return try(c).WriteAll([][]byte{some, some}) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := sockets(t)
			a = transport.Quiet(a)
			require.NoError(t, platform.TuneP2P(a, platform.Options{}), "it can be tuned as before")
			b.Close()
			var err error
			for err == nil { // the answer of the other end takes a moment
				_, err = write(a)
			}
			_, err = write(a)
			require.Error(t, err)
		})
	}
	// Signals are delivered in the order of their numbers, if not in that of time.
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGWINCH))
	select {
	case s := <-heard:
		require.Equal(t, syscall.SIGWINCH, s, "raised by a write")
	case <-time.After(time.Minute):
		t.Fatal("the test hears no signals at all")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func try(c net.Conn) transport.VecWriter {
	w, _ := transport.NonBlocking(c).(transport.VecWriter)
	return w
}

// A quiet connection is one in every other way.
func TestQuietConnection(t *testing.T) {
	a, b := sockets(t)
	q := transport.Quiet(a)
	require.Same(t, q, transport.Quiet(q), "it is made once")
	want := make([]byte, 8<<20)
	fill(want)
	go func() {
		n, err := q.Write(want)
		if n != len(want) || err != nil {
			t.Errorf("wrote %d: %v", n, err)
		}
		q.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = b.Write([]byte("answer"))
	require.NoError(t, err)
	p := make([]byte, 6)
	_, err = io.ReadFull(transport.Source(q), p)
	require.NoError(t, err)
	require.Equal(t, "answer", string(p))

	c, d := sockets(t)
	q = transport.Quiet(c)
	var n int
	over := make(chan error)
	go func() {
		var err error
		n, err = q.Write(make([]byte, 64<<20)) // nobody reads all of it
		over <- err
	}()
	_, err = io.ReadFull(d, make([]byte, 1))
	require.NoError(t, err)
	q.SetWriteDeadline(time.Unix(1, 0)) // it has written some, and waits
	err = <-over
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.True(t, transport.IsTimeout(err))
	require.Positive(t, n)
	q.SetWriteDeadline(time.Time{})
	d.Close()
	for err = nil; err == nil; {
		_, err = q.Write([]byte("x"))
	}
	require.Equal(t, platform.ClassReset, platform.Classify(err))
	q.Close()
	_, err = q.Write([]byte("x"))
	require.True(t, errors.Is(err, net.ErrClosed))
	_, err = q.Write(nil)
	require.Error(t, err)

	pipe, other := net.Pipe()
	defer other.Close()
	defer pipe.Close()
	require.Equal(t, pipe, transport.Quiet(pipe))
}
