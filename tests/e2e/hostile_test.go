package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// garbage is what strangers send to an open port.
var garbage = map[string][]byte{
	"http":        []byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n"),
	"tls":         {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3},
	"zero length": {0, 0, 0, 0, 0, 0, 0, 0},
	"length one":  {0, 0, 0, 0, 0, 0, 0, 1, 0},
	"huge length": {0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 1},
	"unknown id":  {0, 0, 0, 0, 0, 0, 0, 2, 0xff, 0xff},
	"short body":  {0, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0},
	"wild number": wire.Append(nil, wire.P2PHello{UUID: wire.UUID{1}, Number: 0xffffffff}),
	"hole":        wire.Append(nil, wire.P2PHello{UUID: wire.UUID{1}, Number: 5}),
	"huge count": append(wire.Append(nil, wire.C2SRequestSharedState{})[:10],
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
	"silence": {},
}

// joinAt connects a peer whose ports are searched from base on.
func joinAt(ctx context.Context, master string, base int) (*core.Communicator, error) {
	opt := core.Options{}
	opt.Master, opt.PortBase, opt.ListenHost = master, base, "127.0.0.1"
	return connect(ctx, opt)
}

// grow lets another peer in, and returns all.
func grow(t *testing.T, ctx context.Context, master string, base int, comms []*core.Communicator) []*core.Communicator {
	type joined struct {
		c   *core.Communicator
		err error
	}
	in := make(chan joined, 1)
	go func() { c, err := joinAt(ctx, master, base); in <- joined{c, err} }()
	for admitted := len(comms) == 0; !admitted; {
		var wg sync.WaitGroup
		pending := make([]bool, len(comms))
		for i, c := range comms {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if pending[i], _ = c.PeersPending(ctx); pending[i] {
					c.UpdateTopology(ctx)
				}
			}()
		}
		wg.Wait()
		admitted = pending[0] || ctx.Err() != nil
	}
	j := <-in
	require.NoError(t, j.err)
	return append(comms, j.c)
}

// reduceAmong makes an all-reduce of all and checks the sums.
func reduceAmong(t *testing.T, ctx context.Context, comms []*core.Communicator) {
	var wg sync.WaitGroup
	out := make([]error, len(comms))
	for i, c := range comms {
		wg.Add(1)
		go func() {
			defer wg.Done()
			data := []int64{1, 2, 3, 4, 5}
			_, out[i] = core.AllReduceSlice(ctx, c, data, data, core.Sum)
			if out[i] == nil && data[4] != int64(5*len(comms)) {
				out[i] = fmt.Errorf("sum is %v", data)
			}
		}()
	}
	wg.Wait()
	for _, err := range out {
		require.NoError(t, err)
	}
}

// Strangers hold connections to every port of the master and of the peers,
// silent ones and ones with garbage, a thousand to the master: the run goes
// on, joins included, while they are open.
func TestStrangersDoNoHarm(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	mctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(mctx) }()
	const base = 23000
	at := m.Addr().String()
	comms := grow(t, ctx, at, base, grow(t, ctx, at, base, nil))
	reduceAmong(t, ctx, comms)

	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	bother := func(addr string, bytes []byte) bool {
		c, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			return false
		}
		c.Write(bytes)
		open = append(open, c)
		return true
	}
	for range 1000 {
		require.True(t, bother(at, nil))
	}
	ports := 0
	for name, bytes := range garbage {
		require.True(t, bother(at, bytes), name)
	}
	for port := base; port < base+80; port++ {
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if !bother(addr, nil) {
			continue
		}
		ports++
		for _, bytes := range garbage {
			bother(addr, bytes)
		}
		for range 100 {
			bother(addr, nil)
		}
	}
	require.GreaterOrEqual(t, ports, 2, "the port of each peer was found")
	reduceAmong(t, ctx, comms)
	comms = grow(t, ctx, at, base, comms)
	reduceAmong(t, ctx, comms)
	for _, c := range comms {
		require.NoError(t, c.Close())
	}
	stop()
	<-ended
	require.NoError(t, m.Close())
}

