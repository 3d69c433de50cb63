package master

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// mostFromMembers and mostFromOthers bound the large packets that are read at
	// once, in the bytes that they announce: of members those above waitingLimit,
	// of others those above strangerLimit.
	mostFromMembers = 2 * wire.MaxPacket
	mostFromOthers  = 16 << 20
	// packetTime is how long a large packet of a member may take to grow by
	// paceStep, and how long any packet of others may take.
	packetTime = 10 * time.Second
	paceStep   = 16 << 10
)

// allowance is a number of bytes that is lent, first come, first served.
type allowance struct {
	all int

	mu    sync.Mutex
	lent  int
	queue []*borrower
}

type borrower struct {
	n     int
	given chan struct{}
}

// take waits for n bytes, or as many as there are, until over is closed, and
// calls alive from time to time meanwhile. It returns how many were lent, 0 if
// over was closed.
func (a *allowance) take(n int, over <-chan struct{}, alive func()) int {
	n = min(n, a.all)
	a.mu.Lock()
	if len(a.queue) == 0 && a.lent+n <= a.all {
		a.lent += n
		a.mu.Unlock()
		return n
	}
	b := &borrower{n, make(chan struct{})}
	a.queue = append(a.queue, b)
	a.mu.Unlock()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-b.given:
			return n
		case <-tick.C:
			alive()
		case <-over:
			a.withdraw(b)
			return 0
		}
	}
}

// withdraw gives up a wait.
func (a *allowance) withdraw(b *borrower) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, o := range a.queue {
		if o == b {
			a.queue = append(a.queue[:i], a.queue[i+1:]...)
			a.lend() // the next one may need less
			return
		}
	}
	a.lent -= b.n // it was given meanwhile
	a.lend()
}

func (a *allowance) give(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lent -= n
	a.lend()
}

// lend serves those who wait; mu is held.
func (a *allowance) lend() {
	for len(a.queue) > 0 && a.lent+a.queue[0].n <= a.all {
		a.lent += a.queue[0].n
		close(a.queue[0].given)
		a.queue = a.queue[1:]
	}
}

var errOver = errors.New("closed")

// next reads a packet. A client that was not let in has little to say and has to
// say it soon. Memory for large packets is bounded while they are read, and they
// have to go on arriving.
func (s *Server) next(ctx context.Context, c *conn, r *bufio.Reader, p *pulse) (wire.Packet, error) {
	r.Peek(8) // its standing may change while it says nothing
	standing := c.standing.Load()
	limit, free, pool := wire.MaxPacket, waitingLimit, &s.members.intake
	switch standing {
	case stranger:
		limit, free = strangerLimit, strangerLimit
	case waiting:
		limit, free, pool = waitingLimit, strangerLimit, &s.others.intake
	}
	n, err := wire.ReadLength(r, limit)
	if err != nil {
		return nil, err
	}
	if n > free {
		lent := pool.take(n, c.over, func() { s.post(ctx, fsm.Alive{Client: c.id}, false) })
		if lent == 0 {
			return nil, errOver
		}
		defer pool.give(lent)
	}
	if r.Buffered() < n && (standing != member || n > free) {
		p.pace, p.grown = 0, 0
		if standing == member {
			p.pace = s.opt.packetTime
		}
		c.nc.SetReadDeadline(time.Now().Add(s.opt.packetTime))
		defer func() {
			p.pace = 0
			c.nc.SetReadDeadline(time.Time{})
		}()
	}
	pkt, err := wire.ReadBody(r, wire.C2M, n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.fail(fmt.Sprintf("no more of a packet of %d bytes arrived for %v", n, s.opt.packetTime))
	}
	return pkt, err
}
