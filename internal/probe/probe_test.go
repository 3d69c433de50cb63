package probe

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice, bob = wire.UUID{1}, wire.UUID{2}

// quick makes measurements short enough for tests.
var quick = Options{Duration: 50 * time.Millisecond, Connections: 3, Postpone: 5 * time.Millisecond}

func serve(t testing.TB, cfg ServerConfig) (*Server, netip.AddrPort) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	s := NewServer(cfg)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(ln)
	}()
	t.Cleanup(func() {
		s.Close()
		<-ended
	})
	return s, ln.Addr().(*net.TCPAddr).AddrPort()
}

// hello opens a connection as id does and returns the answer.
func hello(t *testing.T, addr netip.AddrPort, id wire.UUID) (net.Conn, bool) {
	t.Helper()
	c, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Write(wire.Append(nil, wire.C2BHello{UUID: id}))
	require.NoError(t, err)
	p, err := wire.Read(c, wire.B2C, 100)
	require.NoError(t, err)
	return c, p.(wire.B2CServerIsBusy).IsBusy
}

func requireSane(t *testing.T, mbps float64) {
	t.Helper()
	require.False(t, math.IsNaN(mbps) || math.IsInf(mbps, 0))
	require.Positive(t, mbps)
}

func TestMeasure(t *testing.T) {
	s, addr := serve(t, ServerConfig{})
	for range 3 {
		e, err := Measure(context.Background(), addr, alice, quick)
		require.NoError(t, err)
		requireSane(t, e.Mbps)
		require.Zero(t, s.running(), "the server is free again when Measure returns")
	}
}

func (s *Server) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}

// Data spec, section 8: connections of the measuring peer are accepted, any
// other peer is told that the server is busy, and closed.
func TestBusyRule(t *testing.T) {
	s, addr := serve(t, ServerConfig{MaxPerPeer: 3})
	a1, busy := hello(t, addr, alice)
	require.False(t, busy)
	a2, busy := hello(t, addr, alice)
	require.False(t, busy)
	b, busy := hello(t, addr, bob)
	require.True(t, busy)
	_, err := b.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = Measure(context.Background(), addr, bob, quick)
	require.ErrorIs(t, err, ErrBusy)
	require.Equal(t, errs.Busy, errs.CodeOf(err))

	a3, busy := hello(t, addr, alice)
	require.False(t, busy)
	_, busy = hello(t, addr, alice)
	require.True(t, busy, "more connections than one peer may have")
	for _, c := range []net.Conn{a1, a2, a3} {
		require.NoError(t, c.(*net.TCPConn).CloseWrite())
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "the server closes its end")
	}
	require.Zero(t, s.running())
	_, busy = hello(t, addr, bob)
	require.False(t, busy)
}

