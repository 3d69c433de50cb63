package secure_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
)

// meet has both configurations shake hands over a socket, and returns
// what each end makes of it: the client's handshake, and the server's.
func meet(t *testing.T, client, server *tls.Config) (c, s *tls.Conn, cerr, serr error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	a, err := net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	b, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	for _, end := range []net.Conn{a, b} {
		require.NoError(t, end.SetDeadline(time.Now().Add(time.Minute)))
	}
	c, s = tls.Client(a, client), tls.Server(b, server)
	over := make(chan error)
	go func() {
		err := s.Handshake()
		if err != nil {
			b.Close()
		}
		over <- err
	}()
	if cerr = c.Handshake(); cerr != nil {
		a.Close()
	}
	return c, s, cerr, <-over
}

// Both ends know each other after the handshake, and only then.
func TestHandshakes(t *testing.T) {
	ours := newRun(t)
	master := trust(t, ours.credential(secure.Identity{Role: secure.Master, Name: "head"}), noon)
	peer := trust(t, ours.credential(secure.Identity{Role: secure.Peer, Name: "gpu-7"}), noon)
	control := secure.Want{Purpose: secure.Control}
	keeper := secure.NewKeeper(master)
	port := keeper.Server(secure.Control, secure.Enrolment)

	c, s, cerr, serr := meet(t, peer.Client(control), port)
	require.NoError(t, cerr)
	require.NoError(t, serr)
	id, err := peer.Verify(c.ConnectionState(), secure.Want{Purpose: secure.Control, Server: true, Name: "head"})
	require.NoError(t, err)
	require.Equal(t, "master head", id.String())
	id, err = master.Verify(s.ConnectionState(), control)
	require.NoError(t, err)
	require.Equal(t, "peer gpu-7", id.String())

	_, _, cerr, _ = meet(t, peer.Client(secure.Want{Purpose: secure.Control, Name: "other"}), port)
	require.ErrorIs(t, cerr, secure.WrongName)
	_, _, _, serr = meet(t, peer.Client(secure.Want{Purpose: secure.Data}), port)
	require.ErrorIs(t, serr, secure.WrongProtocol)
	for _, protocols := range [][]string{nil, {"h2"}, {secure.Enrolment.String(), secure.Control.String()}} {
		odd := peer.Client(control)
		odd.NextProtos = protocols
		_, _, _, serr = meet(t, odd, port)
		require.ErrorIs(t, serr, secure.WrongProtocol, "%v", protocols)
	}
	old := peer.Client(control)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, _, cerr, serr = meet(t, old, port)
	require.Error(t, cerr)
	require.Error(t, serr)

	stranger := newRun(t)
	unknown := trust(t, stranger.credential(secure.Identity{Role: secure.Peer, Name: "gpu-7"}), noon)
	_, _, _, serr = meet(t, unknown.Client(control), port)
	require.ErrorIs(t, serr, secure.Unknown, "it asks for its own run")
	named := unknown.Client(control)
	named.ServerName = peer.Client(control).ServerName
	_, _, cerr, _ = meet(t, named, port)
	require.ErrorIs(t, cerr, secure.Unknown, "the client does not believe the server")
	named.VerifyConnection = nil
	_, _, _, serr = meet(t, named, port)
	require.ErrorIs(t, serr, secure.Unknown, "and the server does not believe the client")
	bare := peer.Client(control)
	bare.GetClientCertificate = nil
	_, _, _, serr = meet(t, bare, port)
	require.Error(t, serr)

	newcomer := peer.Client(secure.Want{Purpose: secure.Enrolment})
	newcomer.GetClientCertificate = nil
	_, s, cerr, serr = meet(t, newcomer, port)
	require.NoError(t, cerr)
	require.NoError(t, serr, "a newcomer has no certificate")
	require.Equal(t, "gopccl-enroll/1", s.ConnectionState().NegotiatedProtocol)
	_, err = master.Verify(s.ConnectionState(), control)
	require.ErrorIs(t, err, secure.WrongChain, "and is nobody")

	// A new list holds for handshakes that begin afterwards.
	_, cert, err := ours.NewCredential(secure.Identity{Role: secure.Master, Name: "head"}, []*x509.Certificate{ours.Cert}, month, noon)
	require.NoError(t, err)
	own, err := secure.ParseCredential(cert)
	require.NoError(t, err)
	keeper.Replace(trust(t, own, noon, ours.list(1, nil, peer.Credential().Leaf())))
	_, _, _, serr = meet(t, peer.Client(control), port)
	require.ErrorIs(t, serr, secure.Revoked)
	require.NotSame(t, master, keeper.Trust())
}

// Both ends agree in the handshake to go on in plaintext, where the server may.
func TestAgreedInClear(t *testing.T) {
	ours := newRun(t)
	one := trust(t, ours.credential(secure.Identity{Role: secure.Peer, Name: "gpu-1"}), noon)
	two := trust(t, ours.credential(secure.Identity{Role: secure.Peer, Name: "gpu-2"}), noon)
	head := trust(t, ours.credential(secure.Identity{Role: secure.Master, Name: "head"}), noon)
	for _, c := range []struct {
		asks, may bool
	}{{true, true}, {true, false}, {false, true}, {false, false}} {
		var from net.Addr
		port := secure.NewKeeper(two).ServerClear(func(remote net.Addr) bool { from = remote; return c.may }, secure.Data, secure.State)
		for _, p := range []secure.Purpose{secure.Data, secure.State} {
			want := secure.Want{Purpose: p, Clear: c.asks}
			a, b, cerr, serr := meet(t, one.Client(want), port)
			require.NoError(t, cerr)
			require.NoError(t, serr)
			for _, end := range []*tls.Conn{a, b} {
				got, clear := secure.Agreed(end.ConnectionState())
				require.Equal(t, p, got)
				require.Equal(t, c.asks && c.may, clear, "%+v", c)
			}
			require.Equal(t, a.LocalAddr().String(), from.String())
			_, err := two.Verify(b.ConnectionState(), want)
			require.NoError(t, err)
		}
	}
	// Control never does, and nobody is made to.
	yes := func(net.Addr) bool { return true }
	port := secure.NewKeeper(head).ServerClear(yes, secure.Control)
	a, _, cerr, serr := meet(t, one.Client(secure.Want{Purpose: secure.Control, Clear: true}), port)
	require.NoError(t, cerr)
	require.NoError(t, serr)
	_, clear := secure.Agreed(a.ConnectionState())
	require.False(t, clear)
	for _, protocols := range [][]string{
		{"gopccl-data-clear/1"},
		{"gopccl-state-clear/1", "gopccl-data/1"},
		{"gopccl-data/1", "gopccl-data-clear/1"},
		{"gopccl-data-clear/1", "gopccl-data/1", "gopccl-data/1"},
		{"gopccl-control-clear/1", "gopccl-control/1"},
		{"", "gopccl-control/1"},
	} {
		odd := one.Client(secure.Want{Purpose: secure.Data})
		odd.NextProtos = protocols
		_, _, _, serr = meet(t, odd, secure.NewKeeper(two).ServerClear(yes, secure.Control, secure.Data, secure.State))
		require.Error(t, serr, "%q", protocols)
	}
}
