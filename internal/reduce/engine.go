// Package reduce runs ring all-reduces over the peer to peer connections (data
// spec, sections 1.3 to 6).
//
// An Engine owns the connections. Every receive connection has one reader
// goroutine that demultiplexes frames and processes them itself: reduce into
// place (first half of the steps) or read straight into the user's buffer
// (second half). Every send connection has one sender goroutine that takes what
// is ready from the operations attached to it. What was received in step s is
// what is sent in step s+1, so a single number per operation, the bytes
// received and processed so far, tells the sender how far it may go: there is
// no barrier between steps. Receiving never waits for anything local, so a ring
// always drains. A large operation is striped over all connections to the next
// peer if that is a gopccl end (stripe.go).
//
// That is sound because of the data: a neighbour cannot have what overwrites a
// chunk before it had our contribution to that chunk. A neighbour that sends
// such frames nevertheless spoils the result of the ring (ours included), and
// nothing else.
//
// Locks: Engine.mu may be taken inside Engine.edges, Op.mu inside Engine.mu or
// sender.mu, the pool's inside Op.mu; nothing else nests.
// No lock is held while a connection could make us wait.
package reduce

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/stats"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// DefaultFrameBytes: larger frames cost fewer system calls and wake-ups per
	// byte; beyond this size nothing is gained.
	DefaultFrameBytes = 1 << 20
	// MinFrameBytes and MaxFrameBytes bound Config.FrameBytes.
	MinFrameBytes, MaxFrameBytes = minFrameBytes, maxFrameBytes
	// A chunk is cut into at least piecesPerChunk frames, so that a step starts
	// before the one before it is over, unless frames fell below pieceBytes.
	piecesPerChunk = 8
	pieceBytes     = 256 << 10
	minFrameBytes  = 64
	maxFrameBytes  = 64 << 20
	// MaxPool bounds the connections that one peer may open to us (quirk Q25).
	MaxPool = 1024
	// maxStrangers bounds the connections of peers that no Retain has named yet:
	// newcomers whose round is running, and whoever else found the port.
	maxStrangers = 1024
	// headerBuffer is small: what it holds of a large frame is copied once more.
	headerBuffer = 8 << 10

	opName = "all-reduce"
)

// Config of an Engine.
type Config struct {
	Backend backend.Backend
	// FrameBytes is the largest payload of a data frame that we send, and the
	// largest piece in which received frames are processed. 0:
	// DefaultFrameBytes. Rounded down to a multiple of 64.
	FrameBytes int
	// Flows is the most connections to the next peer that one operation uses
	// at once, if the next peer can; 0: all of the pool.
	Flows  int
	Pool   *buf.Pool    // nil: a pool of its own
	Logger *slog.Logger // nil: silent
	Stats  *stats.Data  // nil: counters of its own
	Trace  *trace.Listener
	// Threads is what senders and readers run on, Affinity the processors that
	// pinned ones are bound to; none: any.
	Threads  Threads
	Affinity []int
	// FutureWait bounds how long a frame may wait for the start of its
	// operation before its connection is closed. 0: one minute.
	FutureWait time.Duration
	// ConnectWait bounds how long a started operation waits for the previous
	// peer's first connection. 0: 20 seconds.
	ConnectWait time.Duration

	minStripe int // 0: minStripe; tests take less
}

// Engine owns the peer to peer connections and runs operations on them. Safe
// for concurrent use.
type Engine struct {
	cfg   Config
	zeros []byte // pads frames of aborted operations; never written
	wg    sync.WaitGroup
	ring  atomic.Pointer[plan.Plan] // of the last operation
	edges invariants.Mutex          // held while a listener hears of a change between no and some operations

	mu      invariants.Mutex
	started *sync.Cond // an operation started, a connection came or closed, the engine closed
	closed  bool
	between bool          // no operation can run or start
	rounds  uint64        // how often that was so
	early   int           // frames that wait for their operation to start
	highest uint64        // highest sequence number that was started
	any     bool          // whether any was
	ops     map[opKey]*Op // running
	active  int           // started and done not yet called
	tx      map[wire.UUID][]*sender
	rx      map[wire.UUID][]*receiver
	strange []*receiver // of peers that no Retain has named, oldest first
	known   map[wire.UUID]bool
	ahead   ahead
	claims  claims
}