// Two clients at once: one waits, both results are sane. A third one holds the
// target until both were told that it is busy and came again.
func TestTwoClientsAtOnce(t *testing.T) {
	_, addr := serve(t, ServerConfig{})
	holder, busy := hello(t, addr, wire.UUID{9})
	require.False(t, busy)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg, refused sync.WaitGroup
	var mu sync.Mutex
	got := map[wire.UUID][]Result{}
	for _, self := range []wire.UUID{alice, bob} {
		refused.Add(1)
		cameAgain := sync.OnceFunc(refused.Done)
		dials := 0
		o := quick
		o.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			mu.Lock()
			if dials++; dials > o.Connections { // more than one try opens
				cameAgain()
			}
			mu.Unlock()
			return dial(ctx, a)
		}
		wg.Go(func() {
			defer cameAgain()
			reqs := []wire.BandwidthRequest{{From: self, To: wire.UUID{3}, Addr: addr}, {From: wire.UUID{7}, To: wire.UUID{4}}}
			err := Run(ctx, self, reqs, o, func(r Result) {
				mu.Lock()
				defer mu.Unlock()
				got[self] = append(got[self], r)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	refused.Wait()
	mu.Lock()
	require.Empty(t, got, "a request ended while another peer held its target") // S1-16
	mu.Unlock()
	require.NoError(t, holder.Close())
	wg.Wait()
	for _, self := range []wire.UUID{alice, bob} {
		require.Len(t, got[self], 1, "one result per own request") // S1-16
		require.NoError(t, got[self][0].Err)
		require.Equal(t, wire.UUID{3}, got[self][0].To)
		requireSane(t, got[self][0].Mbps)
	}
}

// Control spec, section 13.3: a connect failure drops the request, the others go on.
func TestRunDropsUnreachable(t *testing.T) {
	_, addr := serve(t, ServerConfig{})
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	dead := ln.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, ln.Close())
	var got []Result
	require.NoError(t, Run(context.Background(), alice, []wire.BandwidthRequest{
		{From: alice, To: wire.UUID{3}, Addr: dead}, {From: alice, To: wire.UUID{4}, Addr: addr},
	}, quick, func(r Result) { got = append(got, r) }))
	require.Len(t, got, 2)
	require.Equal(t, wire.UUID{3}, got[0].To)
	require.Equal(t, errs.RankConnectionFailed, errs.CodeOf(got[0].Err))
	require.Equal(t, wire.UUID{4}, got[1].To)
	require.NoError(t, got[1].Err)
	require.NoError(t, Run(context.Background(), alice, nil, quick, nil))
}

// A target that is busy is left alone while others are measured, and given up
// in the end.
func TestRunPostponesBusy(t *testing.T) {
	_, busyAddr := serve(t, ServerConfig{})
	_, busy := hello(t, busyAddr, bob)
	require.False(t, busy)
	_, addr := serve(t, ServerConfig{})
	o := quick
	o.Patience = 60 * time.Millisecond
	var got []Result
	require.NoError(t, Run(context.Background(), alice, []wire.BandwidthRequest{
		{From: alice, To: wire.UUID{3}, Addr: busyAddr}, {From: alice, To: wire.UUID{4}, Addr: addr},
	}, o, func(r Result) { got = append(got, r) }))
	require.Len(t, got, 2)
	require.Equal(t, wire.UUID{4}, got[0].To)
	require.NoError(t, got[0].Err)
	require.ErrorIs(t, got[1].Err, ErrBusy)
}

// brokenConn fails after the handshake.
type brokenConn struct {
	net.Conn
	writes int
}

func (b *brokenConn) Write(p []byte) (int, error) {
	if b.writes++; b.writes > 1 {
		return 0, errors.New("cable cut")
	}
	return b.Conn.Write(p)
}

// A send failure after the start is retried like busy, a few times.
func TestRunRetriesBrokenSends(t *testing.T) {
	_, addr := serve(t, ServerConfig{})
	for _, cuts := range []int{1, 100} {
		dials := 0
		o := quick
		o.Connections = 1
		o.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			c, err := dial(ctx, a)
			if dials++; dials <= cuts && err == nil {
				c = &brokenConn{Conn: c}
			}
			return c, err
		}
		var got []Result
		require.NoError(t, Run(context.Background(), alice, []wire.BandwidthRequest{{From: alice, To: bob, Addr: addr}}, o,
			func(r Result) { got = append(got, r) }))
		require.Len(t, got, 1)
		if cuts == 1 {
			require.NoError(t, got[0].Err)
			require.GreaterOrEqual(t, dials, 2)
		} else {
			require.Equal(t, errs.TransferFailed, errs.CodeOf(got[0].Err))
		}
	}
}

func TestMeasureCanceled(t *testing.T) {
	_, addr := serve(t, ServerConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	o := quick
	o.Duration = time.Hour
	go func() {
		// Cancel when the sending has begun: the server is then taken.
		for {
			if c, err := net.Dial("tcp4", addr.String()); err == nil {
				_, _ = c.Write(wire.Append(nil, wire.C2BHello{UUID: bob}))
				p, _ := wire.Read(c, wire.B2C, 100)
				c.Close()
				if a, ok := p.(wire.B2CServerIsBusy); ok && a.IsBusy {
					break
				}
			}
		}
		cancel()
	}()
	err := Run(ctx, alice, []wire.BandwidthRequest{{From: alice, To: bob, Addr: addr}}, o, func(Result) {})
	require.Equal(t, errs.Canceled, errs.CodeOf(err))
	require.ErrorIs(t, err, context.Canceled)
	_, err = Measure(ctx, addr, alice, quick)
	require.Equal(t, errs.Canceled, errs.CodeOf(err))
	require.Equal(t, errs.Canceled, errs.CodeOf(Run(ctx, alice, []wire.BandwidthRequest{{From: alice}}, quick, nil)))
}

// What a server may answer wrongly.
func TestHostileAnswers(t *testing.T) {
	for name, answer := range map[string][]byte{
		"nothing": {}, "length 1": {0, 0, 0, 0, 0, 0, 0, 1, 0, 1}, "huge": bytes.Repeat([]byte{0xff}, 10),
		"short": {0, 0, 0, 0, 0, 0, 0, 2, 0, 1}, "http": []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			o := quick
			o.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					defer there.Close()
					_, _ = wire.Read(there, wire.C2B, 100)
					_, _ = there.Write(answer)
				}()
				return here, nil
			}
			_, err := Measure(context.Background(), netip.AddrPort{}, alice, o)
			require.Equal(t, errs.RankConnectionFailed, errs.CodeOf(err), "%v", err)
		})
	}
}

