package peer

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// A panic of a listener ends the session and nothing else: its
// operation returns an internal error, and the process goes on.
func TestPanicInAListener(t *testing.T) {
	s := newScript(t)
	sess := s.welcome(func(o *Options) {
		o.WarnStuckAfter = time.Millisecond
		o.Trace = &trace.Listener{Stuck: func(uint64, uint64, time.Duration, string) { panic("barked") }}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	v := make([]byte, 64)
	h, err := sess.AllReduceAsync(ctx, Reduce{Tag: 1, Src: v, Dst: v, DType: dtype.Float32, Op: dtype.Sum})
	require.NoError(t, err)
	hear[wire.C2MCollectiveCommsInitiate](s)
	s.say(wire.M2CCollectiveCommsCommence{Tag: 1, SeqNr: 1}) // the other one never sends anything
	_, err = h.Wait(ctx)
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorContains(t, err, "barked")
	require.NoError(t, sess.Close())
}

// The same for a callback that waits for a verdict on a goroutine of its own.
func TestPanicInANotification(t *testing.T) {
	s := newScript(t)
	sess := s.welcome()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h, err := sess.AllReduceAsync(ctx, Reduce{Tag: 1, DType: dtype.Float32, Op: dtype.Sum})
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := h.Wait(ctx)
		waited <- err
	}()
	hear[wire.C2MCollectiveCommsInitiate](s)
	s.say(wire.M2CCollectiveCommsCommence{Tag: 1, SeqNr: 1})
	hear[wire.C2MCollectiveCommsComplete](s)
	s.say(wire.M2CCollectiveCommsAbort{Tag: 1}, wire.M2CCollectiveCommsComplete{Tag: 1})
	require.NoError(t, <-waited)
	h.Notify(func() { panic("called back") })
	require.Eventually(t, func() bool { return sess.crashed.Load() != nil }, time.Minute, time.Millisecond)
	_, err = sess.AllReduceAsync(ctx, Reduce{Tag: 2, DType: dtype.Float32, Op: dtype.Sum})
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorContains(t, err, "called back")
}

// evil panics when somebody looks at it, as a packet and as a connection.
type evil struct{ wire.M2CHeartbeat }

func (evil) Proto() wire.Proto { panic("evil") }

type evilConn struct{ net.Conn }

func (evilConn) Read([]byte) (int, error) { panic("evil") }

// Wherever a goroutine of the session panics, calls that wait are answered with an
// internal error, buffers are given back, and Close returns: crash waits for no
// goroutine, least of all for the goroutine that it runs on.
func TestPanicsEverywhere(t *testing.T) {
	for name, blow := range map[string]func(*testing.T, *Session){
		"machine, stepped by who brings an event": func(_ *testing.T, s *Session) { s.handle(fsm.PacketIn{Packet: evil{}}) },
		"machine, stepped by the loop":            func(_ *testing.T, s *Session) { s.box.post(fsm.PacketIn{Packet: evil{}}) },
		"handshake": func(t *testing.T, s *Session) {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close(); far.Close() })
			s.mesh.Accept(evilConn{near})
		},
		"work":     func(_ *testing.T, s *Session) { s.spawn(func() { panic("evil") }) },
		"listener": func(_ *testing.T, s *Session) { s.opt.Trace.Started(0, 0) },
		"notification": func(t *testing.T, s *Session) {
			h, err := s.Post(Reduce{Tag: 2, DType: dtype.Float32, Op: dtype.Sum})
			require.NoError(t, err)
			h.Notify(func() { panic("evil") })
			s.box.post(fsm.MasterGone{})
		},
		"dial of a round": func(_ *testing.T, s *Session) {
			s.spawn(func() {
				s.establish(fsm.Establish{Peers: []wire.PeerEndpoint{{UUID: wire.UUID{9}, Addr: netip.MustParseAddrPort("192.0.2.1:9")}}})
			})
		},
		"dial of a ring to come": func(_ *testing.T, s *Session) {
			s.spawn(func() {
				s.prepareRing(fsm.PrepareRing{Peers: []wire.PeerEndpoint{{UUID: wire.UUID{9}, Addr: netip.MustParseAddrPort("192.0.2.1:9")}}})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			sess := s.welcome(func(o *Options) {
				o.Trace = &trace.Listener{OpStarted: func(uint64, uint64) { panic("evil") }}
				o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == "192.0.2.1:9" {
						panic("evil")
					}
					return (&net.Dialer{}).DialContext(ctx, network, addr)
				}
			})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			v := make([]byte, 64)
			h, err := sess.AllReduceAsync(ctx, Reduce{Tag: 1, Src: v, Dst: v, DType: dtype.Float32, Op: dtype.Sum})
			require.NoError(t, err)
			hear[wire.C2MCollectiveCommsInitiate](s)
			asked := make(chan error, 1)
			go func() {
				_, err := sess.PeersPending(ctx)
				asked <- err
			}()
			hear[wire.C2MCheckPeersPending](s)
			blow(t, sess)
			require.Eventually(t, func() bool { return sess.crashed.Load() != nil }, time.Minute, time.Millisecond)
			require.ErrorContains(t, sess.crashed.Load(), "evil")
			select {
			case err = <-asked:
				require.Error(t, err)
			case <-ctx.Done():
				t.Fatal("a call was not answered")
			}
			_, err = h.Wait(ctx)
			require.ErrorIs(t, err, errs.Internal)
			require.NoError(t, ctx.Err())
			require.ErrorIs(t, sess.UpdateTopology(ctx), errs.Internal)
			require.NoError(t, sess.Close())
		})
	}
}
