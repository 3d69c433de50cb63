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
}

// newRelay relays to an address, dialling from the local address from.
func newRelay(t *testing.T, to, from string, cut chan struct{}) *relay {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{ln: ln, to: to, cut: cut}
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
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		select {
		case <-r.cut:
			return // swallow, and close nothing
		default:
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

// A peer whose links are cut without a FIN: the survivors abort, drop and go
// on; the cut side learns it, too (PCCL: after 70 s). S0-24, S2-14
func TestCutLink(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", Logger: childLogger(63)})
	require.NoError(t, err)
	ended := make(chan error, 1)
	mctx, stop := context.WithCancel(ctx)
	go func() { ended <- m.Run(mctx) }()
	cut := make(chan struct{})
	// The master knows the cut peer by an address of its own, so that its
	// neighbours' dials to it can be told from others.
	const cutHost = "127.0.0.7"
	toMaster := newRelay(t, m.Addr().String(), cutHost, cut)

	// Every dial from or to the cut peer goes through a relay of its own.
	var mu sync.Mutex
	relays := map[string]*relay{}
	through := func(cutPeer bool, isCut func(addr string) bool) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != toMaster.addr() && (cutPeer || isCut(addr)) {
				mu.Lock()
				if relays[addr] == nil {
					relays[addr] = newRelay(t, addr, "127.0.0.1", cut)
				}
				addr = relays[addr].addr()
				mu.Unlock()
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	}
	isCut := func(addr string) bool { h, _, _ := net.SplitHostPort(addr); return h == cutHost }
	connect := func(id int) *core.Communicator {
		opt := core.Options{}
		opt.Master, opt.PortBase, opt.Logger = m.Addr().String(), -1, childLogger(id)
		opt.Dial = through(id == 2, isCut)
		if id == 2 {
			opt.Master = toMaster.addr()
		}
		comm, err := core.Connect(ctx, opt)
		require.NoError(t, err)
		return comm
	}
	var comms []*core.Communicator
	for id := range 3 {
		if id == 0 {
			comms = append(comms, connect(id))
			continue
		}
		// Those who are in admit the newcomer.
		joined := make(chan *core.Communicator, 1)
		go func() { joined <- connect(id) }()
		for in := false; !in; {
			var wg sync.WaitGroup
			pend := make([]bool, len(comms))
			for i, c := range comms {
				wg.Add(1)
				go func() {
					defer wg.Done()
					pend[i], _ = c.PeersPending(ctx)
					if pend[i] {
						c.UpdateTopology(ctx)
					}
				}()
			}
			wg.Wait()
			if in = pend[0]; in {
				comms = append(comms, <-joined)
			}
		}
	}
	reduce := func(c *core.Communicator) error {
		data := make([]float32, 1<<16)
		_, err := core.AllReduceSlice(ctx, c, data, data, core.Sum)
		return err
	}
	each := func(cs []*core.Communicator) []error {
		out := make([]error, len(cs))
		var wg sync.WaitGroup
		for i, c := range cs {
			wg.Add(1)
			go func() { defer wg.Done(); out[i] = reduce(c) }()
		}
		wg.Wait()
		return out
	}
	for _, err := range each(comms) {
		require.NoError(t, err)
	}
	close(cut)
	began := time.Now()
	out := each(comms)
	t.Logf("all three ends knew after %v: %v", time.Since(began), out)
	for _, err := range out[:2] {
		require.ErrorIs(t, err, errs.RankConnectionLost)
	}
	require.Error(t, out[2])
	for _, err := range each(comms[:2]) {
		require.NoError(t, err, "the survivors go on")
	}
	require.Equal(t, 2, comms[0].Attributes().LocalWorldSize)
	for _, c := range comms {
		require.NoError(t, c.Close())
	}
	stop()
	<-ended
	require.NoError(t, m.Close())
}
