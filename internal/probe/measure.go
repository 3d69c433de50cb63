package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// ErrBusy is found in the error of Measure when another peer is measuring
// the same target.
var ErrBusy = errors.New("another peer is measuring this target")

// Options of a measurement. Zero values take the defaults.
type Options struct {
	// Duration bounds the sending. Default 3 s (PCCL: 10 s).
	Duration time.Duration
	// Connections in parallel. Default 4 (PCCL: 16).
	Connections int
	// EarlyStop ends the sending as soon as the rate is steady, and reports
	// that rate: on most links long before Duration.
	EarlyStop bool
	// HandshakeTimeout bounds connecting and the wait for the answer to the
	// hello, each. Default 10 s.
	HandshakeTimeout time.Duration
	// Linger bounds the wait for the sent bytes to drain, so that they do not
	// disturb the next measurement. Default 5 s towards PCCL, 600 ms towards a
	// target that counts, which loses nothing by a cut.
	Linger time.Duration
	// Postpone is how long Run leaves a busy target alone. Default 1 s.
	Postpone time.Duration
	// Patience bounds how long Run keeps trying one target. Default: enough
	// for as many competitors as there are requests.
	Patience time.Duration
	// Dial opens a connection. Default: TCP, tuned by platform.TuneP2P.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

func (o Options) withDefaults() Options {
	if o.Duration <= 0 {
		o.Duration = 3 * time.Second
	}
	if o.Connections <= 0 {
		o.Connections = 4
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = 10 * time.Second
	}
	if o.Postpone <= 0 {
		o.Postpone = time.Second
	}
	if o.Dial == nil {
		o.Dial = dial
	}
	return o
}

// dial connects with the same congestion control as the connections that will
// carry the data.
func dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	return sockets.Dial(ctx, addr, platform.Options{Congestion: platform.CongestionAuto})
}

const opMeasure = "measure bandwidth"

// piece is what one write offers to the kernel, in bytes. What a connection
// has taken is counted after each, so it has to be small against what even a
// slow link moves in one sample.
const piece = 64 << 10

// reportSize is the size of one report of a counting server, in bytes.
const reportSize = 8

// noise is what is sent: random, so that nothing on the way can compress it.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, piece)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b)
	return b
})

// Measure measures the rate from this peer, self, to the benchmark server at
// addr. A gopccl server counts what arrives; towards PCCL the bytes count that
// the own kernel took, times 8 / 10^6 / seconds (data spec, section 8).
//
// Errors are *errs.Error: Busy (ErrBusy is in the chain),
// RankConnectionFailed (connecting or the handshake failed), TransferFailed
// (the sending broke), Canceled (ctx ended).
func Measure(ctx context.Context, addr netip.AddrPort, self wire.UUID, o Options) (Estimate, error) {
	p, err := Prepare(ctx, addr, self, o)
	if err != nil {
		return Estimate{}, err
	}
	return p.Go(ctx, time.Now())
}

// Probe is a measurement whose connections stand.
type Probe struct {
	o     Options
	addr  netip.AddrPort
	conns []conn
}

// conn is one connection of a probe. sent and seen are totals in bytes.
type conn struct {
	net.Conn
	counts     bool          // the other end reports what arrives
	trip       time.Duration // from the hello to its answer
	sent, seen atomic.Uint64
	room       atomic.Uint64 // bytes that may be sent and not seen
	news       chan struct{} // seen or room has grown
}

// Prepare connects and introduces this peer; the target belongs to it from
// then on until Go or Close. Errors as of Measure.
func Prepare(ctx context.Context, addr netip.AddrPort, self wire.UUID, o Options) (*Probe, error) {
	o = o.withDefaults()
	p := &Probe{o: o, addr: addr, conns: make([]conn, o.Connections)}
	if err := p.open(ctx, self); err != nil {
		p.Close()
		return nil, p.fail(ctx, errs.RankConnectionFailed, "connect", err)
	}
	return p, nil
}

// Close gives the target free without a measurement.
func (p *Probe) Close() {
	for i := range p.conns {
		if c := p.conns[i].Conn; c != nil {
			c.Close()
		}
	}
}

