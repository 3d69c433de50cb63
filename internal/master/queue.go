package master

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Bytes that may wait to be written, to all members together and to all other
// connections. Beyond that, the connection goes for which most bytes wait.
const (
	mostForMembers = 512 << 20
	mostForOthers  = 32 << 20
)

// ledger counts the bytes that wait in many queues.
type ledger struct {
	limit int64
	bytes atomic.Int64
}

// queue holds what waits to be written to one client. Adding never blocks.
type queue struct {
	mu     sync.Mutex
	buf    []byte
	spare  []byte
	writes bool      // the writer has taken something that comes before buf
	last   bool      // nothing comes after buf
	until  time.Time // if last: when the client has to have read it
	size   int       // bytes that were added and not yet written
	book   *ledger   // where size is counted
	shows  bool      // the topology is among them
	asked  bool      // and was asked for again
	gone   bool      // nothing is held or taken any more
	ready  chan struct{}
}

// count adds to what is held; mu is held.
func (q *queue) count(n int) {
	q.size += n
	if q.book != nil {
		q.book.bytes.Add(int64(n))
	}
}

// add appends a packet; false if more than limit bytes wait.
func (q *queue) add(p wire.Packet, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.gone:
		return true
	case len(q.buf) > limit:
		return false
	}
	if q.buf == nil {
		q.buf, q.spare = q.spare[:0], nil
	}
	if t, ok := p.(wire.M2CTopology); ok {
		q.shows = true
		for _, g := range t.Groups {
			q.buf = slices.Grow(q.buf, 8*len(g.Mbps)+64*len(g.Peers)+64)
		}
	}
	before := len(q.buf)
	q.buf = wire.Append(q.buf, p)
	q.count(len(q.buf) - before)
	return true
}

// finish says that nothing more comes: the client has farewell to read the rest.
func (q *queue) finish(nc net.Conn) {
	q.mu.Lock()
	if !q.last {
		q.last, q.until = true, time.Now().Add(farewell)
		nc.SetWriteDeadline(q.until)
	}
	q.mu.Unlock()
	q.wake()
}

// arm bounds the next write, and returns by what.
func (q *queue) arm(nc net.Conn, bound time.Duration) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.last:
		nc.SetWriteDeadline(q.until)
		return farewell
	case bound > 0:
		nc.SetWriteDeadline(time.Now().Add(bound))
	}
	return bound
}

func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// push hands what waits to try; false if the writer has to do the rest.
func (q *queue) push(try transport.TryWriter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.writes || q.last || try == nil {
		return false
	}
	b := q.buf
	for len(b) > 0 {
		part := b[:min(len(b), burst)]
		n, err := try.TryWrite(part)
		b = b[n:]
		q.count(-n)
		if err != nil || n < len(part) {
			q.buf = q.buf[:copy(q.buf, b)]
			return false // the writer meets the error again
		}
	}
	if cap(q.buf) <= burst {
		q.spare = q.buf
	}
	q.buf, q.shows = nil, false
	return !q.asked && !transport.Keeps(try)
}

// take returns what waits, whether nothing comes after it, and, if nothing
// waits, whether the topology was asked for again. b is what the last take
// returned; its memory is used again unless it is large.
func (q *queue) take(b []byte) (next []byte, last, again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cap(b) <= burst && !q.gone {
		q.spare = b
	}
	b, q.buf = q.buf, nil
	if q.writes = len(b) > 0; !q.writes {
		again = q.asked && !q.last
		q.shows, q.asked = false, false
	}
	return b, q.last, again
}

// hold says that the writer writes something that comes before buf.
func (q *queue) hold(on bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writes = on
}

// wrote says that the writer has written n bytes of what it took.
func (q *queue) wrote(n int) {
	q.mu.Lock()
	if !q.gone {
		q.count(-n)
	}
	q.mu.Unlock()
}

// mayAsk reports whether a question for the topology may be put: not while an
// answer waits. Then it is put when that has been written.
func (q *queue) mayAsk() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = q.asked || q.shows
	return !q.shows
}

// held returns how many bytes wait, and where they are counted.
func (q *queue) held() (int, *ledger) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size, q.book
}

// move counts what waits in another ledger.
func (q *queue) move(book *ledger) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.size
	q.count(-n)
	q.book = book
	q.count(n)
}

// discard drops what waits, and all that comes.
func (q *queue) discard() {
	q.mu.Lock()
	q.gone, q.last = true, true
	q.count(-q.size)
	q.buf, q.spare, q.shows = nil, nil, false
	q.mu.Unlock()
	q.wake()
}