// Strangers say hello with the uuids of the neighbours, which the master tells
// anybody: the connections of the neighbours keep their places, and no operation
// fails. A newcomer's round, in which places are given again, goes on as well.
func TestNamesakesTakeNoPlace(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master := localMaster(t)
	var mu sync.Mutex
	ports := map[string]bool{}
	comms := world(t, ctx, master, 3, func(_ int, o *core.Options) {
		o.PoolSize = 2
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			ports[addr] = addr != master
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	stop, done := make(chan struct{}), make(chan struct{})
	var said atomic.Int64
	go func() {
		defer close(done)
		for {
			var open []net.Conn
			mu.Lock()
			at := maps.Clone(ports)
			mu.Unlock()
			for addr, p2p := range at {
				for _, u := range comms[0].Attributes().Ring {
					for i := range 4 {
						c, err := net.Dial("tcp", addr)
						if !p2p || err != nil {
							continue
						}
						open = append(open, c)
						hello := wire.P2PHello{UUID: wire.UUID(u), Number: uint32(i % 2)}
						if i < 2 {
							hello.Ext = wire.Ext{Native: true, Flows: wire.FlowsAhead}
						}
						c.Write(wire.Append(nil, hello))
						said.Add(1)
					}
				}
			}
			for _, c := range open {
				c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				c.Read(make([]byte, 1))
				defer c.Close()
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	defer func() { <-done }()
	defer close(stop)
	for begun := said.Load(); said.Load() < begun+200; {
		for _, err := range each(comms, func(_ int, c *core.Communicator) error {
			data := make([]int64, 4096)
			data[4095] = 1
			_, err := core.AllReduceSlice(ctx, c, data, data, core.Sum)
			if err == nil && data[4095] != 3 {
				err = fmt.Errorf("the sum is %d", data[4095])
			}
			return err
		}) {
			require.NoError(t, err)
		}
	}
	for _, err := range each(comms, func(_ int, c *core.Communicator) error { return c.UpdateTopology(ctx) }) {
		require.NoError(t, err)
	}
	require.Len(t, comms[0].Attributes().Ring, 3)
}

// However often somebody says nonsense, the log has one line of a kind about it.
func TestStrangersDoNotFillTheLog(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	log, ports := &lockedLog{}, freePorts(t)[:1]
	c, err := connect(ctx, core.Options{Master: localMaster(t), ListenHost: "127.0.0.1", Ports: ports, Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	uuid := wire.UUID{1}
	longKey := wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"w"}})
	longKey[len(longKey)-2] = 0xff // the key is longer than the packet
	at := fmt.Sprintf("127.0.0.1:%d", ports[0])
	for _, n := range []struct {
		purpose secure.Purpose // zero: in plaintext in every run
		said    []byte
	}{
		{secure.Data, wire.Append(nil, wire.P2PHello{UUID: uuid, Number: 1 << 20})},
		{secure.State, longKey},
		{secure.Bench, wire.Append(nil, wire.C2BHello{UUID: uuid})},
		{0, []byte("GET / HTTP/1.1\r\n")},
	} {
		for range 30 {
			dial := func() (net.Conn, error) { return issued.Dial(at, n.purpose) }
			if n.purpose == 0 {
				dial = func() (net.Conn, error) { return net.Dial("tcp", at) }
			}
			conn, err := dial()
			require.NoError(t, err)
			// In TLS it may be refused by now.
			if _, err = conn.Write(n.said); err == nil {
				err = conn.(interface{ CloseWrite() error }).CloseWrite()
			}
			require.True(t, err == nil || issued.On(), "%v", err)
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
	}
	require.NoError(t, c.Close())
	if issued.On() {
		log.has(t, "above 1023", "does not speak TLS", "it gets no shared state")
	} else {
		log.has(t, "above 1023", "it speaks HTTP", "not a request for shared state")
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	require.LessOrEqual(t, strings.Count(log.buf.String(), "level=WARN"), 4, "%s", &log.buf)
}