// Go sends from the instant begin on until the rate is steady or
// Options.Duration is over, and closes the probe. Errors as of Measure.
func (p *Probe) Go(ctx context.Context, begin time.Time) (Estimate, error) {
	defer p.Close()
	if wait := time.Until(begin); wait > 0 {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
	stop := context.AfterFunc(ctx, p.Close)
	defer stop()
	e, err := p.send(begin)
	if err != nil {
		return Estimate{}, p.fail(ctx, errs.TransferFailed, "send", err)
	}
	return e, nil
}

func (p *Probe) fail(ctx context.Context, code errs.Code, phase string, err error) error {
	switch {
	case ctx.Err() != nil:
		code, err = errs.Canceled, context.Cause(ctx)
	case errors.Is(err, ErrBusy):
		code = errs.Busy
	}
	return errs.New(code, opMeasure, err).WithPhase(phase).WithPeer(p.addr.String())
}

// each runs f for every connection at once and returns one of the errors;
// ErrBusy before others, which may follow from it.
func (p *Probe) each(f func(c *conn) error) error {
	failed := make([]error, len(p.conns))
	var wg sync.WaitGroup
	for i := range p.conns {
		wg.Go(func() {
			defer errs.Catch(opMeasure, func(err *errs.Error) { failed[i] = err })
			failed[i] = f(&p.conns[i])
		})
	}
	wg.Wait()
	var first error
	for _, err := range failed {
		if errors.Is(err, ErrBusy) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// open connects and shakes hands on every connection.
func (p *Probe) open(ctx context.Context, self wire.UUID) error {
	hello := wire.Append(nil, wire.C2BHello{UUID: self, Ext: wire.Ext{Topology: true}})
	return p.each(func(c *conn) error {
		dctx, cancel := context.WithTimeout(ctx, p.o.HandshakeTimeout)
		defer cancel()
		nc, err := p.o.Dial(dctx, p.addr)
		if err != nil {
			return err
		}
		nc = transport.Quiet(nc)
		c.Conn = nc
		defer context.AfterFunc(ctx, func() { nc.Close() })()
		if err := nc.SetDeadline(time.Now().Add(p.o.HandshakeTimeout)); err != nil {
			return err
		}
		// One write: PCCL's receivers want the length in one piece (control spec, section 2).
		said := time.Now()
		if _, err := nc.Write(hello); err != nil {
			return err
		}
		answer, err := wire.Read(nc, wire.B2C, maxHello)
		if err != nil {
			return err
		}
		a, ok := answer.(wire.B2CServerIsBusy)
		if !ok {
			return errs.New(errs.Protocol, opMeasure, fmt.Errorf("unexpected %T", answer))
		}
		if a.IsBusy {
			return ErrBusy
		}
		c.counts, c.trip = a.Ext.Topology, time.Since(said)
		c.news = make(chan struct{}, 1)
		return nil
	})
}

// counted reports whether the target counts on every connection.
func (p *Probe) counted() bool {
	for i := range p.conns {
		if !p.conns[i].counts {
			return false
		}
	}
	return true
}

// On a short way TCP has found its rate at once: what is not steady after
// shortest, and tripsEnough round trips, will not become so if it is fast. Where
// many peers share a machine, it is the machine that is measured. Over slow
// links data arrives in lumps, and it takes longer to see how many.
const (
	shortest    = 350 * time.Millisecond
	tripsEnough = 30
	insideHost  = 150 * time.Millisecond
	slowMbps    = 200
)

// sameHost reports whether the target is on this machine.
func (p *Probe) sameHost() bool {
	host := func(a net.Addr) netip.Addr {
		if t, ok := a.(*net.TCPAddr); ok {
			return t.AddrPort().Addr().Unmap()
		}
		return netip.Addr{}
	}
	from := host(p.conns[0].LocalAddr())
	return from.IsValid() && from == host(p.conns[0].RemoteAddr())
}

// roundTrip is the shortest that a connection has seen.
func (p *Probe) roundTrip() time.Duration {
	d := p.conns[0].trip
	for i := range p.conns {
		d = min(d, p.conns[i].trip)
	}
	return d
}

// What may be on its way on one connection of a target that counts: firstRoom,
// and half as much again as it took in the last roomTime and a round trip. That
// is more than any link needs, and less than what fills the queues before it for
// seconds, where the next measurement would find it.
const (
	firstRoom = 64 << 10
	roomTime  = 250 * time.Millisecond
)

// send fills all connections until the sampler has seen enough, then lets
// them drain.
func (p *Probe) send(begin time.Time) (Estimate, error) {
	buf := noise()
	counted := p.counted()
	start := time.Now()
	end := start.Add(p.o.Duration)
	for i := range p.conns {
		c := &p.conns[i]
		if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(end)); err != nil {
			return Estimate{}, err
		}
		c.room.Store(math.MaxInt64)
		if counted && !p.sameHost() {
			c.room.Store(firstRoom)
		}
	}
	var followers sync.WaitGroup
	if counted {
		for i := range p.conns {
			followers.Go(func() {
				defer errs.Catch(opMeasure, func(*errs.Error) { p.Close() })
				p.conns[i].follow()
			})
		}
	}
	enough := make(chan struct{}) // closed by the sampler: nothing more is to be sent
	failed := make(chan struct{}) // closed when the sending has ended: nothing more is to be sampled
	result := make(chan Estimate, 1)
	go func() {
		defer errs.Catch(opMeasure, func(*errs.Error) {
			p.Close()
			result <- Estimate{}
		})
		e := p.sample(failed, start, counted)
		close(enough)
		for i := range p.conns {
			_ = p.conns[i].SetWriteDeadline(time.Now()) // a closed one has ended anyway
		}
		result <- e
	}()
	var late atomic.Int64
	err := p.each(func(c *conn) error {
		// The last connection counts: from then on all are at work.
		d := int64(time.Since(begin))
		for old := late.Load(); d > old && !late.CompareAndSwap(old, d); old = late.Load() {
		}
		for {
			for c.sent.Load()-c.seen.Load() >= c.room.Load() {
				select {
				case <-c.news:
				case <-enough:
					return nil
				}
			}
			n, err := c.Write(buf)
			c.sent.Add(uint64(n))
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return nil // the deadline is the end of the measurement
				}
				return err
			}
		}
	})
	close(failed)
	e := <-result
	if err == nil {
		p.drain(counted, &followers)
	}
	p.Close()
	followers.Wait()
	if err != nil {
		return Estimate{}, err
	}
	e.Took, e.Late = time.Since(start), time.Duration(late.Load())
	if counted && !(e.Mbps > 0) { // too short for two reports: the last one says it all
		for i := range p.conns {
			e.Mbps += float64(p.conns[i].seen.Load()) * 8 / 1e6 / e.Took.Seconds()
		}
	}
	if !(e.Mbps > 0) {
		return Estimate{}, errs.New(errs.Timeout, opMeasure, errors.New("not a byte arrived"))
	}
	return e, nil
}

