package master

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestJoinReduceLeave(t *testing.T) {
	h := serve(t, Options{})
	var rs []*raw
	for range 3 {
		rs = h.grow(rs, wire.Ext{})
	}
	for tag := range uint64(5) {
		h.reduce(rs, tag)
	}
	s := h.s.Snapshot()
	require.Len(t, s.Clients, 3)
	require.Len(t, s.Groups[0].Ring, 3)
	require.EqualValues(t, 5, s.Collectives)
	rs[0].nc.Close()
	f := h.fact("left")
	require.Equal(t, rs[0].uuid, f.Peer)
	require.Equal(t, 2, f.World)
	require.Contains(t, f.Text, "closed by the peer")
}

// The verdict of an operation and its release leave in one write (quirk Q1):
// one read finds both.
func TestOneWritePerStep_Q1(t *testing.T) {
	h := serve(t, Options{})
	rs := h.grow(nil, wire.Ext{})
	r := rs[0]
	r.send(wire.C2MCollectiveCommsInitiate{Tag: 1})
	recv[wire.M2CCollectiveCommsCommence](r)
	r.send(wire.C2MCollectiveCommsComplete{Tag: 1})
	both := wire.Append(wire.Append(nil, wire.M2CCollectiveCommsAbort{Tag: 1}), wire.M2CCollectiveCommsComplete{Tag: 1})
	b := make([]byte, 1024)
	n, err := r.nc.Read(b)
	require.NoError(t, err)
	require.Equal(t, both, b[:n])
}

// Bytes that are not a packet cost the sender its connection and one log line with its
// address and the reason; the run of the others goes on.
func TestGarbage_Q3_Q73(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes []byte
		why   string
	}{
		"http":            {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "speaks HTTP"},
		"tls":             {[]byte("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"), "speaks TLS"},
		"ssh":             {[]byte("SSH-2.0-OpenSSH_9.2p1\r\n"), "speaks SSH"},
		"length 0":        {make([]byte, 8), "length field 0"},
		"length 1":        {[]byte{0, 0, 0, 0, 0, 0, 0, 1, 0}, "length field 1"},
		"huge length":     {[]byte{255, 255, 255, 255, 255, 255, 255, 255}, "above the limit"},
		"stranger's cap":  {binary.BigEndian.AppendUint64(nil, strangerLimit+1), "above the limit of 4096"},
		"unknown id":      {[]byte{0, 0, 0, 0, 0, 0, 0, 2, 0, 99}, "unknown packet"},
		"short body":      {[]byte{0, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0}, "too short"},
		"not registered":  {wire.Append(nil, wire.C2MCheckPeersPending{}), "before the registration"},
		"inflated list":   {append([]byte{0, 0, 0, 0, 0, 0, 0, 11, 0, 3, 0}, 255, 255, 255, 255, 255, 255, 255, 255), "too short"},
		"master's packet": {wire.Append(nil, wire.M2CNames{}), "unknown packet"},
	} {
		t.Run(name, func(t *testing.T) {
			var log lines
			h := serve(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			rs := h.grow(nil, wire.Ext{})
			bad := h.dial()
			_, err := bad.nc.Write(tc.bytes)
			require.NoError(t, err)
			bad.closed()
			f := h.fact("malformed", "kick")
			require.Equal(t, bad.nc.LocalAddr().String(), f.Remote.String())
			require.Contains(t, f.Text, tc.why)
			rs = h.grow(rs, wire.Ext{})
			h.reduce(rs, 1)
			named := 0
			require.True(t, h.s.lines.Flush(time.Minute))
			for _, l := range log.all() {
				if strings.Contains(l, bad.nc.LocalAddr().String()) {
					named++
					require.Contains(t, l, tc.why)
				}
			}
			require.Equal(t, 1, named, "log lines about the connection")
		})
	}
}

// A registered client that sends garbage is closed and the others go on.
func TestGarbageOfAMember(t *testing.T) {
	h := serve(t, Options{})
	var rs []*raw
	for range 3 {
		rs = h.grow(rs, wire.Ext{})
	}
	_, err := rs[0].nc.Write(bytes.Repeat([]byte{0xff}, 64))
	require.NoError(t, err)
	rs[0].closed()
	rs = rs[1:]
	for _, r := range rs {
		r.send(wire.C2MRequestEstablishP2PConnections{})
	}
	together(rs, func(r *raw) { require.Len(t, r.round(), 2) })
	h.reduce(rs, 7)
}

