package collective

import (
	"errors"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/wire"
)

// Config of an Engine.
type Config struct {
	Backend backend.Backend
	// Flows is the most connections to one peer that an operation uses at once; 0:
	// all of the pool.
	Flows int
	// FutureWait bounds how long a frame may wait for the start of its operation
	// before its connection is closed. 0: one minute.
	FutureWait time.Duration
	// ConnectWait bounds how long a started operation waits for the first connection
	// from a peer. 0: 20 seconds.
	ConnectWait time.Duration

	minStripe int  // 0: minStripe; tests take less
	piece     int  // 0: as the data demands; tests take less
	spares    int  // of a group of pieces, whatever was lost, for tests; 0: by what is lost
	distant   bool // all peers count as distant, for tests
}

// Engine runs operations on the connections of a hub. Safe for concurrent use.
type Engine struct {
	cfg     Config
	link    link.Config // of the hub
	hub     *link.Hub
	replays sync.WaitGroup // goroutines that process what came early

	mu      invariants.Mutex
	started *sync.Cond // an operation started, a connection came or closed, the engine closed
	closed  bool
	between bool                 // no operation can run or start
	rounds  uint64               // how often that was so
	early   int                  // frames that wait for their operation to start
	highest uint64               // highest sequence number that was started
	any     bool                 // whether any was
	ops     map[opKey]*Operation // running
	active  int                  // started and done not yet called
	ahead   ahead
}

// Ranks of the locks: each may be taken while those of lower ranks are held.
const (
	rankEngine    = 20 // below link.RankHub
	rankOperation = 30 // above link.RankConn
)

type opKey struct{ tag, seq uint64 }

// NewEngine returns an engine that shares hub with its router. The hub has no
// connections yet.
func NewEngine(hub *link.Hub, cfg Config) *Engine {
	if cfg.minStripe <= 0 {
		cfg.minStripe = minStripe
	}
	if cfg.FutureWait <= 0 {
		cfg.FutureWait = time.Minute
	}
	if cfg.ConnectWait <= 0 {
		cfg.ConnectWait = 20 * time.Second
	}
	e := &Engine{cfg: cfg, link: hub.Config(), hub: hub, ops: map[opKey]*Operation{}, ahead: newAhead()}
	e.started = sync.NewCond(&e.mu)
	e.mu.Rank(rankEngine, "Engine.mu")
	hub.Share(mark, router{e})
	return e
}

var errClosed = errors.New("the communicator was closed")

// Stop fails every running operation, and each that is still to start.
func (e *Engine) Stop() {
	e.mu.Lock()
	e.closed = true
	var running []*Operation
	for _, op := range e.ops {
		running = append(running, op)
	}
	e.started.Broadcast()
	e.mu.Unlock()
	for _, op := range running {
		op.fail(errs.New(errs.Closed, op.name, errClosed))
	}
}

// Close is Stop, closes all connections of the hub, and waits until all goroutines of
// the engine, done functions included, have returned.
func (e *Engine) Close() {
	e.Stop()
	e.hub.Shut()
	e.mu.Lock()
	for e.active > 0 {
		e.started.Wait()
	}
	e.mu.Unlock()
	e.replays.Wait()
}

// lost fails the operations that still need a connection with peer, of which uses
// tells, because of cause.
func (e *Engine) lost(peer wire.UUID, cause error, uses func(*Operation) bool) {
	e.mu.Lock()
	var hit []*Operation
	for _, op := range e.ops {
		if uses(op) {
			hit = append(hit, op)
		}
	}
	e.started.Broadcast()
	e.mu.Unlock()
	for _, op := range hit {
		op.fail(op.lost(peer, cause))
	}
}

// lost is what an operation reports when the connection to or from peer ended, or what
// a connection found out about it.
func (op *Operation) lost(peer wire.UUID, cause error) error {
	var e *errs.Error
	if errors.As(cause, &e) {
		switch {
		case e.Op == op.name:
			return e // says everything already
		case e.Op == link.OpName:
			own := *e
			own.Op = op.name
			return &own
		}
	}
	code := errs.RankConnectionLost
	if e != nil && e.Code == errs.Protocol {
		code, cause = errs.Protocol, e.Err
	}
	return errs.New(code, op.name, cause).WithPhase("data phase").WithPeer(peer.String())
}

// count adds d to the active operations; name is that of the kind.
func (e *Engine) count(name string, d int) {
	e.hub.Count(name, d)
	e.mu.Lock()
	e.active += d
	if e.active == 0 {
		e.started.Broadcast()
	}
	e.mu.Unlock()
}
