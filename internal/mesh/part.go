package mesh

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// part ends a connection to peer whose answer to the hello was not read. If this end closed it, the
// system would reset it because of the unread answer. The other end has the connection in a pool by
// then, and cannot tell whether a reset has lost data. So this end only says that nothing follows,
// and a goroutine waits until the other end closes the connection, for twice Config.HandshakeTimeout
// at most. conn is part's from here on. One that cannot be half-closed is closed at once.
func (m *Mesh) part(conn net.Conn, peer wire.UUID) {
	half, ok := conn.(interface{ CloseWrite() error })
	if below, layered := conn.(interface{ TCP() *net.TCPConn }); layered && below.TCP() == nil {
		ok = false // the end of TLS alone would have the other end wait
	}
	ended := m.parting.begin(peer)
	if !ok || !m.growing.beside(func() {
		defer errs.Catch("connect to a peer", m.cfg.Crash)
		defer ended()
		defer conn.Close()
		defer context.AfterFunc(m.ctx, func() { conn.Close() })()
		if conn.SetDeadline(time.Now().Add(2*m.cfg.HandshakeTimeout)) == nil && half.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, conn, maxHello)
		}
	}) {
		conn.Close()
		ended()
	}
}

// parting are the connections that part has not ended yet. The other end may not have seen
// their hellos: one that it sees after those of a new pool would take the place of a living
// connection there, and of all with higher numbers.
type parting struct {
	mu sync.Mutex
	of map[wire.UUID]*givenUp // only peers to which there are some
}

// givenUp are those to one peer. The holder of parting.mu has n and last.
type givenUp struct {
	n    int
	last time.Time     // when the last one was given up
	over chan struct{} // closed when n is zero again
}

// begin counts a connection to peer until ended is called.
func (p *parting) begin(peer wire.UUID) (ended func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of[peer]
	if s == nil {
		if p.of == nil {
			p.of = map[wire.UUID]*givenUp{}
		}
		s = &givenUp{over: make(chan struct{})}
		p.of[peer] = s
	}
	s.n, s.last = s.n+1, time.Now()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.n--; s.n == 0 {
			delete(p.of, peer)
			close(s.over)
		}
	}
}

// awaitParted waits until none of the connections to peer that were given up is left, which comes
// before its pool is made. It ends Config.HandshakeTimeout after the last of them was given up: an end
// that accepted it when it was dialled refuses a hello that it has not read by then, and one that stood
// still finds that nothing follows it (Mesh.greet). An error is that of ctx, which has ended.
func (m *Mesh) awaitParted(ctx context.Context, peer wire.UUID) error {
	p := &m.parting
	p.mu.Lock()
	s := p.of[peer]
	if s == nil {
		p.mu.Unlock()
		return ctx.Err()
	}
	late := time.NewTimer(time.Until(s.last.Add(m.cfg.HandshakeTimeout)))
	p.mu.Unlock()
	defer late.Stop()
	select {
	case <-s.over:
	case <-late.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