// A thousand silent connections neither hold up joins and reductions nor stay
// for ever (registration has a bound).
func TestThousandSilentConnections(t *testing.T) {
	h := serve(t, Options{RegisterTimeout: 2 * time.Second})
	rs := h.grow(nil, wire.Ext{})
	var silent []*raw
	for range 1000 {
		silent = append(silent, h.dial())
	}
	for range 2 {
		rs = h.grow(rs, wire.Ext{})
	}
	for tag := range uint64(10) {
		h.reduce(rs, tag)
	}
	for _, s := range silent {
		s.closed()
	}
	h.reduce(rs, 99)
	require.Zero(t, h.s.Snapshot().Unregistered)
}

// With all places taken by silent connections, a client that registers gets one:
// the oldest silent connection has to leave. Members stay.
func TestPlacesAreTakenFromTheSilent(t *testing.T) {
	h := serve(t, Options{MaxConnections: 8})
	rs := h.grow(nil, wire.Ext{})
	stop := make(chan struct{})
	var crowd sync.WaitGroup
	for range 8 {
		crowd.Add(1)
		go func() { // comes back whenever it is closed
			defer crowd.Done()
			for {
				nc, err := net.Dial("tcp", h.addr)
				if err == nil {
					closed := make(chan struct{})
					go func() {
						nc.Read(make([]byte, 1))
						close(closed)
					}()
					select {
					case <-closed:
					case <-stop:
					}
					nc.Close()
					<-closed
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	for h.s.Snapshot().Unregistered < 7 {
		h.reduce(rs, 1)
	}
	for range 3 {
		rs = h.grow(rs, wire.Ext{})
	}
	h.reduce(rs, 2)
	close(stop)
	crowd.Wait()
}

// Members never have to leave: with no others there, the newest is refused.
func TestPlacesOfMembers(t *testing.T) {
	h := serve(t, Options{MaxConnections: 2})
	rs := h.grow(h.grow(nil, wire.Ext{}), wire.Ext{})
	h.dial().closed()
	h.reduce(rs, 1)
}

// Packets may arrive byte by byte, several packets in one piece (quirk Q2).
func TestHalfPackets_Q2(t *testing.T) {
	h := serve(t, Options{})
	r := h.dial()
	for _, b := range wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: 1}) {
		_, err := r.nc.Write([]byte{b})
		require.NoError(t, err)
	}
	require.True(t, recv[wire.M2CSessionRegistrationResponse](r).Accepted)
	r.round()
	r.send(wire.C2MCheckPeersPending{}, wire.C2MCollectiveCommsInitiate{Tag: 1}, wire.C2MCollectiveCommsInitiate{Tag: 2})
	require.False(t, recv[wire.M2CPeersPendingResponse](r).PeersPending)
	require.EqualValues(t, 1, recv[wire.M2CCollectiveCommsCommence](r).Tag)
	require.EqualValues(t, 2, recv[wire.M2CCollectiveCommsCommence](r).Tag)
}

// A client that does not read holds up no other client and is dropped when too much
// waits for it.
func TestSlowReader(t *testing.T) {
	h := serve(t, Options{MaxQueue: 256 << 10})
	var rs []*raw
	for range 2 {
		rs = h.grow(rs, wire.Ext{})
	}
	deaf, good := rs[0], rs[1]
	require.NoError(t, deaf.nc.(*net.TCPConn).SetReadBuffer(4096))
	// Each vote of the deaf one asks for an answer with a long key that it
	// never reads, as the requester of every synchronisation.
	key := strings.Repeat("k", 1<<20)
	dropped := make(chan struct{})
	go func() {
		defer close(dropped)
		h.fact("left")
	}()
	for rev := uint64(0); ; rev++ {
		select {
		case <-dropped:
			good.send(wire.C2MRequestEstablishP2PConnections{})
			require.Len(t, good.round(), 1)
			return
		default:
		}
		entry := func(hash uint64) wire.C2MSyncSharedState {
			return wire.C2MSyncSharedState{Revision: rev, Strategy: wire.SendOnly, Entries: []wire.StateEntry{{Key: key, Hash: hash}}}
		}
		v := entry(1)
		v.Strategy = wire.ReceiveOnly
		// Once dropped, writing fails; the good one then goes on alone.
		if _, err := deaf.nc.Write(wire.Append(nil, v)); err != nil {
			<-dropped
			continue
		}
		good.send(entry(2))
		require.False(t, recv[wire.M2CSyncSharedState](good).IsOutdated)
		good.send(wire.C2MDistSharedStateComplete{})
		deaf.nc.Write(wire.Append(nil, wire.C2MDistSharedStateComplete{}))
		recv[wire.M2CSyncSharedStateComplete](good)
	}
}

// A gopccl peer that falls silent is dropped and named; the others learn who
// and why, the verdict of the running operation follows.
func TestSilentPeerIsDropped(t *testing.T) {
	h := serve(t, Options{HeartbeatInterval: 100 * time.Millisecond, HeartbeatTimeout: 2 * time.Second})
	var rs []*raw
	beating := make(chan struct{})
	defer close(beating)
	beat := func(r *raw) {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.nc.Write(wire.Append(nil, wire.C2MHeartbeat{}))
			case <-beating:
				return
			}
		}
	}
	for i := range 3 {
		rs = h.grow(rs, nativeExt)
		if i > 0 {
			go beat(rs[i])
		} else {
			rs[0].send(wire.C2MHeartbeat{})
		}
	}
	for _, r := range rs {
		r.send(wire.C2MCollectiveCommsInitiate{Tag: 1})
	}
	for _, r := range rs[1:] {
		recv[wire.M2CCollectiveCommsCommence](r)
		d := recv[wire.M2CPeerDropped](r)
		require.Equal(t, rs[0].uuid, d.UUID)
		require.Contains(t, d.Reason, "silent")
		a := recv[wire.M2CCollectiveCommsAbort](r)
		require.True(t, a.Aborted)
		require.Contains(t, a.Reason, rs[0].uuid.Short())
	}
	rs[0].closed()
	require.Equal(t, rs[0].uuid, h.fact("dropped").Peer)
}