// Ranks of the locks: each may be taken while those of lower ranks are held.
// The pool's is the last.
const (
	rankEdges  = 10
	rankEngine = 20
	rankConn   = 20
	rankOp     = 30
)

type opKey struct{ tag, seq uint64 }

// NewEngine returns an engine without connections.
func NewEngine(cfg Config) *Engine {
	if cfg.FrameBytes <= 0 {
		cfg.FrameBytes = DefaultFrameBytes
	}
	cfg.FrameBytes = min(max(cfg.FrameBytes&^63, minFrameBytes), maxFrameBytes)
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
		cfg.Threads = threadsByDefault
	}
	if cfg.minStripe <= 0 {
		cfg.minStripe = minStripe
	}
	if cfg.FutureWait <= 0 {
		cfg.FutureWait = time.Minute
	}
	if cfg.ConnectWait <= 0 {
		cfg.ConnectWait = 20 * time.Second
	}
	e := &Engine{
		cfg: cfg, zeros: make([]byte, min(cfg.FrameBytes, 64<<10)),
		ops: map[opKey]*Op{}, tx: map[wire.UUID][]*sender{}, rx: map[wire.UUID][]*receiver{}, known: map[wire.UUID]bool{},
		ahead: newAhead(), claims: claims{vouched: map[wire.UUID]time.Time{}},
	}
	e.started = sync.NewCond(&e.mu)
	e.edges.Rank(rankEdges, "Engine.edges")
	e.mu.Rank(rankEngine, "Engine.mu")
	return e
}

// Stats returns the engine's counters.
func (e *Engine) Stats() stats.DataSnapshot { return e.cfg.Stats.Snapshot() }

// Buffers returns the counters of the engine's buffer pool.
func (e *Engine) Buffers() buf.Stats { return e.cfg.Pool.Stats() }

// spawn runs f on a goroutine that Close waits for, labelled for profiles and
// goroutine dumps. A panic closes the connection that it serves.
func (e *Engine) spawn(role string, peer wire.UUID, f func(), closeWith func(error)) {
	e.wg.Add(1)
	e.begin(role, peer, f, closeWith)
}

// begin is spawn for whom Close waits already.
func (e *Engine) begin(role string, peer wire.UUID, f func(), closeWith func(error)) {
	go func() {
		defer e.wg.Done()
		defer errs.Catch(opName, func(err *errs.Error) { closeWith(e.caught(err, peer)) })
		pprof.Do(context.Background(), pprof.Labels("gopccl", role, "peer", peer.Short()), func(context.Context) { f() })
	}()
}

// caught logs a panic in the work for peer and returns what operations report.
func (e *Engine) caught(err *errs.Error, peer wire.UUID) error {
	e.cfg.Logger.Error("panic in the data path", "peer", peer.Short(), "error", err, "stack", errs.StackOf(err))
	return err.WithPhase("data phase").WithPeer(peer.String())
}

// tell calls the listener. Its panic is logged and returned: what the caller has
// begun goes on, so that nobody waits for an end that never comes.
func (e *Engine) tell(f func(*trace.Listener)) (err error) {
	defer errs.Catch(opName, func(p *errs.Error) {
		e.cfg.Logger.Error("panic in a trace listener", "error", p, "stack", errs.StackOf(p))
		err = p.WithPhase("trace listener")
	})
	f(e.cfg.Trace)
	return nil
}

// Link is what the other end of a send connection announced.
type Link struct {
	Native bool // a gopccl end
	Flows  bool // takes striped frames and answers pings
}

