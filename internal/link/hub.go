package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/stats"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

const (
	// DefaultFrameBytes: larger frames cost fewer system calls and wake-ups per
	// byte; beyond this size nothing is gained.
	DefaultFrameBytes = 1 << 20
	// MinFrameBytes and MaxFrameBytes bound Config.FrameBytes.
	MinFrameBytes, MaxFrameBytes = 64, 64 << 20
	// ScratchExtra is how many bytes a reader's scratch memory has beside
	// Config.FrameBytes: an element that began in the frame before.
	ScratchExtra = 8
	// MaxPool bounds the connections that one peer may open to us (quirk Q25).
	MaxPool = 1024
	// maxStrangers bounds the connections of peers that no Retain has named yet:
	// newcomers whose round is running, and all others that found the port.
	maxStrangers = 1024
	// headerBuffer is small: what it holds of a large frame is copied once more.
	headerBuffer = 8 << 10

	// OpName is the operation in errors of this package. A collective puts its own
	// name in its place.
	OpName = "connection"
	phase  = "data phase"
)

// Config of a Hub.
type Config struct {
	// FrameBytes is the largest payload of a data frame that we send, and the
	// largest piece in which received frames are processed. 0:
	// DefaultFrameBytes. Rounded down to a multiple of 64.
	FrameBytes int
	Pool       *buf.Pool    // nil: a pool of its own
	Logger     *slog.Logger // nil: silent
	Stats      *stats.Data  // nil: counters of its own
	Trace      *trace.Listener
	// Grow is asked to open connections to peer until there are n; nil: pools never
	// grow. It must not wait. Refused is its answer if it could not.
	Grow func(peer wire.UUID, n int)
	// Tuning is what send connections were prepared with (platform.TuneP2P): its UserTimeout bounds how long
	// what is sent may stay unacknowledged, and how long one from a peer may be silent and still keep its place. 0:
	// what the system does.
	Tuning platform.Options
	// Watched reports whether the master misses a gopccl peer whose machine is gone: by heartbeats, or by what the
	// system asks. It is asked when a connection comes; nil: it does not. While there is no master, nobody does.
	Watched func() bool
	// Ended is told of each connection that ends against the will of this endpoint; nil:
	// nobody is. It must not wait.
	Ended func(peer wire.UUID)
	// Threads is what senders and readers run on; 0: Goroutines. Affinity lists the
	// processors that pinned ones are bound to; none: any.
	Threads  Threads
	Affinity []int
}

// Hub owns the connections. Safe for concurrent use.
type Hub struct {
	cfg    Config
	router Router
	zeros  []byte // pads frames of failed operations; never written
	wg     sync.WaitGroup

	mu      invariants.Mutex
	changed *sync.Cond // a connection came or closed, a round began or ended, the hub closed
	closed  bool
	ids     uint64                    // of connections
	tx      map[wire.UUID][]*Sender   // pools are replaced and never changed
	rx      map[wire.UUID][]*Receiver // as those
	strange []*Receiver               // of peers that no Retain has named, oldest first
	known   map[wire.UUID]bool        // neighbours
	kept    kept
	claims  claims

	survey    *survey
	allowance allowance
	tellers   map[wire.UUID]*teller // guarded by mu, what they point to by telling
	telling   sync.Mutex
	work      work
}

// ident names a connection.
type ident struct {
	number uint32 // in its pool
	id     uint64 // among all that the hub has had
}

// work counts the operations under way of every room that uses a hub.
type work struct {
	edges invariants.Mutex // held while a listener hears of a change between none and some
	count int
}

// Ranks of the locks: each may be taken while those of lower ranks are held.
const (
	RankHub   = 25
	RankConn  = 20
	rankEdges = 10 // below those of the rooms above
)

