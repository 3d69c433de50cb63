package peer

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// called has the session of a script in a group of four whose third member listens
// at a place of the test's, and the master ask for a mesh. It returns what the
// session has connected to that member, and its hello.
func called(t *testing.T, s *script, sess *Session) (net.Conn, wire.P2PHello) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	updated := make(chan error, 1)
	go func() { updated <- sess.UpdateTopology(ctx) }()
	hear[wire.C2MRequestEstablishP2PConnections](s)
	members := []wire.UUID{s.self, {2}, {3}, {4}}
	s.say(wire.M2CP2PConnectionInfo{
		Unchanged: true, GlobalWorldSize: 4, LocalWorldSize: 4, NumDistinctGroup: 1, LargestGroupSize: 4,
		Ext: wire.Ext{GroupNative: true, GroupCollectives: true, Members: members},
	})
	hear[wire.C2MP2PConnectionsEstablished](s)
	s.say(wire.M2CP2PConnectionsEstablished{Success: true, Ring: members})
	require.NoError(t, <-updated)
	require.True(t, sess.View().Collectives)

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	s.say(wire.M2CPrepareMesh{Change: 9, Peers: []wire.PeerEndpoint{{Addr: netip.MustParseAddrPort(ln.Addr().String()), UUID: wire.UUID{3}}}})
	conn, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	p, err := wire.Read(conn, wire.P2P, 1<<10)
	require.NoError(t, err)
	return conn, p.(wire.P2PHello)
}

// A member that is not a neighbour gets connection 0, by an end that says which
// collectives it knows; the master hears when it stands.
func TestMembersAreConnected(t *testing.T) {
	s := newScript(t)
	sess := s.welcome()
	conn, hello := called(t, s, sess)
	require.Equal(t, s.self, hello.UUID)
	require.Zero(t, hello.Number)
	require.Equal(t, uint8(wire.CollectivesVersion), hello.Ext.Collectives)
	_, err := conn.Write(wire.Append(nil, wire.P2PHelloAck{Ext: wire.Ext{Native: true, Collectives: wire.CollectivesVersion}}))
	require.NoError(t, err)
	require.Equal(t, wire.C2MMeshPrepared{Change: 9}, hear[wire.C2MMeshPrepared](s))
	require.Equal(t, 1, sess.hub.LiveSenders(wire.UUID{3}))
	require.NoError(t, sess.Close())
}

// A mesh that is given up is not connected for any more, and nobody is told of it.
func TestMembersAreNotWaitedFor(t *testing.T) {
	s := newScript(t)
	sess := s.welcome(func(o *Options) { o.HandshakeTimeout = 10 * time.Minute })
	conn, _ := called(t, s, sess)
	s.say(wire.M2CMesh{Change: 9, Planner: wire.MeshNone})
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the answer to its hello is waited for")
	require.Zero(t, sess.hub.LiveSenders(wire.UUID{3}))
	require.NoError(t, sess.Close())
}

// Connections may be silent for longer where the master has heartbeats, by which it misses a peer that is gone.
func TestWhoMissesPeers(t *testing.T) {
	for _, native := range []bool{true, false} {
		s := newScript(t)
		if !native {
			s.ext = wire.Ext{}
		}
		require.Equal(t, native, s.welcome().hub.Config().Watched())
	}
}
