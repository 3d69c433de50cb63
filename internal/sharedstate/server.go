package sharedstate

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

const (
	// maxRequest caps the length field of a request.
	maxRequest = 16 << 20
	// smallRequest is what any connection may ask at once; larger requests are
	// read by a few connections at a time, so that many cannot fill the memory.
	smallRequest = 64 << 10
	largeReaders = 4
	// longAnswer is what it takes that a connection is read while it is answered: the keys
	// of one in TLS are made new meanwhile only if both ends read.
	longAnswer = 256 << 20
)

// ServerConfig configures a Server. Zero values take the defaults.
type ServerConfig struct {
	// Log gets a line for every connection that speaks something else, and
	// details of transfers at debug level. Default: none.
	Log *slog.Logger
	// MaxConns bounds the open connections; the longest silent one makes room.
	// Default 4096.
	MaxConns int
	// RequestTimeout bounds the time between accepting a connection, or the
	// end of a transfer, and the end of the next request. Default 10 s.
	RequestTimeout time.Duration
	// StallTimeout bounds how long a requester may take none of the bytes that
	// are offered to it. Default 30 s.
	StallTimeout time.Duration
	// ShutGrace is how long Shut lets running transfers continue before it cuts
	// them. Default 500 ms.
	ShutGrace time.Duration
	// LongAnswer is the bytes of tensors from which on a connection is read while it is
	// answered. Default 256 MiB.
	LongAnswer uint64
	// Security makes connections secure.
	Security sockets.Security
	// Tune prepares an accepted connection. Default platform.TuneP2P with the
	// automatic congestion control; an error is logged and ignored.
	Tune func(net.Conn) error
}

func (c ServerConfig) withDefaults() ServerConfig {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxConns <= 0 {
		c.MaxConns = 4096
	}
	if c.RequestTimeout <= 0 {
		c.RequestTimeout = 10 * time.Second
	}
	if c.StallTimeout <= 0 {
		c.StallTimeout = 30 * time.Second
	}
	if c.LongAnswer == 0 {
		c.LongAnswer = longAnswer
	}
	if c.ShutGrace <= 0 {
		c.ShutGrace = 500 * time.Millisecond
	}
	if c.Tune == nil {
		c.Tune = func(conn net.Conn) error {
			return platform.TuneP2P(conn, platform.Options{Congestion: platform.CongestionAuto})
		}
	}
	return c
}

// Server answers requests for shared state. Outside its window it answers
// that it is not distributing (control spec, section 13.3). All methods are
// safe for concurrent use.
type Server struct {
	cfg   ServerConfig
	large chan struct{} // one token per large request being read
	cards *places       // of those that read from devices

	conns *sockets.Group
	life  context.Context // ends with Close
	over  context.CancelFunc

	mu  sync.Mutex
	win *Window // nil outside the window
}

// Window is one period of distribution, from Open to Shut: what is handed out,
// and who is reading it at the moment.
type Window struct {
	revision uint64
	tensors  map[string]content
	tx       atomic.Uint64
	active   map[net.Conn]struct{}
	shut     chan struct{}      // closed when the window is shut
	cut      context.Context    // ends when no tensor may be read any more
	end      context.CancelFunc // of cut
	drained  chan struct{}      // closed when it is shut and nobody reads
}

// TxBytes returns the bytes of tensors that were promised in answers so far
// (data spec, section 7).
func (w *Window) TxBytes() uint64 { return w.tx.Load() }

// close ends the window: nobody begins to read any more. The caller holds the
// server's mu.
func (w *Window) close() {
	select {
	case <-w.shut:
		return
	default:
	}
	close(w.shut)
	if len(w.active) == 0 {
		close(w.drained)
	}
}

// NewServer returns a server with a shut window. Close frees its resources.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg.withDefaults(), large: make(chan struct{}, largeReaders), cards: newPlaces()}
	s.life, s.over = context.WithCancel(context.Background())
	s.conns = sockets.NewGroup(sockets.Config{
		Name: "shared state", Log: s.cfg.Log, Max: s.cfg.MaxConns, Evict: true, Handle: s.handle, Security: cfg.Security,
	})
	return s
}

