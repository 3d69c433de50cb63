package peer

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// lasting has the script grant what a session needs to outlive its master.
func lasting(s *script) {
	s.ext.Resuming = wire.Resuming{Resume: true, Term: 3, Identity: wire.Identity{Token: [16]byte{7}}}
}

func patient(o *Options) { o.ReattachTimeout = time.Minute }

// takeBack accepts the next connection as a master that takes the peer back.
func (s *script) takeBack(ln net.Listener) (wire.C2MRequestSessionRegistration, wire.C2MReport) {
	s.t.Helper()
	var err error
	s.conn, err = ln.Accept()
	require.NoError(s.t, err)
	s.t.Cleanup(func() { s.conn.Close() })
	s.conn.SetDeadline(time.Now().Add(time.Minute))
	hello := hear[wire.C2MRequestSessionRegistration](s)
	s.say(wire.M2CSessionRegistrationResponse{Accepted: true, UUID: s.self, Ext: s.ext})
	return hello, hear[wire.C2MReport](s)
}

func listen(t *testing.T) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// A session whose master goes away goes through its list, says who it is, and goes on with
// the next one; what the first one still says counts for nothing.
func TestReattach(t *testing.T) {
	s := newScript(t)
	lasting(s)
	next := listen(t)
	sess := s.welcome(patient, func(o *Options) { o.Master += ", " + next.Addr().String() })
	asked := make(chan error, 1)
	go func() {
		_, err := sess.PeersPending(context.Background())
		asked <- err
	}()
	hear[wire.C2MCheckPeersPending](s)
	s.ln.Close()
	first := s.conn
	first.Close()
	s.ext.Resuming.Term = 4
	hello, report := s.takeBack(next)
	require.Equal(t, wire.Identity{UUID: s.self, Token: [16]byte{7}}, hello.Ext.Resuming.Identity)
	require.Equal(t, uint32(3), hello.Ext.Resuming.Term)
	require.True(t, report.Query.Asking)
	require.Len(t, report.Round.Ring, 2)
	require.Empty(t, report.Broken)

	var dump strings.Builder
	require.NoError(t, DumpState(&dump))
	require.Contains(t, dump.String(), "no master for ")
	require.Contains(t, dump.String(), "trying "+next.Addr().String())
	away := sess.State().Away
	require.NotNil(t, away)
	require.True(t, sess.View().Detached)

	s.say(wire.M2CResumed{}, wire.M2CPeersPendingResponse{})
	require.NoError(t, <-asked)
	st := sess.State()
	require.Nil(t, st.Away)
	require.Equal(t, uint64(1), st.Reattached)
	require.False(t, st.View.Detached)

	// It may happen again, and the other way round.
	s.ln, _ = net.Listen("tcp", s.ln.Addr().String())
	require.NotNil(t, s.ln)
	t.Cleanup(func() { s.ln.Close() })
	next.Close()
	s.conn.Close()
	s.takeBack(s.ln)
	s.say(wire.M2CResumed{})
	require.Eventually(t, func() bool { return sess.State().Reattached == 2 }, time.Minute, time.Millisecond)
	require.NoError(t, sess.Close())
}

// A master that ends in good order says where to go, and when; one that does not lead, who does.
func TestReattachWhereSaid(t *testing.T) {
	s := newScript(t)
	lasting(s)
	sess := s.welcome(patient)
	said, leader := listen(t), listen(t)
	at := func(ln net.Listener) []netip.AddrPort {
		return []netip.AddrPort{netip.MustParseAddrPort(ln.Addr().String())}
	}
	s.say(wire.M2CLeaving{After: 1, Masters: at(said)})
	s.conn.Close()
	conn, err := said.Accept()
	require.NoError(t, err)
	defer conn.Close()
	s.conn = conn
	hear[wire.C2MRequestSessionRegistration](s)
	s.say(wire.M2CSessionRegistrationResponse{Ext: wire.Ext{Native: true, Resuming: wire.Resuming{Leader: at(leader)}}})
	s.takeBack(leader)
	s.say(wire.M2CResumed{})
	require.Eventually(t, func() bool { return sess.State().Reattached == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, sess.Close())
}

// Nobody takes the peer back in time: calls end as they do without a master. A master that
// never answers does not make it longer, nor does closing wait for one.
func TestReattachEnds(t *testing.T) {
	for name, change := range map[string]func(*script){
		"refused": func(s *script) { s.ln.Close() },
		"silent":  func(*script) {},
	} {
		s := newScript(t)
		lasting(s)
		sess := s.welcome(func(o *Options) { o.ReattachTimeout = 50 * time.Millisecond })
		change(s)
		s.conn.Close()
		_, err := sess.PeersPending(context.Background())
		require.ErrorIs(t, err, errs.MasterLost, name)
		require.ErrorContains(t, err, "no master has taken this peer back within 50ms", name)
		require.NoError(t, sess.Close(), name)
	}
	s := newScript(t)
	lasting(s)
	sess := s.welcome(patient)
	s.conn.Close()
	conn, err := s.ln.Accept()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, sess.Close())
	_, err = io.Copy(io.Discard, conn) // what it had dialled is closed
	require.NoError(t, err)
}

// Without leave of the master, or without wanting it, a session ends with its master.
func TestNoReattach(t *testing.T) {
	for _, timeout := range []time.Duration{-1, time.Minute} {
		s := newScript(t)
		if timeout < 0 {
			lasting(s)
		}
		sess := s.welcome(func(o *Options) { o.ReattachTimeout = timeout })
		require.Equal(t, timeout > 0, s.hello.Ext.Resuming.Resume)
		s.conn.Close()
		_, err := sess.PeersPending(context.Background())
		require.ErrorIs(t, err, errs.MasterLost)
		require.NotContains(t, err.Error(), "taken this peer back")
		require.NoError(t, sess.Close())
	}
}

