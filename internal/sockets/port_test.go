package sockets

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// kinds are what a port has doors for.
var kinds = []wire.Proto{wire.P2P, wire.C2S, wire.C2B}

// open returns a port whose doors lead to a channel, and what dials it.
func open(t *testing.T, change func(*PortConfig)) (p *Port, log *locked, came map[wire.Proto]chan net.Conn, dial func() net.Conn) {
	log = &locked{}
	cfg := PortConfig{
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), Bound: time.Minute,
		Complain: func(net.Addr, string) (bool, int) { return true, 0 },
	}
	if change != nil {
		change(&cfg)
	}
	p = NewPort(cfg)
	came = map[wire.Proto]chan net.Conn{}
	for _, kind := range kinds {
		out := make(chan net.Conn, 8)
		came[kind] = out
		go func() {
			defer close(out)
			for ln := p.For(kind, nil); ; {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				out <- conn
			}
		}()
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan struct{})
	go func() { defer close(served); p.Serve(ln) }()
	t.Cleanup(func() {
		p.Close()
		p.Wait()
		<-served
		for _, c := range came {
			for conn := range c {
				conn.Close()
			}
		}
	})
	return p, log, came, func() net.Conn {
		c, err := net.Dial("tcp4", ln.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// Every server gets its connections, with every byte from the first one on.
func TestPortTellsPurposes(t *testing.T) {
	_, _, came, dial := open(t, nil)
	u := wire.UUID{6: 0x40, 8: 0x80}
	for _, p := range []wire.Packet{
		wire.P2PHello{UUID: u, Number: 2},
		wire.P2PHello{UUID: u, Ext: wire.Ext{Native: true}},
		wire.C2BHello{UUID: u},
		wire.C2BHello{UUID: u, Ext: wire.Ext{Topology: true}},
		wire.C2SRequestSharedState{Keys: []string{"w"}},
		wire.C2SRequestSharedState{},
	} {
		c := dial()
		said := append(wire.Append(nil, p), "more"...)
		for _, b := range said { // the bytes may come one by one
			_, err := c.Write([]byte{b})
			require.NoError(t, err)
		}
		conn := <-came[p.Proto()]
		heard := make([]byte, len(said))
		_, err := io.ReadFull(conn, heard)
		require.NoError(t, err)
		require.Equal(t, said, heard)
		_, err = conn.Write([]byte("answer"))
		require.NoError(t, err)
		conn.Close()
		heard, err = io.ReadAll(c)
		require.NoError(t, err)
		require.Equal(t, "answer", string(heard))
	}
}

// A stranger gets no byte, and is named in the log.
func TestPortAndStrangers(t *testing.T) {
	for begin, reason := range map[string]string{
		"\x16\x03\x01\x02\x00\x01\x00": "TLS, and this peer has no credential", "GET / HTTP/1.1\r\n\r\n": "HTTP", "SSH-2.0-OpenSSH\r\n": "SSH",
		"\x00\x00\x00\x00\x00\x00\x00\x02\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00": "not a peer's", "!": "not a peer's",
	} {
		turnedAway(t, nil, begin, slog.LevelWarn, reason)
	}
}

// A caller that only asks if there is a port gets no warning, beside TLS neither.
func TestPortIsAskedFor(t *testing.T) {
	turnedAway(t, nil, "", slog.LevelDebug, "before it said anything")
	turnedAway(t, func(c *PortConfig) { c.Plain = func(context.Context, net.Conn) error { return nil } }, "", slog.LevelDebug, "before it said anything")
}

// turnedAway has a caller say how it begins to a port, which answers nothing and logs the reason at that level.
func turnedAway(t *testing.T, change func(*PortConfig), begin string, level slog.Level, reason string) {
	t.Helper()
	_, log, _, dial := open(t, change)
	c := dial()
	_, err := io.WriteString(c, begin)
	require.NoError(t, err)
	if begin == "" {
		require.NoError(t, c.(*net.TCPConn).CloseWrite())
	}
	heard, _ := io.ReadAll(c)
	require.Empty(t, heard, "%q", begin)
	require.Eventually(t, func() bool { return contains(log, reason) }, time.Minute, time.Millisecond, "%q: %s", begin, log)
	require.True(t, contains(log, "level="+level.String()), "%q: %s", begin, log)
}

func contains(log *locked, text string) bool { return strings.Contains(log.String(), text) }

// The bound is of all that is said before a purpose is known: silence and a byte now and
// then end alike.
func TestPortWaitsForNobody(t *testing.T) {
	for _, slow := range []bool{false, true} {
		_, log, _, dial := open(t, func(c *PortConfig) { c.Bound = 100 * time.Millisecond })
		c := dial()
		ended := make(chan struct{})
		if slow {
			go func() {
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for range 17 { // of 18 that are needed
					select {
					case <-tick.C:
						_, _ = c.Write([]byte{0})
					case <-ended:
						return
					}
				}
			}()
		}
		heard, _ := io.ReadAll(c)
		close(ended)
		require.Empty(t, heard)
		require.Eventually(t, func() bool { return contains(log, "in time") }, time.Minute, time.Millisecond)
	}
}

// from is a connection that comes from an address, and says when it is closed.
type from struct {
	net.Conn
	addr   net.TCPAddr
	closed chan struct{}
	once   *sync.Once
}

func (f from) RemoteAddr() net.Addr { return &f.addr }

func (f from) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

// A flood from one address makes room for others by itself.
func TestPortInAFlood(t *testing.T) {
	p, _, came, _ := open(t, nil)
	add := func(last byte) (from, net.Conn) {
		here, there := net.Pipe()
		t.Cleanup(func() { there.Close() })
		f := from{here, net.TCPAddr{IP: net.IPv4(192, 0, 2, last)}, make(chan struct{}), new(sync.Once)}
		p.take(f)
		return f, there
	}
	other, says := add(1)
	var flood []from
	for range maxWaiting - 1 {
		f, _ := add(2)
		flood = append(flood, f)
	}
	for i := range 20 {
		add(2)
		<-flood[i].closed
	}
	newcomer, newSays := add(3)
	<-flood[20].closed
	for _, f := range append(flood[21:], other, newcomer) {
		select {
		case <-f.closed:
			t.Fatalf("closed: %v", f.addr)
		default:
		}
	}
	for _, c := range []net.Conn{says, newSays} {
		_, err := c.Write(wire.Append(nil, wire.C2SRequestSharedState{}))
		require.NoError(t, err)
		conn := <-came[wire.C2S]
		conn.Close()
	}
}

// What a handshake says counts, and not the first bytes.
func TestPortMeets(t *testing.T) {
	_, log, came, dial := open(t, func(c *PortConfig) {
		c.Meet = func(_ context.Context, conn net.Conn) (net.Conn, wire.Proto, error) {
			b := make([]byte, 1)
			_, err := conn.Read(b)
			if err == nil && b[0] != 'b' {
				err = errors.New("a stranger's certificate")
			}
			return conn, wire.C2B, err
		}
	})
	_, err := io.WriteString(dial(), "b")
	require.NoError(t, err)
	(<-came[wire.C2B]).Close()
	c := dial()
	_, err = io.WriteString(c, "x")
	require.NoError(t, err)
	heard, _ := io.ReadAll(c)
	require.Empty(t, heard)
	require.Eventually(t, func() bool { return contains(log, "a stranger's certificate") }, time.Minute, time.Millisecond)
}

// Close ends what waits, and all doors.
func TestPortCloses(t *testing.T) {
	p, log, came, dial := open(t, nil)
	c := dial()
	_, err := c.Write([]byte{0})
	require.NoError(t, err)
	p.Close()
	p.Close()
	p.Wait()
	for _, kind := range kinds {
		_, some := <-came[kind]
		require.False(t, some)
	}
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	p.Serve(ln)
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.Empty(t, log.String(), "an end is nothing to complain about")
}
