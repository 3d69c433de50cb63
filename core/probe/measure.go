package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/wire"
	"github.com/gopccl/gopccl/platform"
)

// ErrBusy is found in the error of Measure when another peer is measuring
// the same target.
var ErrBusy = errors.New("another peer is measuring this target")

// Options of a measurement. Zero values take the defaults.
type Options struct {
	// Duration of sending. Default 10 s, as PCCL has it.
	Duration time.Duration
	// Connections in parallel. Default 4 (PCCL: 16).
	Connections int
	// EarlyStop ends the sending when the rate has been steady for a second,
	// and reports that rate: on most links long before Duration, and without
	// the bytes that only filled the buffers of the sockets at the start.
	EarlyStop bool
	// HandshakeTimeout bounds connecting and the wait for the answer to the
	// hello, each. Default 10 s.
	HandshakeTimeout time.Duration
	// Linger bounds the wait for the sent bytes to drain, so that they do not
	// disturb the next measurement. Default 5 s.
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
		o.Duration = 10 * time.Second
	}
	if o.Connections <= 0 {
		o.Connections = 4
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = 10 * time.Second
	}
	if o.Linger <= 0 {
		o.Linger = 5 * time.Second
	}
	if o.Postpone <= 0 {
		o.Postpone = time.Second
	}
	if o.Dial == nil {
		o.Dial = dial
	}
	return o
}

func dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	// The same congestion control as the connections that will carry the data.
	if err := platform.TuneP2P(conn, platform.Options{Congestion: platform.CongestionAuto}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

const opMeasure = "measure bandwidth"

// piece is what one write offers to the kernel, in bytes. What a connection
// has taken is counted after each, so it has to be small against what even a
// slow link moves in one sample.
const piece = 64 << 10

// Samples for EarlyStop: the rate is steady when it stayed within tolerance
// of its mean for steadySamples in a row.
const (
	sampleEvery   = 200 * time.Millisecond
	steadySamples = 5
	tolerance     = 0.05
)

// noise is what is sent: random, so that nothing on the way can compress it.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, piece)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b)
	return b
})

// Measure measures the rate from this peer, self, to the benchmark server at
// addr, in Mbit/s: the sum over the connections of the bytes that the kernel
// took, times 8 / 10^6 / seconds (data spec, section 8).
//
// Errors are *errs.Error: Busy (ErrBusy is in the chain),
// RankConnectionFailed (connecting or the handshake failed), TransferFailed
// (the sending broke), Canceled (ctx ended).
func Measure(ctx context.Context, addr netip.AddrPort, self wire.UUID, o Options) (float64, error) {
	o = o.withDefaults()
	m := &measurement{o: o, addr: addr, conns: make([]net.Conn, o.Connections), sent: make([]atomic.Int64, o.Connections)}
	defer m.close()
	if err := m.open(ctx, self); err != nil {
		return 0, m.fail(ctx, errs.RankConnectionFailed, "connect", err)
	}
	stop := context.AfterFunc(ctx, m.close)
	defer stop()
	mbps, err := m.send()
	if err != nil {
		return 0, m.fail(ctx, errs.TransferFailed, "send", err)
	}
	m.drain()
	return mbps, nil
}

// measurement is one run of Measure.
type measurement struct {
	o     Options
	addr  netip.AddrPort
	conns []net.Conn // nil until opened
	sent  []atomic.Int64
}

func (m *measurement) close() {
	for _, c := range m.conns {
		if c != nil {
			c.Close()
		}
	}
}

func (m *measurement) fail(ctx context.Context, code errs.Code, phase string, err error) error {
	switch {
	case ctx.Err() != nil:
		code, err = errs.Canceled, context.Cause(ctx)
	case errors.Is(err, ErrBusy):
		code = errs.Busy
	}
	return errs.New(code, opMeasure, err).At(phase).With(m.addr.String())
}

