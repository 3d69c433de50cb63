package tlsconn

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/transport"
)

const (
	record   = 16 << 10   // plaintext of a full record
	overhead = 5 + 1 + 16 // of a record: its header, its type and its tag
	// A read takes at most so many bytes of ciphertext: smallIn on an idle connection, middleIn
	// when one has taken all of that, and inSize when one has taken all of that. From distant
	// peers less comes at a time, on many connections.
	inSize   = 512 << 10
	middleIn = 64 << 10
	smallIn  = 4 << 10
	// sealMax is how much plaintext of a short write is sealed before the system gets it.
	// Its ciphertext is still in the caches then, and is one packet of Linux, which are
	// below 64 KiB until they reach the device: a fourth record would be the beginning of
	// another one. The other endpoint opens what it has while the rest is sealed.
	sealMax = 3 * record
	// sealLong is that of a write of more than longWrite bytes: beside all of them the wait
	// for the first packet is nothing, and fewer calls wake the other endpoint less often.
	// tests/bench, with a build of the one and of the other: 5 % less processor time.
	sealLong  = 15 * record
	longWrite = 512 << 10
	// tailMax is how much more is sealed with a batch if nothing follows: it is still the
	// same packet. By itself it would cost a call, and wake the other endpoint once more
	// when all the rest is opened.
	tailMax = record - 1<<10
	// answers is the room for what crypto/tls writes by itself: alerts, and answers
	// to key updates.
	answers = 4 << 10
	// maxHandshake bounds what a handshake may read.
	maxHandshake = 32 << 10
)

var (
	errTooLarge = errors.New("the handshake is larger than 32 KiB")
	errUnread   = errors.New("the other endpoint asks for new keys and does not read the answers")
)

// pump is the connection in memory below a tls.Conn. Its writes never wait.
type pump struct {
	c    *Conn
	pool *buf.Pool
	src  io.Reader

	// Of the goroutine that reads.
	small    [smallIn]byte
	big      []byte // of middleIn or inSize bytes; nil: small is used
	full     bool   // the last read took all of middleIn bytes
	in       []byte // what was read and not handed out
	head     [5]byte
	seen     int   // of head, of the record that is handed out
	left     int   // of its body
	handed   int   // bytes, of the handshake
	records  int64 // handed out since the keys were made new
	shaking  bool
	tooLarge bool
	begin    func() error // of Bound; may be nil, as end
	end      func()
	computes bool // begin was called, and end was not

	patience atomic.Int32 // for how many bytes of what is sealed a read waits; 0: for one

	mu       sync.Mutex
	out      []byte // ciphertext: out[from:to]
	from, to int
	fail     error // why nothing can be written any more
}

// Read hands ciphertext to crypto/tls.
func (p *pump) Read(b []byte) (int, error) {
	if len(p.in) == 0 {
		if err := p.fill(); err != nil {
			return 0, err
		}
	}
	if p.shaking {
		if p.handed >= maxHandshake {
			p.tooLarge = true
			return 0, errTooLarge
		}
		b = b[:min(len(b), smallIn, maxHandshake-p.handed)]
	}
	n := p.hand(b)
	p.handed += n
	return n, nil
}

// hand copies to b what was read, at most to the end of a record: what follows the last
// record of a stream is not crypto/tls's.
func (p *pump) hand(b []byte) (n int) {
	for n < len(b) && len(p.in) > 0 {
		if p.left == 0 {
			p.head[p.seen] = p.in[0]
			b[n] = p.in[0]
			p.in, p.seen, n = p.in[1:], p.seen+1, n+1
			if p.seen < len(p.head) {
				continue
			}
			p.seen, p.left = 0, int(binary.BigEndian.Uint16(p.head[3:]))
		} else {
			k := copy(b[n:], p.in[:min(p.left, len(p.in))])
			p.in, p.left, n = p.in[k:], p.left-k, n+k
		}
		if p.left == 0 {
			p.records++
			break
		}
	}
	return n
}

// fill reads the socket. What was to be written goes first, because the other end
// may wait for it.
func (p *pump) fill() error {
	if p.shaking {
		p.rests()
		if err := p.flush(); err != nil {
			return err
		}
	} else if err := p.answer(); err != nil {
		return err
	}
	if p.full {
		p.releaseIn()
		p.full, p.big = false, p.pool.Get(inSize)
	}
	b := p.big
	if b == nil {
		b = p.small[:]
	}
	p.waitFor(min(p.left, int(p.patience.Load())))
	n, err := p.src.Read(b)
	if n == 0 {
		if err == nil {
			err = io.ErrNoProgress
		}
		if err == io.EOF {
			err = ErrCut
		}
		return err
	}
	p.in = b[:n]
	switch {
	case p.shaking:
		return p.works()
	case p.big == nil && n == smallIn:
		p.big = p.pool.Get(middleIn)
	case len(p.big) == middleIn && n == middleIn:
		p.full = true // until what was read is handed out
	case p.big != nil && n < smallIn: // the connection gets idle
		p.in = p.small[:copy(p.small[:], p.in)]
		p.releaseIn()
	}
	return nil
}