// Connect goes through the list: one master is not there, one says nothing, one closes the
// connection, and one names the leader.
func TestConnectFindsTheLeader(t *testing.T) {
	s := newScript(t)
	dead, silent, waits, follows := listen(t), listen(t), listen(t), listen(t)
	dead.Close() // the silent one never takes the connection that the system has made
	go func() {
		for {
			conn, err := waits.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	go func() {
		conn, err := follows.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = wire.Read(conn, wire.C2M, wire.MaxPacket)
		_, _ = conn.Write(wire.Append(nil, wire.M2CSessionRegistrationResponse{Ext: wire.Ext{Native: true, Resuming: wire.Resuming{
			Leader: []netip.AddrPort{netip.MustParseAddrPort(s.ln.Addr().String())},
		}}}))
		_, _ = io.Copy(io.Discard, conn)
	}()
	sess := s.welcome(func(o *Options) {
		o.registerTime, o.DialTimeout = time.Second, 500*time.Millisecond // each has its turn nevertheless
		o.Master = dead.Addr().String() + "," + silent.Addr().String() + "," + waits.Addr().String() + "," + follows.Addr().String()
	})
	require.True(t, sess.View().Connected)
	require.NoError(t, sess.Close())
}

// The master hears which neighbours have ended their connections, also when it asks again what
// this peer holds, and the session goes on.
func TestReportAgain(t *testing.T) {
	s := newScript(t)
	lasting(s)
	sess := s.welcome(patient)
	again := func() wire.C2MReport {
		s.say(wire.M2CReportAgain{})
		r := hear[wire.C2MReport](s)
		s.say(wire.M2CResumed{})
		return r
	}
	r := again()
	require.Len(t, r.Round.Ring, 2)
	require.Empty(t, r.Broken)
	s.far.Close()
	require.Equal(t, wire.UUID{2}, hear[wire.C2MLinkEnded](s).Peer)
	require.Equal(t, []wire.UUID{{2}}, again().Broken)
	require.Zero(t, sess.State().Reattached, "it was never away")
	require.NoError(t, sess.Close())
	hear[wire.C2MFarewell](s)
}

// A pointer that leads nowhere, because it is of another network, holds nobody up: the
// others of the list have their turn.
func TestPointersOfOtherNetworks(t *testing.T) {
	s := newScript(t)
	const nowhere = "198.51.100.1:48148"
	list := ""
	for range 3 {
		follows := listen(t)
		list += follows.Addr().String() + ","
		go func() {
			for {
				conn, err := follows.Accept()
				if err != nil {
					return
				}
				_, _ = wire.Read(conn, wire.C2M, wire.MaxPacket)
				_, _ = conn.Write(wire.Append(nil, wire.M2CSessionRegistrationResponse{Ext: wire.Ext{
					Native: true, Resuming: wire.Resuming{Leader: []netip.AddrPort{netip.MustParseAddrPort(nowhere)}},
				}}))
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}
		}()
	}
	var swallowed atomic.Int32
	sess := s.welcome(func(o *Options) {
		o.DialTimeout = time.Minute
		o.Master = list + s.ln.Addr().String()
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != nowhere {
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}
			swallowed.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	require.True(t, sess.View().Connected)
	require.EqualValues(t, 1, swallowed.Load())
	require.NoError(t, sess.Close())
}

// A follower may go on pointing to a leader that has died: the peer asks it again, in the
// rounds through the list, until it has another one.
func TestConnectOutlastsDeadLeaders(t *testing.T) {
	s := newScript(t)
	gone, follows := listen(t), listen(t)
	gone.Close()
	go func() {
		for asked := 0; ; asked++ {
			conn, err := follows.Accept()
			if err != nil {
				return
			}
			leader := gone.Addr().String()
			if asked > maxPointers {
				leader = s.ln.Addr().String()
			}
			_, _ = wire.Read(conn, wire.C2M, wire.MaxPacket)
			_, _ = conn.Write(wire.Append(nil, wire.M2CSessionRegistrationResponse{Ext: wire.Ext{
				Native: true, Resuming: wire.Resuming{Leader: []netip.AddrPort{netip.MustParseAddrPort(leader)}},
			}}))
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	sess := s.welcome(func(o *Options) {
		o.DialTimeout = 20 * time.Second
		o.Master = gone.Addr().String() + "," + follows.Addr().String()
	})
	require.True(t, sess.View().Connected)
	require.NoError(t, sess.Close())
}

// The master that was lost is dialled first: it may be back at once, also if another one has
// pointed to it.
func TestLostMasterComesFirst(t *testing.T) {
	c := control{masters: []string{"a:1", "b:1", "c:1"}}
	next := func() string {
		addr, _ := c.next(&Options{DialTimeout: time.Second})
		return addr
	}
	require.Equal(t, "a:1", next())
	c.first = []string{"c:1"} // says a
	require.Equal(t, "c:1", next())
	c.tries = 0 // c took it, and was lost
	require.Equal(t, "c:1", next())
	require.Equal(t, "b:1", next())
	require.Equal(t, "c:1", next())
	require.Equal(t, "a:1", next())
	c.tries, c.first = 0, []string{"b:1"}
	require.Equal(t, "b:1", next())
	c.tries = 0
	require.Equal(t, "b:1", next())
	require.Equal(t, "c:1", next(), "b has had its turn")
}
