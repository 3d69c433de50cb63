package tlsconn

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
)

// renewTime bounds the handshake of a renewal, from the first byte of the other end on.
const renewTime = 30 * time.Second

// Renewal says how the keys of a connection are made new.
type Renewal struct {
	// Config returns the configuration of the next handshake.
	Config func() *tls.Config
	// Judge says whether the other end may go on. It is called when the handshake is over,
	// and before anything is read or written with the new keys.
	Judge func(tls.ConnectionState) error
	// After is how many records this end writes, or reads, until it makes the keys new by
	// itself, 0: half of what they are good for. Only the end that has dialled does.
	After int64
	// Most is how many records this end writes with the same keys before the connection
	// ends, 0: what they are good for.
	Most int64
}

var (
	errBound = errors.New("the handshake for new keys does not belong to this connection")
	errSlow  = errors.New("the other endpoint did not finish the handshake for new keys")
	errStill = errors.New("a connection in plaintext, or one that was accepted, cannot begin to make its keys new")
)

// renewals are the renewals of one connection.
type renewals struct {
	how   atomic.Pointer[how] // nil: there are none
	due   atomic.Bool
	heard atomic.Bool             // something was read with the first keys
	now   atomic.Pointer[renewal] // nil: none is under way

	mu   sync.Mutex // what follows, and a renewal that begins
	deaf bool       // nothing is read any more: none can begin
}

// how is a Renewal of the end that has dialled, or of the other one.
type how struct {
	Renewal
	dialled bool
}

// renewal is one that is under way. Its goroutine makes the handshake and has the turn to
// write, and until it is over no deadline of writes interrupts it. The goroutine that reads the
// connection hands it what the socket brings.
type renewal struct {
	c    *Conn
	tls  *tls.Conn
	over chan struct{} // closed when it has ended

	out  []byte // of the goroutine that makes the handshake
	read int

	mu      sync.Mutex
	changed chan struct{} // closed when one of those below has changed, and made again
	into    []byte        // the handshake waits for bytes here; nil: it does not
	got     int
	done    bool
	stopped bool
	fail    error
	bound   *time.Timer
}

// Renewable lets the keys of a connection be made new while it is used: both ends call it
// when their handshake has succeeded, and before anything else. The end that has dialled
// begins (Renew, Renewal.After). It ends its stream in TLS as Close does, and so does the
// other one. A whole handshake follows on the same socket, in which each shows the
// certificate that it has by then. Writes wait meanwhile, and reads go on.
func (c *Conn) Renewable(dialled bool, opt Renewal) {
	if opt.After == 0 {
		opt.After = maxRecords / 2
	}
	if opt.Most > 0 {
		c.writer.most = opt.Most
	}
	c.renewals.how.Store(&how{opt, dialled})
}

// Renew has the keys made new, beside everything that runs. It needs a goroutine that
// reads. It begins when the other end has said something: until then that end may take
// what comes behind a first word for the end of the connection.
func (c *Conn) Renew() error {
	if h := c.renewals.how.Load(); h == nil || !h.dialled || c.clear.Load() {
		return errStill
	}
	c.renewals.due.Store(true)
	c.renewDue()
	return nil
}

// renewDue begins a renewal that is due, unless there is a writer, who does it. What is heard
// meanwhile is looked at again: who has heard it found the turn taken.
func (c *Conn) renewDue() {
	w, r := &c.writer, &c.renewals
	for again := true; again && r.due.Load() && w.turn.TryLock(); {
		heard := r.heard.Load()
		w.wear()
		w.turn.Unlock()
		again = heard != r.heard.Load()
	}
}

// wear begins a renewal if one is due, and reports whether one is under way. The caller
// has the turn to write.
func (w *writer) wear() bool {
	r := &w.c.renewals
	if r.now.Load() != nil {
		return true
	}
	if h := r.how.Load(); h != nil && h.dialled && !w.c.closed.Load() && !w.ended && (w.records >= h.After || r.due.Load() && r.heard.Load()) {
		r.due.Store(false)
		w.c.renew()
	}
	return r.now.Load() != nil // the reader may have begun one
}