// Open opens a window: from now on the content of ts is handed out under
// revision, until Shut of that window. The tensors must not be changed in between; ts itself
// is not kept. legacy: see Entries. Of two tensors with one key the first
// counts. Open never waits: a window that is still open takes no new reader,
// and its opener still has to shut it.
func (s *Server) Open(revision uint64, ts []Tensor, legacy bool) *Window {
	w := &Window{
		revision: revision,
		tensors:  make(map[string]content, len(ts)),
		active:   make(map[net.Conn]struct{}),
		shut:     make(chan struct{}),
		drained:  make(chan struct{}),
	}
	w.cut, w.end = context.WithCancel(s.life)
	for i := range ts {
		if _, dup := w.tensors[ts[i].Key]; !dup {
			w.tensors[ts[i].Key] = ts[i].content(legacy)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.win != nil {
		s.win.close()
	}
	if s.win = w; s.conns.Stopped() {
		w.close()
		s.win = nil
	}
	return w
}

// Shut shuts w and no other window. When it returns no transfer reads a tensor of w any more:
// running ones get ShutGrace to end and are then cut. It does nothing with a
// window that was shut before, or nil.
func (s *Server) Shut(w *Window) {
	if w == nil {
		return
	}
	s.mu.Lock()
	w.close()
	if s.win == w {
		s.win = nil
	}
	s.mu.Unlock()

	defer w.end()
	grace := time.NewTimer(s.cfg.ShutGrace)
	defer grace.Stop()
	select {
	case <-w.drained:
		return
	case <-grace.C:
	case <-s.conns.Done():
	}
	s.mu.Lock()
	for c := range w.active {
		s.cfg.Log.Warn("shared state transfer cut: the synchronisation is over", "peer", c.RemoteAddr().String())
		c.Close()
	}
	s.mu.Unlock()
	w.end() // who reads from a device may be waiting for it
	<-w.drained
}

// enter registers conn as a reader of the open window; nil if none is open.
func (s *Server) enter(conn net.Conn) *Window {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.win != nil {
		s.win.active[conn] = struct{}{}
	}
	return s.win
}

// leave ends what enter began.
func (s *Server) leave(w *Window, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(w.active, conn)
	select {
	case <-w.shut:
		if len(w.active) == 0 {
			close(w.drained)
		}
	default:
	}
}

// Serve accepts connections on ln until ln or the server is closed; see
// platform.AcceptLoop for errors. It closes ln.
func (s *Server) Serve(ln net.Listener) { s.conns.Serve(ln) }

// Close shuts the window, closes every connection and listener and waits for
// the goroutines of Serve to end.
func (s *Server) Close() {
	s.conns.Stop()
	s.over()
	s.mu.Lock()
	w := s.win
	s.mu.Unlock()
	s.Shut(w)
	s.conns.Wait()
}

// handle answers the requests of one connection until it ends, is silent for
// too long or says something wrong. PCCL asks once and leaves the connection
// open for ever (quirk Q29).
func (s *Server) handle(conn net.Conn) {
	defer conn.Close()
	log := s.cfg.Log.With("peer", conn.RemoteAddr().String())
	if err := s.cfg.Tune(conn); err != nil {
		log.Debug("shared state connection not tuned", "err", err)
	}
	r := bufio.NewReaderSize(conn, 512)
	for {
		req, err := s.read(conn, r)
		if err != nil {
			if !errors.Is(err, errs.Protocol) {
				log.Debug("shared state connection ended", "err", err)
			} else if due, more := s.conns.Complain(conn, "request"); due {
				log.Warn("connection for shared state closed: not a request for shared state", "err", err, "more", more)
			}
			return
		}
		s.conns.Spoke(conn)
		if err := s.answer(conn, r, req); err != nil {
			log.Warn("shared state transfer failed", "err", err)
			return
		}
	}
}

// read reads one request.
func (s *Server) read(conn net.Conn, r *bufio.Reader) (wire.C2SRequestSharedState, error) {
	var req wire.C2SRequestSharedState
	if err := conn.SetReadDeadline(time.Now().Add(s.cfg.RequestTimeout)); err != nil {
		return req, err
	}
	head, err := r.Peek(8)
	if err != nil {
		return req, err
	}
	if n := binary.BigEndian.Uint64(head); n > smallRequest && n <= maxRequest {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-s.conns.Done():
			return req, net.ErrClosed
		}
		if err := conn.SetReadDeadline(time.Now().Add(s.cfg.RequestTimeout)); err != nil {
			return req, err
		}
	}
	p, err := wire.Read(r, wire.C2S, maxRequest)
	if err != nil {
		return req, err
	}
	req, ok := p.(wire.C2SRequestSharedState)
	if !ok {
		return req, errs.New(errs.Protocol, "read request", fmt.Errorf("unexpected %T", p))
	}
	return req, nil
}

// answer answers one request and sends the tensors it asked for. Requesters of
// host memory wait for no turn: a requester that hears nothing takes the holder for dead, and
// all of them share the link anyway.
func (s *Server) answer(conn net.Conn, r *bufio.Reader, req wire.C2SRequestSharedState) error {
	out := sender{conn: conn, stall: s.cfg.StallTimeout}
	out.all, _ = transport.NonBlocking(conn).(transport.VecWriter)
	w := s.enter(conn)
	if w == nil {
		return out.flushPacket(wire.S2CSharedStateResponse{Status: wire.StateNotDistributed})
	}
	defer s.leave(w, conn)

	rsp := wire.S2CSharedStateResponse{Status: wire.StateSuccess, Revision: w.revision}
	rsp.Entries = make([]wire.StateSize, len(req.Keys))
	var total uint64
	for i, key := range req.Keys {
		c, ok := w.tensors[key]
		if !ok {
			return out.flushPacket(wire.S2CSharedStateResponse{Status: wire.StateUnknownKey, Revision: w.revision})
		}
		rsp.Entries[i] = wire.StateSize{Key: key, Size: uint64(c.bytes())}
		total += uint64(c.bytes())
	}
	w.tx.Add(total)
	if total >= s.cfg.LongAnswer {
		defer attend(conn, r)()
	}
	out.add(wire.Append(nil, rsp))
	for _, key := range req.Keys {
		c := w.tensors[key]
		if err := s.putContent(w.cut, &out, key, &c); err != nil {
			return err
		}
	}
	return out.flush()
}

// attend reads a connection while it is answered, which is how the requester makes the keys
// of one in TLS new. What it finds is left for the next request, and so is the end of the
// connection. It ends with the function that it returns.
func attend(conn net.Conn, r *bufio.Reader) (end func()) {
	over := make(chan struct{})
	if conn.SetReadDeadline(time.Time{}) != nil {
		return func() {} // it is closed
	}
	go func() {
		defer close(over)
		_, _ = r.Peek(1)
	}()
	return func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-over
	}
}

