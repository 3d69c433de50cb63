package peer

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestMain(m *testing.M) {
	backend.Register("none", nothing{})
	goleak.VerifyTestMain(m)
}

// nothing is a backend without kernels: no test here moves an element.
type nothing struct{ backend.Backend }

func (nothing) Rank() int                     { return 0 }
func (nothing) Probe() error                  { return nil }
func (nothing) New() (backend.Backend, error) { return nothing{}, nil }
func (nothing) Name() string                  { return "none" }

// script is a master that does what the test says.
type script struct {
	t    *testing.T
	ln   net.Listener
	conn net.Conn
	peer net.Listener // the other member of the ring
	self wire.UUID
	far  net.Conn // the connection to that member

	ext   wire.Ext // of its answer
	hello wire.C2MRequestSessionRegistration
}

func newScript(t *testing.T) *script {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close(); peer.Close() })
	return &script{t: t, ln: ln, peer: peer, self: wire.UUID{1}, ext: wire.Ext{Native: true, Collectives: wire.CollectivesVersion}}
}

func (s *script) say(ps ...wire.Packet) {
	var b []byte
	for _, p := range ps {
		b = wire.Append(b, p)
	}
	_, err := s.conn.Write(b)
	require.NoError(s.t, err)
}

// hear returns the next packet that is not a heartbeat.
func hear[P wire.Packet](s *script) P {
	s.t.Helper()
	for {
		p, err := wire.Read(s.conn, wire.C2M, wire.MaxPacket)
		require.NoError(s.t, err)
		if _, beat := p.(wire.C2MHeartbeat); beat {
			continue
		}
		got, ok := p.(P)
		require.True(s.t, ok, "got %T", p)
		return got
	}
}

// welcome lets one session in and answers its hello as the other peer.
func (s *script) welcome(change ...func(*Options)) *Session {
	s.t.Helper()
	opt := Options{Master: s.ln.Addr().String(), PortBase: -1, Backend: "none"}
	for _, f := range change {
		f(&opt)
	}
	type joined struct {
		s   *Session
		err error
	}
	in := make(chan joined, 1)
	go func() {
		sess, err := Connect(context.Background(), opt)
		in <- joined{sess, err}
	}()
	var err error
	s.conn, err = s.ln.Accept()
	require.NoError(s.t, err)
	s.conn.SetDeadline(time.Now().Add(time.Minute))
	s.t.Cleanup(func() { s.conn.Close() })
	s.hello = hear[wire.C2MRequestSessionRegistration](s)
	other := wire.UUID{2}
	s.say(wire.M2CSessionRegistrationResponse{Accepted: true, UUID: s.self, Ext: s.ext},
		wire.M2CP2PConnectionInfo{
			GlobalWorldSize: 2, LocalWorldSize: 2, NumDistinctGroup: 1, LargestGroupSize: 2, Ext: wire.Ext{GroupNative: true},
			Peers: []wire.PeerEndpoint{{Addr: netip.MustParseAddrPort(s.peer.Addr().String()), UUID: other}},
		})
	s.far, err = s.peer.Accept()
	require.NoError(s.t, err)
	s.t.Cleanup(func() { s.far.Close() })
	_, err = wire.Read(s.far, wire.P2P, 1<<10)
	require.NoError(s.t, err)
	_, err = s.far.Write(wire.Append(nil, wire.P2PHelloAck{Ext: wire.Ext{Native: true}}))
	require.NoError(s.t, err)
	require.True(s.t, hear[wire.C2MP2PConnectionsEstablished](s).Success)
	s.say(wire.M2CP2PConnectionsEstablished{Success: true, Ring: []wire.UUID{s.self, other}})
	j := <-in
	require.NoError(s.t, j.err)
	s.t.Cleanup(func() { j.s.Close() })
	return j.s
}

// Answers of the master are matched by kind and tag, in any order that they come
// in and however many goroutines wait: none gets another one's.
func TestAnswersOutOfOrderFindTheirCalls(t *testing.T) {
	s := newScript(t)
	sess := s.welcome()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const ops = 12
	var wg sync.WaitGroup
	errsOf := make([]error, ops)
	for tag := range ops {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, errsOf[tag] = sess.AllReduce(ctx, Reduce{Tag: uint64(tag), DType: dtype.Float32, Op: dtype.Sum})
		}()
	}
	var asked bool
	var askErr error
	wg.Add(1)
	go func() {
		defer wg.Done()
		asked, askErr = sess.PeersPending(ctx)
	}()
	var tags []uint64
	for range ops + 1 {
		switch p := hear[wire.Packet](s).(type) {
		case wire.C2MCollectiveCommsInitiate:
			tags = append(tags, p.Tag)
		case wire.C2MCheckPeersPending:
		default:
			t.Fatalf("got %T", p)
		}
	}
	require.Len(t, tags, ops)
	rng := rand.New(rand.NewPCG(1, 2))
	shuffle := func() { rng.Shuffle(ops, func(i, j int) { tags[i], tags[j] = tags[j], tags[i] }) }
	shuffle()
	for i, tag := range tags {
		s.say(wire.M2CCollectiveCommsCommence{Tag: tag, SeqNr: uint64(i)})
	}
	var done []uint64
	for len(done) < ops {
		p := hear[wire.C2MCollectiveCommsComplete](s)
		require.False(t, p.WasAborted)
		done = append(done, p.Tag)
	}
	require.ElementsMatch(t, tags, done)
	shuffle()
	for i, tag := range tags {
		lost := tag%3 == 0 // these the others have aborted
		s.say(wire.M2CCollectiveCommsAbort{Tag: tag, Aborted: lost}, wire.M2CCollectiveCommsComplete{Tag: tag})
		if i == ops/2 {
			s.say(wire.M2CPeersPendingResponse{PeersPending: true})
		}
	}
	// The last one to be awaited takes part in the round that repairs the ring.
	hear[wire.C2MRequestEstablishP2PConnections](s)
	s.say(wire.M2CP2PConnectionInfo{Unchanged: true, GlobalWorldSize: 2, LocalWorldSize: 2, NumDistinctGroup: 1, LargestGroupSize: 2, Ext: wire.Ext{GroupNative: true}})
	hear[wire.C2MP2PConnectionsEstablished](s)
	s.say(wire.M2CP2PConnectionsEstablished{Success: true, Ring: []wire.UUID{s.self, {2}}})
	wg.Wait()
	for tag, err := range errsOf {
		if tag%3 == 0 {
			require.ErrorIs(t, err, errs.RankConnectionLost, "tag %d", tag) // S1-02, S4-18
		} else {
			require.NoError(t, err, "tag %d", tag)
		}
	}
	require.NoError(t, askErr)
	require.True(t, asked)
}