// renew begins a renewal, unless nothing is read any more.
func (c *Conn) renew() *renewal {
	c.renewals.mu.Lock()
	defer c.renewals.mu.Unlock()
	if c.renewals.deaf {
		return nil
	}
	r := &renewal{c: c, over: make(chan struct{}), changed: make(chan struct{})}
	side, h := tls.Server, c.renewals.how.Load()
	if h.dialled {
		side = tls.Client
	}
	r.tls = side(&layer{pump: &c.pump, r: r}, c.bind(h))
	c.renewals.now.Store(r)
	go r.run()
	return r
}

// bind returns the configuration of a handshake that counts in this connection alone: the end that has
// dialled offers one protocol more, which only the two ends of the keys before can name
// (RFC 8446, section 7.5), and the other one wants it. Otherwise somebody on the way could
// have a connection that has ended go on with what a fresh one says.
func (c *Conn) bind(h *how) *tls.Config {
	cfg := h.Config().Clone()
	was := c.tls.Load().ConnectionState()
	secret, err := was.ExportKeyingMaterial("EXPORTER-gopccl-new-keys", nil, 32)
	proof := fmt.Sprintf("gopccl-renewal-%x", secret)
	if h.dialled {
		if err == nil {
			cfg.NextProtos = append(slices.Clone(cfg.NextProtos), proof)
		}
		return cfg
	}
	choose := cfg.GetConfigForClient
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		n := len(hello.SupportedProtos) - 1
		if err != nil || n < 0 || subtle.ConstantTimeCompare([]byte(hello.SupportedProtos[n]), []byte(proof)) == 0 {
			return nil, errBound
		}
		if choose == nil {
			return nil, nil
		}
		rest := *hello
		rest.SupportedProtos = hello.SupportedProtos[:n]
		return choose(&rest)
	}
	return cfg
}

// run makes the handshake.
func (r *renewal) run() {
	w := &r.c.writer
	w.turn.Lock()
	defer w.pass()
	err := errors.New("a panic")
	defer func() { r.finish(err) }()
	defer errs.Catch("renew keys", func(p *errs.Error) { err = p })
	r.c.writeBy.lend()
	if err = r.ended(); err != nil {
		return
	}
	if err = w.tls.CloseWrite(); err != nil {
		return
	}
	if err = r.tls.HandshakeContext(context.Background()); err == nil {
		err = r.flush()
	}
}

// finish has the connection go on with the new keys, or ends it. The caller has the turn
// to write.
func (r *renewal) finish(err error) {
	c := r.c
	if err == nil {
		c.writer.tls, c.writer.records = r.tls, 0
		c.tls.Store(r.tls)
		err = c.renewals.how.Load().Judge(r.tls.ConnectionState())
	}
	if err != nil {
		err = fmt.Errorf("the keys of the connection could not be made new: %w", err)
	}
	r.mu.Lock()
	if r.bound != nil {
		r.bound.Stop()
	}
	r.done, r.fail = true, err
	r.tell()
	r.mu.Unlock()
	c.writeBy.giveBack()
	c.renewals.now.Store(nil)
	close(r.over)
	if err != nil {
		c.End(err)
	}
}

// stop ends the handshake.
func (r *renewal) stop(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.stopped, r.fail = true, err
		r.tell()
		r.c.writeBy.interrupt()
	}
}

// tell has those that wait look again. r.mu is held.
func (r *renewal) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// ended returns why the handshake does not go on; nil: it does.
func (r *renewal) ended() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return r.fail
	case r.c.closed.Load():
		return net.ErrClosed
	}
	return nil
}

// follow is for what comes behind the end of a stream in TLS: nothing, or new keys. The
// caller has the turn to read. nil: it goes on.
func (c *Conn) follow() error {
	r := c.renewals.now.Load()
	if now := c.tls.Load(); r == nil && now != c.in {
		c.goOn(now)
		return nil
	}
	if r == nil {
		if c.renewals.how.Load().dialled {
			return io.EOF
		}
		if len(c.pump.in) == 0 {
			if err := c.pump.fill(); errors.Is(err, ErrCut) {
				return io.EOF // nothing follows what has said its end
			} else if err != nil {
				return err
			}
		}
		if r = c.renew(); r == nil {
			return io.EOF
		}
	}
	if err := r.feed(); err != nil {
		return err
	}
	c.goOn(r.tls)
	return nil
}

