// Package reduce runs ring all-reduces over the connections of package link (data
// spec, sections 2 to 6).
//
// An Engine runs operations on a link.Hub, whose router it is. An operation (Op) is
// a source, its outStream, and a sink, its inStream. The reader of a connection
// processes the frames itself: it reduces into place (first half of the steps) or
// reads straight into the user's buffer (second half). What was received in step s
// is what is sent in step s+1, so a single number per operation, the bytes
// received and processed so far, tells the sender how far it may go: there is
// no barrier between steps. Receiving never waits for anything local, so a ring
// always drains. A large operation is striped over all connections to the next
// peer if that is a gopccl peer (stripe.go).
//
// That is sound because of the data: a neighbour cannot have what overwrites a
// chunk before it had our contribution to that chunk. A neighbour that sends
// such frames nevertheless spoils the result of the ring (ours included), and
// nothing else.
//
// Locks: Op.mu may be taken inside Engine.mu or link.Sender.mu; link.Hub.mu inside
// Engine.mu; the pool's inside Op.mu or Hub.mu. Nothing else nests, and Hub.mu and Op.mu
// are never held together. No lock is held while a connection could make us wait.
package reduce

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/stats"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// A chunk is cut into at least piecesPerChunk frames, so that a step starts
	// before the one before it is over, unless frames fell below pieceBytes.
	piecesPerChunk = 8
	pieceBytes     = 256 << 10

	opName = "all-reduce"
)

// Config of an Engine.
type Config struct {
	Backend backend.Backend
	// Link configures the connections. The engine shares their buffers, logger,
	// counters and listener.
	Link link.Config
	// Flows is the most connections to the next peer that one operation uses
	// at once, if the next peer can; 0: all of the pool.
	Flows int
	// FutureWait bounds how long a frame may wait for the start of its
	// operation before its connection is closed. 0: one minute.
	FutureWait time.Duration
	// ConnectWait bounds how long a started operation waits for the previous
	// peer's first connection. 0: 20 seconds.
	ConnectWait time.Duration

	minStripe int // 0: minStripe; tests take less
	turnBytes int // 0: turnBytes; tests take less
}

// Engine runs operations on the connections of its hub. Safe for concurrent use.
type Engine struct {
	cfg     Config
	hub     *link.Hub
	ring    atomic.Pointer[plan.Plan] // of the last operation
	replays sync.WaitGroup            // goroutines that process what came early

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
	ahead   ahead
}

// Ranks of the locks: each may be taken while those of lower ranks are held.
const (
	rankEngine = 20 // below link.RankHub
	rankOp     = 30 // above link.RankConn
)

type opKey struct{ tag, seq uint64 }

// NewEngine returns an engine whose hub has no connections.
func NewEngine(cfg Config) *Engine {
	if cfg.minStripe <= 0 {
		cfg.minStripe = minStripe
	}
	if cfg.turnBytes <= 0 {
		cfg.turnBytes = turnBytes
	}
	if cfg.FutureWait <= 0 {
		cfg.FutureWait = time.Minute
	}
	if cfg.ConnectWait <= 0 {
		cfg.ConnectWait = 20 * time.Second
	}
	e := &Engine{ops: map[opKey]*Op{}, ahead: newAhead()}
	e.hub = link.NewHub(cfg.Link, router{e})
	cfg.Link = e.hub.Config()
	e.cfg = cfg
	e.started = sync.NewCond(&e.mu)
	e.mu.Rank(rankEngine, "Engine.mu")
	return e
}

// Hub returns the connections that operations run on. The engine closes it.
func (e *Engine) Hub() *link.Hub { return e.hub }

// Stats returns the engine's counters.
func (e *Engine) Stats() stats.DataSnapshot { return e.cfg.Link.Stats.Snapshot() }

// Buffers returns the counters of the engine's buffer pool.
func (e *Engine) Buffers() buf.Stats { return e.cfg.Link.Pool.Stats() }

var errClosed = errors.New("the communicator was closed")

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
	e.hub.Shut()
	e.mu.Lock()
	for e.active > 0 {
		e.started.Wait()
	}
	e.mu.Unlock()
	e.replays.Wait()
	e.hub.Close()
}

// lost fails the operations that still need a connection with peer, of which uses
// tells, because of cause.
func (e *Engine) lost(peer wire.UUID, cause error, uses func(*Op) bool) {
	e.mu.Lock()
	var hit []*Op
	for _, op := range e.ops {
		if uses(op) {
			hit = append(hit, op)
		}
	}
	e.started.Broadcast()
	e.mu.Unlock()
	for _, op := range hit {
		op.fail(connError(peer, cause))
	}
}

// connError is what operations report when the connection to or from peer ended,
// or what a connection found out about them.
func connError(peer wire.UUID, cause error) error {
	var e *errs.Error
	if errors.As(cause, &e) {
		switch {
		case e.Op == opName:
			return e // says everything already
		case e.Op == link.OpName:
			own := *e
			own.Op = opName
			return &own
		}
	}
	code := errs.RankConnectionLost
	if e != nil && e.Code == errs.Protocol {
		code, cause = errs.Protocol, e.Err
	}
	return errs.New(code, opName, cause).WithPhase("data phase").WithPeer(peer.String())
}
