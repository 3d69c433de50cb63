package e2e

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// relay forwards TCP connections to one address until it is cut: then both
// ends stay open and nothing arrives any more, as when a cable is pulled.
type relay struct {
	ln  net.Listener
	to  string
	cut chan struct{}
	bps int // bytes a second in each direction of each connection, 0: no limit
}

// newRelay relays to an address, dialling from the local address from.
func newRelay(t *testing.T, to, from string, cut chan struct{}, bps int) *relay {
	return newRelayAt(t, "127.0.0.1:0", to, from, cut, bps)
}

// newRelayAt is newRelay that listens at an address.
func newRelayAt(t *testing.T, at, to, from string, cut chan struct{}, bps int) *relay {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	ln, err := net.Listen("tcp", at)
	require.NoError(t, err)
	r := &relay{ln: ln, to: to, cut: cut, bps: bps}
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
	})
	go func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := dialer.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			mu.Lock()
			open = append(open, a, b)
			mu.Unlock()
			go r.pump(a, b)
			go r.pump(b, a)
		}
	}()
	return r
}

func (r *relay) pump(dst, src net.Conn) {
	size := 64 << 10
	if r.bps > 0 {
		// What waits in the relay is as little as on a slow wire.
		size = 4 << 10
		src.(*net.TCPConn).SetReadBuffer(size)
	}
	buf := make([]byte, size)
	for {
		n, err := src.Read(buf)
		select {
		case <-r.cut:
			return // swallow, and close nothing
		default:
		}
		if r.bps > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(r.bps))
		}
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				dst.(*net.TCPConn).CloseWrite()
			}
			return
		}
	}
}

func (r *relay) addr() string { return r.ln.Addr().String() }

// farWorld is a master and three peers in this process; everything from and to
// the last peer, its master connection included, goes through relays.
type farWorld struct {
	comms []*core.Communicator
	cut   chan struct{} // close it to cut the last peer's links
	close func()
}

func newFarWorld(t *testing.T, ctx context.Context, mo core.MasterOptions, po core.Options, bps int) *farWorld {
	mo.Listen, mo.Logger = "127.0.0.1:0", childLogger(63)
	m, err := newMaster(mo)
	require.NoError(t, err)
	ended := make(chan error, 1)
	mctx, stop := context.WithCancel(ctx)
	go func() { ended <- m.Run(mctx) }()
	w := &farWorld{cut: make(chan struct{})}
	// The master knows the far peer by an address of its own, so that its
	// neighbours' dials to it can be told from others.
	const farHost = "127.0.0.7"
	toMaster := newRelay(t, m.Addr().String(), farHost, w.cut, bps)
	var mu sync.Mutex
	relays := map[string]*relay{}
	dial := func(far bool) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, _, _ := net.SplitHostPort(addr)
			if addr != toMaster.addr() && (far || host == farHost) {
				mu.Lock()
				if relays[addr] == nil {
					relays[addr] = newRelay(t, addr, "127.0.0.1", w.cut, bps)
				}
				addr = relays[addr].addr()
				mu.Unlock()
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	}
	connect := func(id int) *core.Communicator {
		opt := po
		opt.Master, opt.PortBase, opt.Logger = m.Addr().String(), -1, childLogger(id)
		opt.Dial = dial(id == 2)
		if id == 2 {
			opt.Master = toMaster.addr()
		}
		comm, err := connect(ctx, opt)
		require.NoError(t, err)
		return comm
	}
	w.comms = append(w.comms, connect(0))
	for id := 1; id < 3; id++ {
		// Those who are in admit the newcomer.
		joined := make(chan *core.Communicator, 1)
		go func() { joined <- connect(id) }()
		for in := false; !in; {
			pending := make([]bool, len(w.comms))
			each(w.comms, func(i int, c *core.Communicator) error {
				p, err := c.PeersPending(ctx)
				if pending[i] = p; p {
					return c.UpdateTopology(ctx)
				}
				return err
			})
			in = pending[0] || ctx.Err() != nil
		}
		w.comms = append(w.comms, <-joined)
	}
	w.close = func() {
		for _, c := range w.comms {
			require.NoError(t, c.Close())
		}
		stop()
		<-ended
		require.NoError(t, m.Close())
	}
	return w
}

// A peer whose links are cut without a FIN: the survivors abort, drop and go
// on; the cut side learns it, too (PCCL: after 70 s).
func TestCutLink(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	opt := core.Options{}
	opt.ReattachTimeout = time.Second // nothing leads back to the master
	w := newFarWorld(t, ctx, core.MasterOptions{}, opt, 0)
	reduce := func(_ int, c *core.Communicator) error {
		data := make([]float32, 1<<16)
		_, err := core.AllReduceSlice(ctx, c, data, data, core.Sum)
		return err
	}
	for _, err := range each(w.comms, reduce) {
		require.NoError(t, err)
	}
	close(w.cut)
	began := time.Now()
	out := each(w.comms, reduce)
	t.Logf("all three ends knew after %v: %v", time.Since(began), out)
	for _, err := range out[:2] {
		require.ErrorIs(t, err, errs.RankConnectionLost) // S0-24, S2-14
	}
	require.Error(t, out[2])
	for _, err := range each(w.comms[:2], reduce) {
		require.NoError(t, err, "the survivors go on")
	}
	require.Equal(t, 2, w.comms[0].Attributes().LocalWorldSize)
	w.close()
}

// A peer on a slow link is not a dead peer: an operation that takes several
// times as long as the heartbeat timeout completes.
func TestSlowLinkIsNotDeath(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const interval, timeout = 300 * time.Millisecond, 3 * time.Second
	w := newFarWorld(t, ctx,
		core.MasterOptions{HeartbeatInterval: interval, HeartbeatTimeout: timeout},
		core.Options{HeartbeatInterval: interval, HeartbeatTimeout: timeout, UserTimeout: timeout}, 100_000)
	began := time.Now()
	for _, err := range each(w.comms, func(_ int, c *core.Communicator) error {
		data := make([]float32, 80_000)
		_, err := core.AllReduceSlice(ctx, c, data, data, core.Sum)
		return err
	}) {
		require.NoError(t, err)
	}
	t.Logf("the operation took %v, a silent peer is dropped after %v", time.Since(began), timeout)
	w.close()
}
