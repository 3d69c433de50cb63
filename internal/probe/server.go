// Package probe measures the bandwidth between two peers with the benchmark
// of PCCL (data spec, section 8): the measuring side sends as fast as it can
// over several connections, the measured side throws the bytes away and lets
// one peer measure at a time.
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/wire"
)

// maxHello caps the length field of a hello: 18 bytes, and room for additions.
const maxHello = 4 << 10

// ServerConfig configures a Server. Zero values take the defaults.
type ServerConfig struct {
	// Log gets a line for every connection that speaks something else.
	// Default: none.
	Log *slog.Logger
	// Security makes connections secure.
	Security sockets.Security
	// MaxConns bounds the open connections; further ones are closed at once.
	// Default 4096.
	MaxConns int
	// MaxPerPeer bounds the connections of the measuring peer; further ones
	// are told that the server is busy. Default 64.
	MaxPerPeer int
	// HelloTimeout bounds the wait for a hello. Default 10 s.
	HelloTimeout time.Duration
	// Bound is how long one connection may send. Default 18 s (control spec,
	// section 14).
	Bound time.Duration
}

func (c ServerConfig) withDefaults() ServerConfig {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxConns <= 0 {
		c.MaxConns = 4096
	}
	if c.MaxPerPeer <= 0 {
		c.MaxPerPeer = 64
	}
	if c.HelloTimeout <= 0 {
		c.HelloTimeout = 10 * time.Second
	}
	if c.Bound <= 0 {
		c.Bound = 18 * time.Second
	}
	return c
}

// Server is the measured side. Its methods are safe for concurrent use.
type Server struct {
	cfg ServerConfig

	conns *sockets.Group

	mu     sync.Mutex
	peer   wire.UUID // the measuring peer, while active > 0
	active int       // connections of peer that are being received
}

// NewServer returns an idle server. Close frees its resources.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg.withDefaults()}
	s.conns = sockets.NewGroup(sockets.Config{Name: "benchmark", Log: s.cfg.Log, Max: s.cfg.MaxConns, Handle: s.run, Security: cfg.Security})
	return s
}

// Serve accepts connections on ln until ln or the server is closed; see
// platform.AcceptLoop for errors. It closes ln.
func (s *Server) Serve(ln net.Listener) { s.conns.Serve(ln) }

// Close ends every measurement and waits for the goroutines of Serve to end.
func (s *Server) Close() {
	s.conns.Stop()
	s.conns.Wait()
}

func (s *Server) run(conn net.Conn) {
	if err := s.handle(conn); errors.Is(err, errs.Protocol) {
		if due, more := s.conns.Complain(conn, "hello"); due {
			s.cfg.Log.Warn("connection for a benchmark closed: not a benchmark", "peer", conn.RemoteAddr().String(), "err", err, "more", more)
		}
	}
}

// admit reports whether peer may measure now, and counts it if so.
func (s *Server) admit(peer wire.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active > 0 && (s.peer != peer || s.active >= s.cfg.MaxPerPeer) {
		return false
	}
	s.peer = peer
	s.active++
	return true
}

func (s *Server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
}

// handle runs one connection to its end.
func (s *Server) handle(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(s.cfg.HelloTimeout)); err != nil {
		return err
	}
	p, err := wire.Read(conn, wire.C2B, maxHello)
	if err != nil {
		return err
	}
	hello, ok := p.(wire.C2BHello)
	if !ok {
		return errs.New(errs.Protocol, "benchmark", fmt.Errorf("unexpected %T", p)).WithPhase("hello")
	}
	if err := s.conns.Is(conn, hello.UUID); err != nil {
		if due, more := s.conns.Complain(conn, "name"); due {
			s.cfg.Log.Warn("closed a benchmark connection", "remote", conn.RemoteAddr(), "reason", err, "more", more)
		}
		return err
	}
	admitted := s.admit(hello.UUID)
	if admitted {
		defer s.release()
	}
	answer := wire.B2CServerIsBusy{IsBusy: !admitted}
	answer.Ext.Topology = hello.Ext.Topology && admitted
	if _, err := conn.Write(wire.Append(nil, answer)); err != nil || !admitted {
		return err
	}
	bound := time.Now().Add(s.cfg.Bound)
	if err := conn.SetDeadline(bound); err != nil {
		return err
	}
	if answer.Ext.Topology {
		return count(conn, bound)
	}
	// The end of the stream, the bound and a broken connection all end a
	// measurement alike: the other side has counted.
	_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 256<<10))
	return nil
}

// reportEvery is how often a counting server says what has arrived.
const reportEvery = 10 * time.Millisecond

// count reads conn to its end, at most until the bound, and reports what has
// arrived as a big-endian u64, reportEvery after the first byte that was not
// reported yet. The reports are few and small, so that writing them does not
// block.
func count(conn net.Conn, bound time.Time) error {
	buf := make([]byte, 256<<10)
	var report [reportSize]byte
	var total, told uint64
	var due time.Time // of the next report, if total > told
	for {
		n, err := conn.Read(buf)
		now := time.Now()
		if n > 0 && total == told {
			due = now.Add(reportEvery)
			if conn.SetReadDeadline(due) != nil {
				return nil
			}
		}
		total += uint64(n)
		if total > told && (!now.Before(due) || err != nil) {
			binary.BigEndian.PutUint64(report[:], total)
			if _, err := conn.Write(report[:]); err != nil {
				return nil // the other side has counted
			}
			told = total
			if conn.SetReadDeadline(bound) != nil {
				return nil
			}
		}
		if err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && now.Before(bound)) {
			return nil
		}
	}
}