// AddSender hands over connection number of the pool to peer, after the
// handshake. Number 0 replaces the pool; numbers must otherwise continue it.
// link is what the other end announced. The engine owns conn from here on; a
// connection that it cannot use is closed.
func (e *Engine) AddSender(peer wire.UUID, number uint32, conn net.Conn, link Link) {
	s := newSender(e, peer, number, conn, link)
	e.mu.Lock()
	pool := e.tx[peer]
	if e.closed || int64(number) > int64(len(pool)) || number >= MaxPool {
		e.mu.Unlock()
		conn.Close()
		e.cfg.Logger.Warn("send connection refused", "peer", peer.Short(), "number", number)
		return
	}
	dropped := append([]*sender(nil), pool[number:]...)
	e.tx[peer] = append(pool[:number:number], s)
	e.spawn("watcher", peer, s.watch, s.close)
	e.mu.Unlock()
	for _, d := range dropped {
		d.close(errReplaced)
	}
}

// AddReceiver hands over an accepted connection that introduced itself with
// Hello number. Number 0 again replaces the pool, a number in the middle ends
// those above it, as PCCL receivers do; a number that leaves a hole is refused
// and the connection closed. May be called before the HelloAck is written.
func (e *Engine) AddReceiver(peer wire.UUID, number uint32, conn net.Conn) {
	r := newReceiver(e, peer, number, conn)
	e.mu.Lock()
	pool := e.rx[peer]
	if e.closed || int64(number) > int64(len(pool)) || number >= MaxPool {
		e.mu.Unlock()
		conn.Close()
		e.cfg.Logger.Warn("receive connection refused", "peer", peer.Short(), "number", number)
		return
	}
	dropped := append([]*receiver(nil), pool[number:]...)
	e.rx[peer] = append(pool[:number:number], r)
	crowded := e.evictFor(r)
	for _, op := range e.ops {
		if op.prev == peer && op.in.receiver == nil {
			op.in.receiver = r
		}
	}
	e.spawn("reader", peer, r.run, r.abandon)
	e.started.Broadcast()
	e.mu.Unlock()
	for _, d := range dropped {
		d.close(errReplaced)
	}
	for _, d := range crowded {
		d.close(errCrowded)
	}
}

