package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv(alone) != "" {
		runAlone()
		return
	}
	goleak.VerifyTestMain(m)
}

// alone is set in the environment of a process that is nothing but a master.
const alone = "GOPCCL_TEST_MASTER_ALONE"

// runAlone runs a master until standard input ends. It prints its address.
func runAlone() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s, err := New(Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(ln.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		s.Close()
	}()
	if err := s.Serve(context.Background(), ln); err != nil {
		panic(err)
	}
}

// harness is a running server and what it said.
type harness struct {
	t     testing.TB
	s     *Server
	addr  string
	facts chan fsm.Fact
}

func serve(t testing.TB, opt Options) *harness {
	h := &harness{t: t, facts: make(chan fsm.Fact, 1<<14)}
	opt.OnFact = func(f fsm.Fact) { h.facts <- f }
	s, err := New(opt)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.s, h.addr = s, ln.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, <-ended)
	})
	return h
}

// fact waits for a fact of one of the kinds.
func (h *harness) fact(kinds ...string) fsm.Fact {
	h.t.Helper()
	bound := time.After(20 * time.Second)
	for {
		select {
		case f := <-h.facts:
			for _, k := range kinds {
				if f.Kind == k {
					return f
				}
			}
		case <-bound:
			h.t.Fatalf("no fact of kind %v", kinds)
		}
	}
}

// raw is a client that speaks packets and knows no rules.
type raw struct {
	t    testing.TB
	nc   net.Conn
	uuid wire.UUID
}

func (h *harness) dial() *raw {
	nc, err := net.Dial("tcp", h.addr)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	return &raw{t: h.t, nc: nc}
}

func (r *raw) send(ps ...wire.Packet) {
	var b []byte
	for _, p := range ps {
		b = wire.Append(b, p)
	}
	_, err := r.nc.Write(b)
	require.NoError(r.t, err)
}

// recv returns the next packet that is not a heartbeat.
func recv[P wire.Packet](r *raw) P {
	r.t.Helper()
	for {
		p, err := wire.Read(r.nc, wire.M2C, wire.MaxPacket)
		require.NoError(r.t, err)
		if _, beat := p.(wire.M2CHeartbeat); beat {
			continue
		}
		got, ok := p.(P)
		require.True(r.t, ok, "got %T %+v", p, p)
		return got
	}
}

// closed requires that the master closes the connection.
func (r *raw) closed() {
	r.t.Helper()
	for {
		_, err := wire.Read(r.nc, wire.M2C, wire.MaxPacket)
		if err != nil {
			var ne net.Error
			require.False(r.t, errors.As(err, &ne) && ne.Timeout(), "the connection stayed open")
			return
		}
	}
}

func (h *harness) register(ext wire.Ext) *raw {
	r := h.dial()
	r.send(wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: ext})
	resp := recv[wire.M2CSessionRegistrationResponse](r)
	require.True(h.t, resp.Accepted)
	r.uuid = resp.UUID
	return r
}

// together runs f for every client at once.
func together(rs []*raw, f func(*raw)) {
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f(r)
		}()
	}
	wg.Wait()
}

func (r *raw) round() []wire.UUID {
	recv[wire.M2CP2PConnectionInfo](r)
	r.send(wire.C2MP2PConnectionsEstablished{Success: true})
	p := recv[wire.M2CP2PConnectionsEstablished](r)
	require.True(r.t, p.Success)
	return p.Ring
}

// grow lets one more client join rs.
func (h *harness) grow(rs []*raw, ext wire.Ext) []*raw {
	r := h.register(ext)
	for _, o := range rs {
		o.send(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
	}
	rs = append(rs, r)
	together(rs, func(r *raw) { r.round() })
	return rs
}

func (h *harness) reduce(rs []*raw, tag uint64) {
	together(rs, func(r *raw) {
		r.send(wire.C2MCollectiveCommsInitiate{Tag: tag, Count: 1, DType: dtype.Float32, Op: dtype.Sum})
		recv[wire.M2CCollectiveCommsCommence](r)
		r.send(wire.C2MCollectiveCommsComplete{Tag: tag})
		require.False(r.t, recv[wire.M2CCollectiveCommsAbort](r).Aborted)
		recv[wire.M2CCollectiveCommsComplete](r)
	})
}

var nativeExt = wire.Ext{Native: true, HeartbeatInterval: time.Second, HeartbeatTimeout: 3 * time.Second}

// lines collects log lines.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}