// NewHub returns a hub without connections, whose frames and losses are r's. Frames
// may come as soon as a connection is added.
func NewHub(cfg Config, r Router) *Hub {
	if cfg.FrameBytes <= 0 {
		cfg.FrameBytes = DefaultFrameBytes
	}
	cfg.FrameBytes = min(max(cfg.FrameBytes&^63, MinFrameBytes), MaxFrameBytes)
	if cfg.Pool == nil {
		cfg.Pool = buf.NewPool(0)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Stats == nil {
		cfg.Stats = &stats.Data{}
	}
	if cfg.Threads == 0 {
		cfg.Threads = Goroutines
	}
	h := &Hub{
		cfg: cfg, router: r, zeros: make([]byte, min(cfg.FrameBytes, 64<<10)),
		tx: map[wire.UUID][]*Sender{}, rx: map[wire.UUID][]*Receiver{}, tellers: map[wire.UUID]*teller{}, known: map[wire.UUID]bool{},
		kept:   kept{early: map[earlyKey]*Early{}, held: map[wire.UUID]int{}},
		claims: claims{vouched: map[wire.UUID]time.Time{}, grown: map[wire.UUID]time.Time{}},
	}
	h.survey = newSurvey(h)
	h.changed = sync.NewCond(&h.mu)
	h.mu.Rank(RankHub, "Hub.mu")
	h.work.edges.Rank(rankEdges, "Hub.work.edges")
	return h
}

// Config returns the configuration with its defaults filled in.
func (h *Hub) Config() Config { return h.cfg }

// spawn runs f on a goroutine that Close waits for, labelled for profiles and
// goroutine dumps. A panic closes the connection that it serves. The caller holds
// h.mu, or is a goroutine that Close waits for.
func (h *Hub) spawn(role string, peer wire.UUID, f func(), closeWith func(error)) {
	h.wg.Add(1)
	h.begin(role, peer, f, closeWith)
}

// begin is spawn for a goroutine that Close waits for already.
func (h *Hub) begin(role string, peer wire.UUID, f func(), closeWith func(error)) {
	go func() {
		defer h.wg.Done()
		h.Labelled(role, peer, f, closeWith)
	}()
}

// Labelled runs f with the labels of a role of the data path. failed is called with
// what is to be reported if f panics.
func (h *Hub) Labelled(role string, peer wire.UUID, f func(), failed func(error)) {
	defer errs.Catch(OpName, func(err *errs.Error) { failed(h.Caught(err, peer)) })
	pprof.Do(context.Background(), pprof.Labels("gopccl", role, "peer", peer.Short()), func(context.Context) { f() })
}

// Caught logs a panic in the work for peer and returns what operations report.
func (h *Hub) Caught(err *errs.Error, peer wire.UUID) error {
	h.cfg.Logger.Error("panic in the data path", "peer", peer.Short(), "error", err, "stack", errs.StackOf(err))
	return err.WithPhase(phase).WithPeer(peer.String())
}

// Tell calls the listener. Its panic, in op, is logged and returned: what the caller
// has begun goes on, so that nothing waits for an end that never comes.
func (h *Hub) Tell(op string, f func(*trace.Listener)) (err error) {
	defer errs.Catch(op, func(p *errs.Error) {
		h.cfg.Logger.Error("panic in a trace listener", "error", p, "stack", errs.StackOf(p))
		err = p.WithPhase("trace listener")
	})
	f(h.cfg.Trace)
	return nil
}

// Count adds d to the operations under way; op names the one that begins or ends. A
// listener hears of the changes between none and some, in their order. No lock is held.
func (h *Hub) Count(op string, d int) {
	if !h.cfg.Trace.Edges() {
		return
	}
	w := &h.work
	w.edges.Lock()
	defer w.edges.Unlock()
	before := w.count
	w.count += d
	switch {
	case before == 0:
		_ = h.Tell(op, (*trace.Listener).Active)
	case w.count == 0:
		_ = h.Tell(op, (*trace.Listener).Idle)
	}
}

// Features is what the peer announced at the other side of a send connection.
type Features struct {
	Native bool // it is a gopccl peer
	Flows  bool // it takes pieces and answers pings
	// Ahead: of an operation that it has not begun it takes pieces, over several
	// connections, and behind them frames with the sequence number.
	Ahead bool
	// Spares: it takes lanes with spare pieces.
	Spares bool
}

// AddSender hands over connection number of the pool to peer, after the
// handshake. Number 0 replaces the pool; numbers must otherwise continue it. The
// hub owns conn from here on; a connection that it cannot use is closed, and the
// error says why.
func (h *Hub) AddSender(peer wire.UUID, number uint32, conn net.Conn, features Features) error {
	s := newSender(h, peer, number, conn, features)
	h.mu.Lock()
	pool := h.tx[peer]
	if h.closed || int64(number) > int64(len(pool)) || number >= MaxPool {
		have := len(pool)
		h.mu.Unlock()
		conn.Close()
		return fmt.Errorf("the pool has %d connections, or is closed: there is no place for number %d", have, number)
	}
	dropped := pool[number:]
	h.ids++
	s.id = h.ids
	h.tx[peer] = append(pool[:number:number], s)
	if s.gauge.flow != nil {
		h.survey.far = append(h.survey.far, s)
	}
	h.spawn("watcher", peer, s.watch, s.close)
	h.wg.Add(1) // of the vigil
	h.mu.Unlock()
	s.keepVigil()
	for _, d := range dropped {
		d.close(errReplaced)
	}
	return nil
}

// AddReceiver hands over an accepted connection that introduced itself with
// Hello number. Number 0 again replaces the pool, a number in the middle ends
// those above it, as PCCL receivers do; a number that leaves a hole is refused
// and the connection closed. May be called before the HelloAck is written.
func (h *Hub) AddReceiver(peer wire.UUID, number uint32, conn net.Conn) {
	r := newReceiver(h, peer, number, conn)
	h.mu.Lock()
	pool := h.rx[peer]
	if h.closed || int64(number) > int64(len(pool)) || number >= MaxPool {
		h.mu.Unlock()
		conn.Close()
		h.cfg.Logger.Warn("receive connection refused", "peer", peer.Short(), "number", number)
		return
	}
	dropped := pool[number:]
	h.ids++
	r.id = h.ids
	h.rx[peer] = append(pool[:number:number], r)
	crowded := h.evictFor(r)
	h.wg.Add(1) // of the reader, so that Close waits for what follows
	h.changed.Broadcast()
	h.mu.Unlock()
	h.router.Connected(r)
	h.begin("reader", peer, r.run, r.abandon)
	for _, d := range dropped {
		d.Close(errReplaced)
	}
	for _, d := range crowded {
		d.Close(errCrowded)
	}
}

// evictFor notes a connection of a peer that is not known yet and returns the
// connections that have to go for it: those of a stranger that hung up, or else
// of the one that came first and never was a neighbour. h.mu is held.
func (h *Hub) evictFor(r *Receiver) []*Receiver {
	if h.known[r.peer] {
		return nil
	}
	h.strange = append(h.strange, r)
	if len(h.strange) <= maxStrangers {
		return nil
	}
	i := slices.IndexFunc(h.strange, func(o *Receiver) bool { return o.closed.Load() })
	if i < 0 {
		i = max(slices.IndexFunc(h.strange, func(o *Receiver) bool { return !o.former }), 0)
	}
	first := h.strange[i]
	h.strange = slices.Delete(h.strange, i, i+1)
	pool := h.rx[first.peer]
	if !slices.Contains(pool, first) {
		return nil // it was replaced
	}
	delete(h.rx, first.peer)
	h.strange = slices.DeleteFunc(h.strange, func(o *Receiver) bool { return o.peer == first.peer })
	return pool
}

var (
	errReplaced = errors.New("the connection was replaced by a new one")
	errDropped  = errors.New("the peer is no longer a neighbour")
	errClosed   = errors.New("the communicator was closed")
	errCrowded  = errors.New("too many connections of peers that are not in the ring")
	// errInterrupted: this system does not tell how much of an interrupted
	// write was sent, so that the connection cannot go on.
	errInterrupted = errors.New("an abort interrupted a write")
)

// Senders returns the pool of connections to peer, by number. It is not to be changed.
func (h *Hub) Senders(peer wire.UUID) []*Sender {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tx[peer]
}

// Receivers returns the pool of connections from peer, by number. It is not to be
// changed.
func (h *Hub) Receivers(peer wire.UUID) []*Receiver {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rx[peer]
}

// LiveSenders returns how many connections to peer are not broken.
func (h *Hub) LiveSenders(peer wire.UUID) int {
	n := 0
	for _, s := range h.Senders(peer) {
		if !s.Broken() {
			n++
		}
	}
	return n
}

// LinkUse returns what the living connections to peer have taken since they
// were made, in bytes, and for how long a write was under way on the busiest of
// them: close to the time that has passed if the link holds the operations up.
func (h *Hub) LinkUse(peer wire.UUID) (bytes uint64, busy time.Duration) {
	for _, s := range h.Senders(peer) {
		bytes += s.gauge.use.bytes.Load()
		busy = max(busy, time.Duration(s.gauge.use.nanos.Load()))
	}
	return bytes, busy
}

// Sends reports whether a running operation sends to peer.
func (h *Hub) Sends(peer wire.UUID) bool {
	for _, s := range h.Senders(peer) {
		s.mu.Lock()
		busy := len(s.sources) > 0
		s.mu.Unlock()
		if busy {
			return true
		}
	}
	return false
}

// Retain closes all connections to peers for which send is false and all from
// peers for which recv is false, which are neighbours no longer. nil leaves a
// direction as it is. The router hears of each connection as lost.
func (h *Hub) Retain(send, recv func(wire.UUID) bool) {
	h.mu.Lock()
	var tx []*Sender
	var rx []*Receiver
	for p, pool := range h.tx {
		if send != nil && !send(p) {
			tx = append(tx, pool...)
			delete(h.tx, p)
		}
	}
	if recv != nil {
		for p := range h.known {
			if !recv(p) {
				h.know(p, false)
			}
		}
		for p, pool := range h.rx {
			if recv(p) {
				h.know(p, true)
				continue
			}
			rx = append(rx, pool...)
			delete(h.rx, p)
		}
		h.strange = nil
	}
	h.mu.Unlock()
	for _, s := range tx {
		s.close(errDropped)
	}
	for _, r := range rx {
		r.Close(errDropped)
	}
}

// Trust says that peers are neighbours, or are about to be: their connections
// are not a stranger's, whether they came or are to come.
func (h *Hub) Trust(peers ...wire.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range peers {
		h.know(p, true)
	}
	h.strange = slices.DeleteFunc(h.strange, func(r *Receiver) bool { return slices.Contains(peers, r.peer) })
}

// Forget says that peers for which neighbour is false are neighbours no longer. Their
// connections stay, since others have opened them; they are strangers' now, and
// the last of these to give way.
func (h *Hub) Forget(neighbour func(wire.UUID) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.known {
		if neighbour(p) {
			continue
		}
		h.know(p, false)
		for _, r := range h.rx[p] {
			r.former = true
			h.strange = append(h.strange, r)
		}
	}
}

// know makes peer a neighbour, or a stranger. h.mu is held.
func (h *Hub) know(peer wire.UUID, neighbour bool) {
	held := h.kept.held[peer]
	switch {
	case neighbour && !h.known[peer]:
		h.known[peer] = true
		h.kept.strange -= held
	case !neighbour && h.known[peer]:
		delete(h.known, peer)
		delete(h.claims.vouched, peer)
		delete(h.claims.grown, peer)
		delete(h.tellers, peer)
		h.kept.strange += held
	}
}

// Shut refuses connections from here on, closes all of them and ends what waits for
// a place.
func (h *Hub) Shut() {
	h.mu.Lock()
	if !h.closed {
		close(h.survey.stop)
	}
	h.closed = true
	h.changed.Broadcast()
	h.mu.Unlock()
	none := func(wire.UUID) bool { return false }
	h.Retain(none, none)
}

// Close is Shut, and waits until all goroutines of the hub have returned.
func (h *Hub) Close() {
	h.Shut()
	h.wg.Wait()
}

// errEnded stands for the end of a stream.
var errEnded = errors.New("the peer closed the connection")

// ending returns the cause that people are told of.
func ending(cause error) error {
	if errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) {
		return errEnded
	}
	return cause
}