// A big packet that trickles in is not silence.
func TestSlowLinkIsNotSilence(t *testing.T) {
	h := serve(t, Options{HeartbeatInterval: 100 * time.Millisecond, HeartbeatTimeout: 2 * time.Second})
	r := h.grow(nil, nativeExt)[0]
	vote := wire.Append(nil, wire.C2MSyncSharedState{Entries: []wire.StateEntry{{Key: strings.Repeat("k", 1<<16)}}})
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for step := len(vote)/40 + 1; len(vote) > 0; vote = vote[min(step, len(vote)):] {
		_, err := r.nc.Write(vote[:min(step, len(vote))])
		require.NoError(t, err)
		<-tick.C
	}
	require.False(t, recv[wire.M2CSyncSharedState](r).IsOutdated)
}

// script is a solver that answers with what the test put in.
type script struct {
	name  string
	ring  []int
	panic bool
}

func (f script) Name() string { return f.name }

func (f script) Solve(_ context.Context, p topo.Problem, _ func(topo.Solution)) (topo.Solution, error) {
	if f.panic {
		panic("out of cheese")
	}
	b, sum, _ := p.Matrix.Value(f.ring)
	return topo.Solution{Ring: f.ring, Bottleneck: b, Sum: sum}, nil
}

func init() {
	topo.Register(script{name: "test reverse", ring: []int{2, 1, 0}})
	topo.Register(script{name: "test panic", panic: true})
	topo.Register(script{name: "test nonsense", ring: []int{0, 7, 1}})
}

// The solver's ring is that of the next round; a solver that fails costs nothing.
func TestSolver(t *testing.T) {
	for _, name := range []string{"test reverse", "test panic", "test nonsense"} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, Options{Solver: name})
			var rs []*raw
			for range 3 {
				rs = h.grow(rs, wire.Ext{})
			}
			ring := h.s.Snapshot().Groups[0].Ring
			together(rs, func(r *raw) {
				r.send(wire.C2MOptimizeTopology{})
				for _, q := range recv[wire.M2COptimizeTopologyResponse](r).Requests {
					from, to := slices.Index(ring, q.From), slices.Index(ring, q.To)
					mbps := 10.0
					if (from+2)%3 == to {
						mbps = 1000 // against the sense of the sorted ring
					}
					r.send(wire.C2MReportPeerBandwidth{To: q.To, Mbps: mbps})
				}
				r.send(wire.C2MOptimizeTopologyWorkComplete{})
				recv[wire.M2COptimizeTopologyComplete](r)
				r.send(wire.C2MRequestEstablishP2PConnections{})
			})
			expect := slices.Clone(ring)
			if name == "test reverse" {
				slices.Reverse(expect)
			}
			together(rs, func(r *raw) { require.Equal(t, expect, r.round()) }) // S1-20
		})
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"solver":    {Solver: "tarot"},
		"budget":    {SolverBudget: time.Minute},
		"objective": {Objective: "beauty"},
		"timeout":   {HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 6 * time.Second},
	} {
		_, err := New(o)
		require.ErrorIs(t, err, errs.InvalidConfig, name)
	}
	_, err := New(Options{Solver: "none", HeartbeatInterval: -1, RegisterTimeout: -1})
	require.NoError(t, err)
}