// evictFor notes a connection of a peer that is not known yet and returns the
// connections that have to go for it: those of a stranger that hung up, or else
// of the one that came first and never was a neighbour. e.mu is held.
func (e *Engine) evictFor(r *receiver) []*receiver {
	if e.known[r.peer] {
		return nil
	}
	e.strange = append(e.strange, r)
	if len(e.strange) <= maxStrangers {
		return nil
	}
	i := slices.IndexFunc(e.strange, func(o *receiver) bool { return o.closed.Load() })
	if i < 0 {
		i = max(slices.IndexFunc(e.strange, func(o *receiver) bool { return !o.former }), 0)
	}
	first := e.strange[i]
	e.strange = slices.Delete(e.strange, i, i+1)
	pool := e.rx[first.peer]
	if !slices.Contains(pool, first) {
		return nil // it was replaced
	}
	delete(e.rx, first.peer)
	e.strange = slices.DeleteFunc(e.strange, func(o *receiver) bool { return o.peer == first.peer })
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

// LiveSenders returns how many connections to peer are not broken.
func (e *Engine) LiveSenders(peer wire.UUID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.tx[peer] {
		if !s.broken.Load() {
			n++
		}
	}
	return n
}

// LinkUse returns what the living connections to peer have taken since they
// were made, in bytes, and for how long a write was under way on the busiest of
// them: close to the time that has passed if the link holds the operations up.
func (e *Engine) LinkUse(peer wire.UUID) (bytes uint64, busy time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.tx[peer] {
		bytes += s.gauge.use.bytes.Load()
		busy = max(busy, time.Duration(s.gauge.use.nanos.Load()))
	}
	return bytes, busy
}

// Retain closes all connections to peers for which send is false and all from
// peers for which recv is false, which are no neighbours any more. nil leaves a
// direction as it is. Operations that use what was closed fail.
func (e *Engine) Retain(send, recv func(wire.UUID) bool) {
	e.mu.Lock()
	var tx []*sender
	var rx []*receiver
	for p, pool := range e.tx {
		if send != nil && !send(p) {
			tx = append(tx, pool...)
			delete(e.tx, p)
		}
	}
	if recv != nil {
		for p := range e.known {
			if !recv(p) {
				e.know(p, false)
			}
		}
		for p, pool := range e.rx {
			if recv(p) {
				e.know(p, true)
				continue
			}
			rx = append(rx, pool...)
			delete(e.rx, p)
		}
		e.strange = nil
	}
	e.mu.Unlock()
	for _, s := range tx {
		s.close(errDropped)
	}
	for _, r := range rx {
		r.close(errDropped)
	}
}

// Trust says that peers are neighbours, or are about to be: their connections
// are no strangers', whether they came or are to come.
func (e *Engine) Trust(peers ...wire.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range peers {
		e.know(p, true)
	}
	e.strange = slices.DeleteFunc(e.strange, func(r *receiver) bool { return slices.Contains(peers, r.peer) })
}

// Forget says that peers for which neighbour is false are none any more. Their
// connections stay, since others have opened them; they are strangers' now, and
// the last of these to give way.
func (e *Engine) Forget(neighbour func(wire.UUID) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for p := range e.known {
		if neighbour(p) {
			continue
		}
		e.know(p, false)
		for _, r := range e.rx[p] {
			r.former = true
			e.strange = append(e.strange, r)
		}
	}
}

// Close fails every running operation, closes all connections and waits until
// all goroutines of the engine, done functions included, have returned.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	var running []*Op
	for _, op := range e.ops {
		running = append(running, op)
	}
	e.started.Broadcast()
	e.mu.Unlock()
	for _, op := range running {
		op.fail(errs.New(errs.Closed, opName, errClosed))
	}
	none := func(wire.UUID) bool { return false }
	e.Retain(none, none)
	e.mu.Lock()
	for e.active > 0 {
		e.started.Wait()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// lost fails the operations that still need the connection of which uses tells.
func (e *Engine) lost(peer wire.UUID, number uint32, send bool, cause error, uses func(*Op) bool) {
	if errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) {
		cause = errors.New("the peer closed the connection")
	}
	e.mu.Lock()
	var hit []*Op
	for _, op := range e.ops {
		if uses(op) {
			hit = append(hit, op)
		}
	}
	e.started.Broadcast()
	e.mu.Unlock()
	defer func() { // also if a listener or a logger panics
		for _, op := range hit {
			op.fail(connError(peer, cause))
		}
	}()
	if !errors.Is(cause, errReplaced) && !errors.Is(cause, errDropped) && !errors.Is(cause, errClosed) {
		e.cfg.Stats.ConnsLost.Add(1)
		_ = e.tell(func(t *trace.Listener) { t.Lost(peer.String(), number, send, cause) })
		e.cfg.Logger.Info("peer to peer connection lost", "peer", peer.Short(), "number", number, "send", send, "err", cause)
	}
}

func (e *Engine) lostSender(s *sender, cause error) {
	e.lost(s.peer, s.number, true, cause, func(op *Op) bool { return op.sendsOn(s) && !op.out.done.Load() })
}

func (e *Engine) lostReceiver(r *receiver, cause error) {
	e.lost(r.peer, r.number, false, cause, func(op *Op) bool { return op.receivesOn(r) && !op.in.done.Load() })
}

// connError is what operations report when the connection to or from peer ended.
func connError(peer wire.UUID, cause error) error {
	var e *errs.Error
	if errors.As(cause, &e) && e.Op == opName {
		return e // says everything already
	}
	code := errs.RankConnectionLost
	if e != nil && e.Code == errs.Protocol {
		code, cause = errs.Protocol, e.Err
	}
	return errs.New(code, opName, cause).WithPhase("data phase").WithPeer(peer.String())
}