const (
	sendPiece  = 256 << 10 // bytes that have to move within one stall timeout
	sendPieces = 512       // buffers in one write
)

// sender writes buffers to a connection, many small ones in one call, and
// gives up when the other end takes nothing for a while.
type sender struct {
	conn  net.Conn
	all   transport.VecWriter // nil: as conn writes them
	stall time.Duration
	bufs  net.Buffers
	size  int
}

// add queues b without writing.
func (o *sender) add(b []byte) {
	o.bufs = append(o.bufs, b)
	o.size += len(b)
}

// put queues b piece by piece, writing whenever enough has gathered.
func (o *sender) put(b []byte) error {
	for len(b) > 0 {
		if o.size >= sendPiece || len(o.bufs) >= sendPieces {
			if err := o.flush(); err != nil {
				return err
			}
		}
		n := min(len(b), sendPiece)
		o.add(b[:n])
		b = b[n:]
	}
	return nil
}

// putContent queues content of the host, or sends that of a device as it comes.
func (s *Server) putContent(ctx context.Context, o *sender, key string, c *content) error {
	if c.dev.None() {
		return o.put(c.data)
	}
	if err := o.flush(); err != nil { // the answer does not wait for the device
		return err
	}
	if err := s.cards.take(o.conn, s.conns.Done()); err != nil {
		return err
	}
	defer s.cards.give(o.conn)
	p, err := device.Lookup(c.dev.Platform)
	if err != nil {
		return named(err, key)
	}
	from, err := p.Read(ctx, c.dev)
	if err != nil {
		return named(err, key)
	}
	defer from.Close()
	for {
		b, err := from.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return named(err, key)
		}
		if err = o.put(b); err == nil {
			err = o.flush() // b is used again
		}
		if err != nil {
			return err
		}
		s.cards.moved(o.conn)
	}
}

// flush writes what is queued.
func (o *sender) flush() error {
	if err := o.conn.SetWriteDeadline(time.Now().Add(o.stall)); err != nil {
		return err
	}
	bufs, err := o.bufs, error(nil)
	if o.all != nil {
		_, err = o.all.WriteAll(bufs)
	} else {
		_, err = bufs.WriteTo(o.conn)
	}
	o.bufs, o.size = o.bufs[:0], 0
	if err != nil && !errors.Is(err, io.ErrClosedPipe) && platform.Classify(err) == platform.ClassTimeout {
		return errs.New(errs.Timeout, "send shared state", err).WithPeer(o.conn.RemoteAddr().String())
	}
	return err
}

func (o *sender) flushPacket(p wire.Packet) error {
	o.add(wire.Append(nil, p))
	return o.flush()
}