// A server that never answers, and one that never reads.
func TestSilentTarget(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	o := quick
	o.HandshakeTimeout = 10 * time.Millisecond
	_, err = Measure(context.Background(), ln.Addr().(*net.TCPAddr).AddrPort(), alice, o)
	require.Equal(t, errs.RankConnectionFailed, errs.CodeOf(err))

	o.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			_, _ = wire.Read(there, wire.C2B, 100)
			_, _ = there.Write(wire.Append(nil, wire.B2CServerIsBusy{}))
		}()
		return here, nil
	}
	o.HandshakeTimeout = 10 * time.Second
	_, err = Measure(context.Background(), netip.AddrPort{}, alice, o)
	require.ErrorIs(t, err, errs.Timeout)
}

// The handshake of a captured session of PCCL 1.0.0, byte for byte.
func TestReplayPCCL(t *testing.T) {
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	_, addr := serve(t, ServerConfig{})
	talk := func(request string) string {
		c, err := net.Dial("tcp4", addr.String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Write(unhex(request))
		require.NoError(t, err)
		b := make([]byte, 11)
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		return hex.EncodeToString(b)
	}
	require.Equal(t, "0000000000000003000100", talk("000000000000001200010bfcf133af594b1f86fb93bf49390f0c"))
	require.Equal(t, "0000000000000003000101", talk("0000000000000012000170c89dce262145469b78c79640d40f43"))
}

// Garbage is closed, silence and endless sending are bounded.
func TestServerBounds(t *testing.T) {
	var log bytes.Buffer
	s, addr := serve(t, ServerConfig{
		HelloTimeout: 20 * time.Millisecond, Bound: 30 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	requireClosed := func(c net.Conn) {
		t.Helper()
		require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	silent, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer silent.Close()
	requireClosed(silent)
	endless, busy := hello(t, addr, alice)
	require.False(t, busy)
	requireClosed(endless)
	web, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer web.Close()
	_, err = web.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	requireClosed(web)
	s.Close()
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())
	require.Contains(t, log.String(), web.LocalAddr().String())
}

func TestThousandSilentConnections(t *testing.T) {
	_, addr := serve(t, ServerConfig{})
	for range 1000 {
		c, err := net.Dial("tcp4", addr.String())
		require.NoError(t, err)
		defer c.Close()
	}
	e, err := Measure(context.Background(), addr, alice, quick)
	require.NoError(t, err)
	requireSane(t, e.Mbps)
}

func TestMaxConns(t *testing.T) {
	_, addr := serve(t, ServerConfig{MaxConns: 2})
	_, _ = hello(t, addr, alice)
	_, _ = hello(t, addr, alice)
	c, err := net.Dial("tcp4", addr.String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
}

func same(n int, mbps float64) (out []sample) {
	for range n {
		out = append(out, sample{mbps, 0.025})
	}
	return out
}

// What rises or is still noisy is not reported, what is steady is, with
// its standard error and without the samples before.
func TestSteady(t *testing.T) {
	_, ok := steady(same(minSamples-1, 100), 0)
	require.False(t, ok, "too few")
	_, ok = steady(same(20, 100), 30)
	require.False(t, ok, "fewer than asked for")
	_, ok = steady(same(40, 0), 0)
	require.False(t, ok, "nothing moves")
	var rising []sample
	for i := range 10 {
		rising = append(rising, sample{10 * float64(i+1), 0.025})
	}
	_, ok = steady(rising, 0)
	require.False(t, ok, "still rising") // S3-06
	e, ok := steady(append(rising, same(12, 200)...), 0)
	require.True(t, ok)
	require.InDelta(t, 200, e.Mbps, 1e-9)
	require.InDelta(t, 0, e.Deviation, 1e-9)
	var noisy []sample
	for i := range 40 {
		noisy = append(noisy, sample{100 + 20*float64(i%2), 0.025})
		e, ok = steady(noisy, 0)
		require.Equal(t, i+1 >= minSamples, ok, i)
	}
	require.InDelta(t, 110, e.Mbps, 1e-6)
	require.InDelta(t, 10/math.Sqrt(39), e.Deviation, 1e-6) // S3-06
	// A stall weighs as much as it lasted.
	require.InDelta(t, 50, mean([]sample{{0, 0.1}, {100, 0.1}}).Mbps, 1e-9)
	require.InDelta(t, 25, mean([]sample{{0, 0.3}, {100, 0.1}}).Mbps, 1e-9)
	require.Zero(t, mean(nil))
}

// paced takes as many bytes per write as the test's clock allows: a link of
// constant rate, whose buffers swallow the first 8 MiB at once.
type paced struct {
	net.Conn
	start time.Time
	taken float64
	plain bool // speak as a PCCL peer does
}

func (p *paced) Write(b []byte) (int, error) {
	const rate, buffer = 20e6, 8 << 20 // bytes per second, bytes
	if p.start.IsZero() {
		p.start = time.Now()
		if p.plain {
			_, err := p.Conn.Write(wire.Append(nil, wire.C2BHello{UUID: alice}))
			return len(b), err
		}
		return p.Conn.Write(b) // the hello
	}
	p.taken += float64(len(b))
	due := p.start.Add(time.Duration((p.taken - buffer) / rate * float64(time.Second)))
	<-time.After(time.Until(due))
	return p.Conn.Write(b)
}

// EarlyStop ends long before the duration and reports the rate of the link,
// not that of the buffers: that of a target that counts even where the buffers
// of the sender swallow more than is sent.
func TestEarlyStop(t *testing.T) {
	for _, counts := range []bool{true, false} {
		_, addr := serve(t, ServerConfig{})
		o := quick
		o.Connections, o.Duration, o.EarlyStop = 1, 20*time.Second, true
		o.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			c, err := dial(ctx, a)
			return &paced{Conn: c, plain: !counts}, err
		}
		e, err := Measure(context.Background(), addr, alice, o)
		require.NoError(t, err)
		requireSane(t, e.Mbps)
		require.Less(t, e.Took, o.Duration, "counts: %v", counts)
		require.Greater(t, e.Deviation, 0.0)
	}
}

// A probe that is ready holds its target, starts when it is told to and gives
// the target free.
func TestPrepareHoldsTheTarget(t *testing.T) {
	s, addr := serve(t, ServerConfig{})
	p, err := Prepare(context.Background(), addr, alice, quick)
	require.NoError(t, err)
	_, busy := hello(t, addr, bob)
	require.True(t, busy)
	begin := time.Now().Add(20 * time.Millisecond)
	e, err := p.Go(context.Background(), begin)
	require.NoError(t, err)
	requireSane(t, e.Mbps)
	require.GreaterOrEqual(t, e.Late, time.Duration(0), "nothing is sent before the start")
	require.Zero(t, s.running())
	p, err = Prepare(context.Background(), addr, bob, quick)
	require.NoError(t, err)
	p.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = p.Go(ctx, time.Now().Add(time.Hour))
	require.Equal(t, errs.Canceled, errs.CodeOf(err))
}

// Reports that cannot be true are not believed.
func TestLyingTarget(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = wire.Read(c, wire.C2B, 100)
				_, _ = c.Write(wire.Append(nil, wire.B2CServerIsBusy{Ext: wire.Ext{Topology: true}}))
				_, _ = c.Write(bytes.Repeat([]byte{0xff}, reportSize*3))
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	_, err = Measure(context.Background(), ln.Addr().(*net.TCPAddr).AddrPort(), alice, quick)
	require.ErrorIs(t, err, errs.Timeout)
}