func TestServeOnceAndClose(t *testing.T) {
	s, err := New(Options{})
	require.NoError(t, err)
	require.Nil(t, s.Addr())
	require.Empty(t, s.Snapshot().Clients)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { ended <- s.Serve(ctx, ln) }()
	nc, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, s.Close())
	require.Empty(t, s.Snapshot().Clients)
	require.ErrorIs(t, s.ListenAndServe(context.Background(), "127.0.0.1:0"), errs.InvalidUsage)
}

func TestListenerTakenAway(t *testing.T) {
	s, err := New(Options{})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln.Close()
	require.ErrorIs(t, s.Serve(context.Background(), ln), errs.InvalidUsage)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	s, err = New(Options{})
	require.NoError(t, err)
	err = s.ListenAndServe(context.Background(), taken.Addr().String())
	var e *errs.Error
	require.True(t, errors.As(err, &e))
	require.Equal(t, errs.InvalidUsage, e.Code)
}

func TestUUIDsAreVersion4(t *testing.T) {
	for range 100 {
		u := newUUID()
		require.EqualValues(t, 4, u[6]>>4)
		require.EqualValues(t, 2, u[8]>>6)
	}
	require.NotEqual(t, newUUID(), newUUID())
}

// The queue of a client holds what was added in order, whatever the writer does.
func TestQueue(t *testing.T) {
	nc, other := net.Pipe()
	defer nc.Close()
	defer other.Close()
	q := queue{ready: make(chan struct{}, 1)}
	var got, buf []byte
	var sent []byte
	for i := range uint64(1000) {
		p := wire.M2CCollectiveCommsComplete{Tag: i * math.MaxUint32}
		require.True(t, q.add(p, 1<<20))
		sent = wire.Append(sent, p)
		if i%7 == 0 {
			buf, _, _ = q.take(buf)
			got = append(got, buf...)
		}
	}
	q.finish(nc)
	buf, last, _ := q.take(buf)
	require.True(t, last)
	require.Equal(t, sent, append(got, buf...))
	require.True(t, q.add(wire.M2CHeartbeat{}, 0))
	require.False(t, q.add(wire.M2CHeartbeat{}, 0))
}

// The master sees votes and hashes, never a tensor: the bytes that it reads and writes
// for an operation or a synchronisation does not depend on the size of the
// data, and nothing of a synchronisation stays.
func TestTrafficIsIndependentOfTensorSize(t *testing.T) {
	sizes := map[int]bool{}
	for _, n := range []uint64{1, 1 << 20, 1 << 40} {
		sizes[len(wire.Append(nil, wire.C2MCollectiveCommsInitiate{Count: n}))] = true
		sizes[len(wire.Append(nil, wire.C2MCollectiveCommsInitiate{Count: n * 3}))] = true
	}
	require.Len(t, sizes, 1)

	h := serve(t, Options{})
	rs := h.grow(h.grow(nil, wire.Ext{}), wire.Ext{})
	for rev := range uint64(3) {
		for i, r := range rs {
			r.send(wire.C2MSyncSharedState{Revision: rev, Entries: []wire.StateEntry{{Key: "weights", Hash: uint64(i)}}})
		}
		together(rs, func(r *raw) {
			p := recv[wire.M2CSyncSharedState](r)
			require.LessOrEqual(t, len(wire.Append(nil, p)), 64) // S1-13, S2-10
			r.send(wire.C2MDistSharedStateComplete{})
			recv[wire.M2CSyncSharedStateComplete](r)
		})
	}
}