// deafen ends a renewal, which needs a goroutine that reads: err has ended that for good. What
// is left to be written goes on with the keys that there are.
func (c *Conn) deafen(err error) {
	c.renewals.mu.Lock()
	c.renewals.deaf = true
	r := c.renewals.now.Load()
	c.renewals.mu.Unlock()
	if r != nil {
		r.stop(err)
	}
}

// goOn reads with new keys. The caller has the turn to read.
func (c *Conn) goOn(t *tls.Conn) { c.in, c.pump.records = t, 0 }

// worn begins a renewal at the end that has dialled when the other one has written so many
// records, which cannot begin one, and one that has waited for the first of them. The caller
// has the turn to read.
func (c *Conn) worn() {
	if !c.renewals.heard.Load() {
		c.renewals.heard.Store(true)
		c.renewDue()
	}
	h := c.renewals.how.Load()
	if h == nil || !h.dialled || c.pump.records < h.After || c.renewals.now.Load() != nil {
		return
	}
	c.pump.records = 0 // until the next time, should the other end not answer
	c.renewals.due.Store(true)
	c.renewDue()
}

// feed hands what the socket brings to the handshake until that is over. A deadline may
// interrupt it; the next call goes on.
func (r *renewal) feed() error {
	p := &r.c.pump
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bound == nil {
		r.bound = time.AfterFunc(renewTime, func() { r.c.End(errSlow) })
	}
	for {
		for r.into == nil && !r.done {
			changed := r.changed
			r.mu.Unlock()
			err := r.c.await(changed, &r.c.readBy)
			r.mu.Lock()
			if err != nil {
				return err
			}
		}
		if r.done {
			return r.fail
		}
		r.mu.Unlock()
		var err error
		if len(p.in) == 0 {
			err = p.fill()
		}
		r.mu.Lock()
		switch {
		case r.into == nil: // stopped
		case transport.IsTimeout(err):
			return err
		case err != nil:
			r.stopped, r.fail = true, err
			r.into = nil
			r.tell()
		default:
			r.got = p.hand(r.into)
			r.into = nil
			r.tell()
		}
	}
}

// layer is the pump below the tls.Conn of a renewal.
type layer struct {
	*pump
	r *renewal
}

// Read hands ciphertext to crypto/tls.
func (l *layer) Read(b []byte) (int, error) {
	if l.r.isOver() {
		return l.pump.Read(b)
	}
	return l.r.take(b)
}

// Write takes ciphertext from crypto/tls.
func (l *layer) Write(b []byte) (int, error) {
	if l.r.isOver() {
		return l.pump.Write(b)
	}
	l.r.out = append(l.r.out, b...)
	return len(b), nil
}

func (r *renewal) isOver() bool { return r.c.tls.Load() == r.tls || r.c.renewals.now.Load() != r }

// take waits for bytes of the handshake.
func (r *renewal) take(b []byte) (int, error) {
	if err := r.flush(); err != nil {
		return 0, err
	}
	if r.read >= maxHandshake {
		return 0, errTooLarge
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.into, r.got = b[:min(len(b), maxHandshake-r.read)], 0
	r.tell()
	for r.into != nil && !r.stopped {
		changed := r.changed
		r.mu.Unlock()
		<-changed // what reads, or stop
		r.mu.Lock()
	}
	r.into = nil
	if r.stopped {
		return 0, r.fail
	}
	r.read += r.got
	return r.got, nil
}

// flush writes what the handshake has said.
func (r *renewal) flush() error {
	w := &r.c.writer
	if len(r.out) > 0 {
		w.c.pump.reserve(len(r.out))
		if _, err := w.c.pump.Write(r.out); err != nil {
			return err
		}
		r.out = nil
	}
	err := w.push(true)
	if why := r.ended(); err != nil && why != nil {
		return why
	}
	return err
}