// Missing says that a connection is not there that an operation needs. why is its end, nil: that is not known.
func Missing(what string, why error) error {
	if why == nil {
		return errors.New(what)
	}
	return fmt.Errorf("%s (%w)", what, why)
}

// WhyBroken says which connection of a pool to a peer has ended, and why; nil: none has.
func WhyBroken(pool []*Sender) error {
	for _, s := range pool {
		if why := s.why(); why != nil {
			return fmt.Errorf("connection %d to it: %w", s.number, why)
		}
	}
	return nil
}

// WhyEnded says which connection of a pool from a peer has ended, and why, if Expect has found the peer lost; nil:
// none has.
func WhyEnded(pool []*Receiver) error {
	from, _ := Expect(pool)
	for _, r := range slices.Concat(from, pool) {
		if why := r.why(); why != nil {
			return fmt.Errorf("connection %d from it: %w", r.number, why)
		}
	}
	return nil
}

// lost reports the end of a connection and calls tell with its cause.
func (h *Hub) lost(peer wire.UUID, number uint32, send bool, cause error, tell func(error)) {
	h.mu.Lock()
	h.changed.Broadcast()
	h.mu.Unlock()
	defer tell(cause) // also if a listener or a logger panics
	if !errors.Is(cause, errReplaced) && !errors.Is(cause, errDropped) && !errors.Is(cause, errClosed) {
		h.cfg.Stats.ConnsLost.Add(1)
		if h.cfg.Ended != nil && !errors.Is(cause, errCrowded) && !errors.Is(cause, errInterrupted) {
			h.cfg.Ended(peer)
		}
		_ = h.Tell(OpName, func(t *trace.Listener) { t.Lost(peer.String(), number, send, cause) })
		h.cfg.Logger.Info("peer to peer connection lost", "peer", peer.Short(), "number", number, "send", send, "err", cause)
	}
}