// waitFor says for how many bytes the next read of the socket waits, if it has to.
func (p *pump) waitFor(bytes int) {
	if s, ok := p.src.(transport.Patient); ok {
		s.WaitFor(max(bytes, 1))
	}
}

// works says that the handshake computes, and rests that it does not.
func (p *pump) works() error {
	if p.begin == nil || p.computes {
		return nil
	}
	err := p.begin()
	p.computes = err == nil
	return err
}

func (p *pump) rests() {
	if p.computes {
		p.computes = false
		p.end()
	}
}

func (p *pump) releaseIn() {
	p.pool.Put(p.big)
	p.big = nil
}

// answer writes what crypto/tls has added while nobody writes.
func (p *pump) answer() error {
	p.mu.Lock()
	waiting, err := p.from < p.to, p.fail
	p.mu.Unlock()
	w := &p.c.writer
	if err != nil || !waiting || w.try == nil || !w.turn.TryLock() {
		return err
	}
	defer w.pass()
	// An error of the socket is the writer's, or comes to the reader from there.
	_ = w.push(false)
	return nil
}

// flush writes all there is, and waits for it. It is for the handshake, in which
// there is no writer.
func (p *pump) flush() error {
	p.c.writer.turn.Lock()
	defer p.c.writer.turn.Unlock()
	return p.c.writer.push(true)
}

// Write takes ciphertext from crypto/tls: from the goroutine that writes, and from
// the one that reads when it answers. crypto/tls calls one of them at a time.
func (p *pump) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return 0, p.fail
	}
	if p.to+len(b) > len(p.out) {
		switch {
		case p.out == nil:
			p.out = p.pool.Get(max(answers, len(b)))
		case p.shaking:
			p.grow(p.to + len(b))
		default:
			p.fail = errUnread
			return 0, p.fail
		}
	}
	p.to += copy(p.out[p.to:], b)
	return len(b), nil
}

// grow makes room for n bytes. Nobody may be writing out. p.mu is held.
func (p *pump) grow(n int) {
	larger := p.pool.Get(n)
	p.to = copy(larger, p.out[p.from:p.to])
	p.from = 0
	p.pool.Put(p.out)
	p.out = larger
}

// reserve makes room for n bytes of plaintext. The caller has the turn to write.
func (p *pump) reserve(n int) {
	// No record but the last one is below a quarter of the largest.
	need := n + overhead*(4*n/record+2) + answers
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil {
		p.out = p.pool.Get(need)
	} else if len(p.out)-p.to < need {
		p.grow(p.to - p.from + need)
	}
}

// waiting returns what is to be written.
func (p *pump) waiting() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out[p.from:p.to]
}

// wrote notes that n bytes are written. The caller has the turn to write. What is
// left moves down when the room for answers behind it gets short: answers that come all
// the time would use it up though the other endpoint reads them.
func (p *pump) wrote(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from += n
	switch {
	case p.from == p.to && p.out != nil:
		p.from, p.to = 0, 0
		p.pool.Put(p.out)
		p.out = nil
	case p.from > 0 && len(p.out)-p.to < answers/2:
		p.to = copy(p.out, p.out[p.from:p.to])
		p.from = 0
	}
}

// failed returns why nothing can be written any more.
func (p *pump) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fail
}

func (p *pump) releaseOut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.Put(p.out)
	p.out, p.from, p.to, p.fail = nil, 0, 0, net.ErrClosed
}

// Close is nothing: the connection above closes the socket.
func (p *pump) Close() error { return nil }

// LocalAddr returns that of the socket.
func (p *pump) LocalAddr() net.Addr { return p.c.Conn.LocalAddr() }

// RemoteAddr returns that of the socket.
func (p *pump) RemoteAddr() net.Addr { return p.c.Conn.RemoteAddr() }

// SetDeadline is nothing: deadlines are the socket's.
func (p *pump) SetDeadline(time.Time) error { return nil }

// SetReadDeadline is nothing.
func (p *pump) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is nothing.
func (p *pump) SetWriteDeadline(time.Time) error { return nil }
