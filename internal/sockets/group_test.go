package sockets

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// group serves echoes on a port of its own. Each connection says "hello" first.
func group(t *testing.T, cfg Config, wrap func(net.Listener) net.Listener) (g *Group, dial func() net.Conn) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	if wrap != nil {
		ln = wrap(ln)
	}
	cfg.Name = "echo"
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Handle == nil {
		cfg.Handle = func(c net.Conn) {
			_, _ = io.WriteString(c, "hello")
			_, _ = io.Copy(c, c)
		}
	}
	g = NewGroup(cfg)
	go g.Serve(ln)
	t.Cleanup(func() { g.Stop(); g.Wait() })
	return g, func() net.Conn {
		c, err := net.Dial("tcp4", addr)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func greeted(t *testing.T, c net.Conn) bool {
	b := make([]byte, 5)
	_, err := io.ReadFull(c, b)
	return err == nil && string(b) == "hello"
}

// Beyond the bound connections are closed at once; the others are not touched.
func TestFullWithoutEviction(t *testing.T) {
	g, dial := group(t, Config{Max: 2}, nil)
	a, b := dial(), dial()
	require.True(t, greeted(t, a))
	require.True(t, greeted(t, b))
	require.False(t, greeted(t, dial()))
	require.Equal(t, 2, g.Len())
	_, err := io.WriteString(a, "hello")
	require.NoError(t, err)
	require.True(t, greeted(t, a))
}

// With eviction the oldest one that has not spoken makes room.
func TestEviction(t *testing.T) {
	conns := make(chan net.Conn, 8)
	g, dial := group(t, Config{Max: 2, Evict: true, Handle: func(c net.Conn) {
		conns <- c
		_, _ = io.WriteString(c, "hello")
		_, _ = io.Copy(c, c)
	}}, nil)
	spoken, silent := dial(), dial()
	require.True(t, greeted(t, spoken))
	require.True(t, greeted(t, silent))
	first := <-conns
	if first.RemoteAddr().String() != spoken.LocalAddr().String() {
		first = <-conns
	}
	g.Spoke(first)
	g.Spoke(first)
	next := dial()
	require.True(t, greeted(t, next))
	_, err := silent.Read(make([]byte, 1))
	require.Error(t, err, "it made room")
	_, err = io.WriteString(spoken, "hello")
	require.NoError(t, err)
	require.True(t, greeted(t, spoken))
}

// A panic in one connection costs that one, and is a line in the log.
func TestPanicEndsOneConnection(t *testing.T) {
	var log locked
	_, dial := group(t, Config{Max: 2, Log: slog.New(slog.NewTextHandler(&log, nil)), Handle: func(c net.Conn) {
		b := make([]byte, 1)
		_, _ = c.Read(b)
		if b[0] == '!' {
			panic("a fault")
		}
		_, _ = io.WriteString(c, "hello")
	}}, nil)
	a, b := dial(), dial()
	_, _ = a.Write([]byte("!"))
	_, err := a.Read(make([]byte, 1))
	require.Error(t, err)
	require.Contains(t, log.String(), "a fault")
	require.Contains(t, log.String(), "serve echo")
	_, _ = b.Write([]byte("?"))
	require.True(t, greeted(t, b))
}

// touchy is a listener that fails once for a reason that passes.
type touchy struct {
	net.Listener
	failed bool
}

func (l *touchy) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EPERM)}
	}
	return l.Listener.Accept()
}

// What accept(2) says about one connection that waits does not end the server.
func TestServesOnAfterAcceptFailed(t *testing.T) {
	var log locked
	_, dial := group(t, Config{Max: 2, Log: slog.New(slog.NewTextHandler(&log, nil))}, func(ln net.Listener) net.Listener {
		return &touchy{Listener: ln}
	})
	require.True(t, greeted(t, dial()))
	require.Contains(t, log.String(), "no echo connection could be accepted")
}

// Stop ends listeners and connections, also those that Serve gets later.
func TestStop(t *testing.T) {
	g, dial := group(t, Config{Max: 2}, nil)
	c := dial()
	require.True(t, greeted(t, c))
	require.False(t, g.Stopped())
	g.Stop()
	g.Stop()
	g.Wait()
	require.True(t, g.Stopped())
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.Zero(t, g.Len())
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	g.Serve(ln)
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

// locked is a buffer for a log.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
