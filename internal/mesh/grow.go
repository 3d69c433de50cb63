package mesh

import (
	"context"
	"slices"
	"sync"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// growing are the pools that get more connections while they are in use, and what else runs
// beside the callers of a mesh.
type growing struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	known  map[wire.UUID]reached
	stop   context.CancelFunc // of the growth under way; nil: there is none
	done   chan struct{}      // closed when it has ended
	next   []wanted           // that wait for its end, by when they came
	held   int                // pools that are being made
	closed bool
}

// wanted is how many connections a pool is to have.
type wanted struct {
	peer wire.UUID
	n    int
}

// reached is how a peer was reached last.
type reached struct {
	p    wire.PeerEndpoint
	ways []*way
}

func (g *growing) learn(p wire.PeerEndpoint, ways []*way) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known == nil {
		g.known = map[wire.UUID]reached{}
	}
	g.known[p.UUID] = reached{p, ways}
}

// hold ends the growth under way and lets none begin until release. Those that wait are refused.
func (g *growing) hold() (release func()) {
	g.mu.Lock()
	g.held++
	stop, done := g.stop, g.done
	g.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.held--
	}
}

// close is hold for good.
func (g *growing) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.stop != nil {
		g.stop()
	}
}

// beside runs f in a goroutine of its own, which Mesh.Wait waits for; false: the mesh is closed.
func (g *growing) beside(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Go(f)
	}
	return !g.closed
}

// Grow opens connections to peer, a neighbour, beside everything that runs until there
// are n, and returns at once. One pool grows at a time, and others wait for it: a direct
// exchange learns of all its peers at once. What cannot be had is told to Pools.Refused.
func (m *Mesh) Grow(peer wire.UUID, n int) {
	g := &m.growing
	g.mu.Lock()
	defer g.mu.Unlock()
	w := wanted{peer, n}
	if g.stop == nil {
		m.beginGrowth(w)
		return
	}
	if i := slices.IndexFunc(g.next, func(o wanted) bool { return o.peer == peer }); i >= 0 {
		g.next[i] = w
		return
	}
	g.next = append(g.next, w)
}

// beginGrowth opens the connections, or says that they cannot be had. growing.mu is held.
func (m *Mesh) beginGrowth(w wanted) {
	g := &m.growing
	r, ok := g.known[w.peer]
	if m.cfg.PoolSize != 0 || !ok || g.held > 0 || g.closed {
		m.cfg.Pools.Refused(w.peer, m.cfg.Pools.LiveSenders(w.peer))
		return
	}
	if n := m.cfg.Pools.Wanted(w.peer); n > 0 {
		w.n = min(w.n, n) // fewer may be wanted by now
	}
	ctx, stop := context.WithTimeout(m.ctx, m.cfg.DialTimeout+m.cfg.HandshakeTimeout)
	done := make(chan struct{})
	g.stop, g.done = stop, done
	g.wg.Go(func() {
		defer errs.Catch("connect to a peer", m.cfg.Crash)
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.stop = nil
			stop()
			close(done)
			for g.stop == nil && len(g.next) > 0 {
				w := g.next[0]
				g.next = g.next[1:]
				m.beginGrowth(w)
			}
		}()
		m.grow(ctx, r, min(w.n, MaxPool))
	})
}

func (m *Mesh) grow(ctx context.Context, r reached, n int) {
	open := m.cfg.Pools.Announce(r.p.UUID)
	if open == 0 || open >= n {
		return
	}
	err := m.awaitParted(ctx, r.p.UUID)
	if err == nil {
		err = m.dialRest(ctx, r.p, r.ways, open, n)
	}
	if err == nil {
		m.sizes.Store(r.p.UUID, n)
		return
	}
	open = m.cfg.Pools.LiveSenders(r.p.UUID)
	m.sizes.Store(r.p.UUID, max(open, 1))
	m.cfg.Pools.Refused(r.p.UUID, open)
	m.cfg.Log.Info("a pool does not grow", "peer", r.p.UUID.Short(), "connections", open, "wanted", n, "error", err)
}