// each runs f for every connection at once and returns one of the errors;
// ErrBusy before others, which may follow from it.
func (m *measurement) each(f func(i int) error) error {
	failed := make([]error, len(m.conns))
	var wg sync.WaitGroup
	for i := range m.conns {
		wg.Go(func() { failed[i] = f(i) })
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
func (m *measurement) open(ctx context.Context, self wire.UUID) error {
	hello := wire.Append(nil, wire.C2BHello{UUID: self})
	return m.each(func(i int) error {
		dctx, cancel := context.WithTimeout(ctx, m.o.HandshakeTimeout)
		defer cancel()
		conn, err := m.o.Dial(dctx, m.addr)
		if err != nil {
			return err
		}
		m.conns[i] = conn
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		if err := conn.SetDeadline(time.Now().Add(m.o.HandshakeTimeout)); err != nil {
			return err
		}
		// One write: PCCL's receivers want the length in one piece (control spec, section 2).
		if _, err := conn.Write(hello); err != nil {
			return err
		}
		p, err := wire.Read(conn, wire.B2C, maxHello)
		if err != nil {
			return err
		}
		answer, ok := p.(wire.B2CServerIsBusy)
		if !ok {
			return errs.New(errs.Protocol, opMeasure, fmt.Errorf("unexpected %T", p))
		}
		if answer.IsBusy {
			return ErrBusy
		}
		return nil
	})
}

// send fills all connections for the duration, or until the rate is steady,
// and returns the rate in Mbit/s.
func (m *measurement) send() (float64, error) {
	buf := noise()
	start := time.Now()
	for _, c := range m.conns {
		if err := c.SetDeadline(start.Add(m.o.Duration)); err != nil {
			return 0, err
		}
	}
	steady := make(chan float64, 1)
	ended := make(chan struct{})
	var sampler sync.WaitGroup
	if m.o.EarlyStop {
		sampler.Go(func() { m.sample(ended, steady) })
	}
	rates := make([]float64, len(m.conns))
	err := m.each(func(i int) error {
		c, begin := m.conns[i], time.Now()
		for {
			n, err := c.Write(buf)
			m.sent[i].Add(int64(n))
			if err != nil {
				rates[i] = float64(m.sent[i].Load()) * 8 / 1e6 / time.Since(begin).Seconds()
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return nil // the deadline is the end of the measurement
				}
				return err
			}
		}
	})
	close(ended)
	sampler.Wait()
	if err != nil {
		return 0, err
	}
	select {
	case mbps := <-steady:
		return mbps, nil
	default:
	}
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	if sum == 0 {
		return 0, errs.New(errs.Timeout, opMeasure, errors.New("not a byte was taken"))
	}
	return sum, nil
}

// sample watches the sum of all connections and ends the sending when its
// rate is steady.
func (m *measurement) sample(ended <-chan struct{}, steady chan<- float64) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	var rates []float64
	before, at := int64(0), time.Now()
	for {
		select {
		case <-ended:
			return
		case now := <-ticker.C:
			total := int64(0)
			for i := range m.sent {
				total += m.sent[i].Load()
			}
			rates = append(rates, float64(total-before)*8/1e6/now.Sub(at).Seconds())
			before, at = total, now
			// The first sample holds the filling of the socket buffers.
			if mbps, ok := settled(rates[1:]); ok {
				steady <- mbps
				for _, c := range m.conns {
					_ = c.SetDeadline(now) // a closed one has ended anyway
				}
				return
			}
		}
	}
}

// settled returns the mean of the last samples if all are near it.
func settled(rates []float64) (float64, bool) {
	if len(rates) < steadySamples {
		return 0, false
	}
	last := rates[len(rates)-steadySamples:]
	lo, hi, sum := last[0], last[0], 0.0
	for _, r := range last {
		lo, hi, sum = min(lo, r), max(hi, r), sum+r
	}
	mean := sum / steadySamples
	return mean, mean > 0 && hi-lo <= 2*tolerance*mean
}

// drain ends the streams and waits until the other side has read them, which
// it shows by ending its own.
func (m *measurement) drain() {
	until := time.Now().Add(m.o.Linger)
	_ = m.each(func(i int) error {
		c := m.conns[i]
		half, ok := c.(interface{ CloseWrite() error })
		if !ok || half.CloseWrite() != nil || c.SetDeadline(until) != nil {
			return nil
		}
		_, err := io.Copy(io.Discard, c)
		return err
	})
}