// follow takes in the reports of a counting server until the connection ends.
// Reports that go back are the other end's mistake and count as none.
func (c *conn) follow() {
	var report [reportSize]byte
	for {
		if _, err := io.ReadFull(c.Conn, report[:]); err != nil {
			if hard, ok := c.Conn.(interface{ SetLinger(int) error }); ok && errors.Is(err, os.ErrDeadlineExceeded) {
				_ = hard.SetLinger(0) // what still waits in the buffers would disturb the next measurement
			}
			return
		}
		if seen := binary.BigEndian.Uint64(report[:]); seen <= c.sent.Load()+piece && seen >= c.seen.Load() {
			c.seen.Store(seen)
			c.tell()
		}
	}
}

// tell wakes the sending of the connection.
func (c *conn) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// sample watches all connections, ends the sending when the rate is steady
// (with Options.EarlyStop) and returns it.
func (p *Probe) sample(ended <-chan struct{}, start time.Time, counted bool) Estimate {
	warmUp, least := warmUpCounted, 0
	if !counted {
		warmUp, least = warmUpSent, int(minSent/sampleEvery)
	}
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	var samples []sample
	was, before := uint64(0), start
	take := func(now time.Time) {
		total := uint64(0)
		for i := range p.conns {
			if c := &p.conns[i]; counted {
				total += c.seen.Load()
			} else {
				total += c.sent.Load()
			}
		}
		if d := now.Sub(before).Seconds(); d > 0 {
			samples = append(samples, sample{mbps: float64(total-was) * 8 / 1e6 / d, seconds: d})
		}
		was, before = total, now
	}
	history := make([][]uint64, len(p.conns)) // seen, by tick
	back := int((roomTime + p.roundTrip()) / sampleEvery)
	for {
		select {
		case <-ended:
			if len(samples) == 0 {
				take(time.Now())
			}
			e, _ := steady(samples, least)
			return e
		case now := <-ticker.C:
			take(now)
			for i := range p.conns {
				c := &p.conns[i]
				h := append(history[i], c.seen.Load())
				if c.room.Load() < math.MaxInt64 {
					c.room.Store(firstRoom + (h[len(h)-1]-h[max(0, len(h)-1-back)])*3/2)
					c.tell()
				}
				history[i] = h
			}
			if now.Sub(start) < warmUp {
				samples = samples[:0]
				continue
			}
			e, ok := steady(samples, least)
			if ok = ok && p.o.EarlyStop; ok || now.Sub(start) >= p.limit(e, counted) {
				return e
			}
		}
	}
}

// limit is how long is sent at a rate like e before it is taken as it is.
func (p *Probe) limit(e Estimate, counted bool) time.Duration {
	switch {
	case !counted || !p.o.EarlyStop:
		return p.o.Duration
	case p.sameHost():
		return min(insideHost, p.o.Duration)
	case e.Mbps > slowMbps:
		return min(shortest+tripsEnough*p.roundTrip(), p.o.Duration)
	}
	return p.o.Duration
}

// drain ends the streams and waits until the other side has read them, which
// it shows by ending its own. A target that counts is cut off after a while:
// what still waits in the buffers would disturb the next measurement.
func (p *Probe) drain(counted bool, followers *sync.WaitGroup) {
	linger := p.o.Linger
	if linger <= 0 {
		linger = 5 * time.Second
		if counted {
			linger = 600 * time.Millisecond
		}
	}
	until := time.Now().Add(linger)
	_ = p.each(func(c *conn) error {
		_ = c.SetWriteDeadline(until) // the end is written, too, where there is more than TCP
		half, ok := c.Conn.(interface{ CloseWrite() error })
		switch {
		case !ok || half.CloseWrite() != nil:
			return c.Close()
		case c.SetReadDeadline(until) != nil || counted:
			return nil // follow reads
		}
		_, err := io.Copy(io.Discard, c)
		return err
	})
	if counted {
		followers.Wait()
	}
}
