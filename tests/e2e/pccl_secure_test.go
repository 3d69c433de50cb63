package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/wire"
)

// besideTLS is a master in TLS that takes PCCL peers from a network into group 0.
func besideTLS(t *testing.T, r realm, from string) (addr, pccl string, log *lockedLog) {
	pccl = fmt.Sprintf("127.0.0.1:%d", freePorts(t)[0])
	addr, log = r.master(func(o *core.MasterOptions) {
		o.Security.PCCLListen, o.Security.PCCLGroups = pccl, []uint32{0}
		o.Security.PCCLNetworks = []netip.Prefix{netip.MustParsePrefix(from)}
	})
	return addr, pccl, log
}

// say sends a packet in plaintext, and returns all that is answered. It ends the connection when it
// has heard something, or the other end has closed it: nobody has to answer who is gone.
func say(t *testing.T, addr string, p wire.Packet) []byte {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, _ = conn.Write(wire.Append(nil, p)) // it may be closed by then
	var first [1]byte
	n, err := conn.Read(first[:])
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_ = conn.(*net.TCPConn).CloseWrite()
	rest, _ := io.ReadAll(conn)
	return append(first[:n], rest...)
}

// PCCL peers come in at a port of their own, from the networks and into the groups that are
// named, and nowhere else; the log says why in other cases.
func TestWherePCCLPeersComeIn(t *testing.T) {
	r := newRealm(t)
	addr, pccl, log := besideTLS(t, r, "127.0.0.0/8")
	refused := func(p wire.C2MRequestSessionRegistration, why string) {
		conn, err := net.Dial("tcp", pccl)
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = conn.Write(wire.Append(nil, p))
		require.NoError(t, err)
		answer, err := wire.Read(conn, wire.M2C, wire.MaxPacket)
		require.NoError(t, err)
		require.False(t, answer.(wire.M2CSessionRegistrationResponse).Accepted)
		log.has(t, why)
	}
	hello := wire.C2MRequestSessionRegistration{PeerGroup: 1, P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3}
	refused(hello, "group 1 takes no PCCL peers")
	hello.PeerGroup, hello.Ext = 0, wire.Ext{Native: true}
	refused(hello, "this port is for PCCL peers")
	hello.Ext = wire.Ext{}
	require.Empty(t, say(t, addr, hello), "the port of those in TLS")
	for _, p := range []wire.Packet{wire.C2MAskTopology{}, wire.C2MAskStatus{}} {
		require.Empty(t, say(t, pccl, p), "who is in the run")
		log.has(t, "ask at the port in TLS")
	}

	_, pccl, log = besideTLS(t, r, "10.0.0.0/8")
	require.Empty(t, say(t, pccl, hello))
	log.has(t, "the networks of security.pccl_networks alone")
}

// A peer in TLS takes plaintext of PCCL peers of its group alone, and for nobody with a
// name; one that was not told to take any says so.
func TestBesidePCCLInTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRealm(t)
	addr, pccl, _ := besideTLS(t, r, "127.0.0.0/8")
	port, log := freePorts(t)[:1], &lockedLog{}
	o := core.Options{Master: addr, ListenHost: "127.0.0.1", Ports: port, Security: r.peer("gpu-0"), Logger: slog.New(slog.NewTextHandler(log, nil))}
	o.Security.PCCLGroups = []uint32{0}
	c := besidePCCLAt(t, ctx, pccl, o)
	at := fmt.Sprintf("127.0.0.1:%d", port[0])
	self := wire.UUID(c.Attributes().UUID)
	require.Empty(t, say(t, at, wire.P2PHello{UUID: self}), "it has a name")
	log.has(t, "an endpoint without a certificate says that it is peer")
	_, err := dialTLS(t, at, r.peer("gpu-1", 0).Credential, 0)
	require.Error(t, err)

	alone := world(t, ctx, localMasterInTLS(r), 1, func(_ int, o *core.Options) {
		o.ListenHost, o.Ports, o.PortBase, o.HandshakeTimeout = "127.0.0.1", freePorts(t)[:1], 0, 100*time.Millisecond
		o.Security, o.Logger = r.peer("gpu-0"), slog.New(slog.NewTextHandler(log, nil))
		o.Security.PCCLGroups = []uint32{0}
		at = fmt.Sprintf("127.0.0.1:%d", o.Ports[0])
	})
	require.Empty(t, say(t, at, wire.P2PHello{UUID: self}), "there are none")
	log.has(t, "the master has told of no PCCL peer in group 0")
	require.NoError(t, alone[0].Close())
}

func localMasterInTLS(r realm) string {
	addr, _ := r.master(nil)
	return addr
}
