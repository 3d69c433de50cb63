package peer

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/wire"
)

// namesOf returns the names of endpoints of one run.
func namesOf(t *testing.T, who ...string) (all []*names) {
	s, err := authority.NewAuthority("trial", "", time.Now())
	require.NoError(t, err)
	for _, name := range who {
		_, text, err := s.NewCredential(secure.Identity{Role: secure.Peer, Name: name}, []*x509.Certificate{s.Cert}, 48*time.Hour, time.Now())
		require.NoError(t, err)
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		g, err := guard.New(guard.Options{Credential: c}, secure.Peer)
		require.NoError(t, err)
		all = append(all, &names{guard: g, bound: time.Minute})
	}
	return all
}

// A peer that takes no PCCL peers opens no connection to one, and says what to do; where
// it takes them, a name counts more than none.
func TestPCCLPeersHaveNoName(t *testing.T) {
	all := namesOf(t, "gpu-0", "gpu-1")
	pccl, at := wire.UUID{9}, netip.MustParseAddrPort("127.0.0.1:1")
	dial := func(context.Context, netip.AddrPort) (net.Conn, error) {
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}
	for _, n := range all {
		n.learn([]wire.NamedMember{{UUID: pccl, State: at}, {UUID: wire.UUID{1}, Name: "gpu-1", State: netip.MustParseAddrPort("127.0.0.1:2")}})
	}
	for _, fetch := range []dialler{all[0].fetching(dial), all[0].probing(dial, func(netip.AddrPort) wire.UUID { return pccl })} {
		_, err := fetch(context.Background(), at)
		require.ErrorContains(t, err, "security.pccl_groups")
	}
	a, _ := dial(context.Background(), at)
	_, err := all[0].Dial(context.Background(), a, pccl, false)
	require.ErrorContains(t, err, "security.pccl_groups")

	n := all[1]
	n.plain = true
	conn, err := n.fetching(dial)(context.Background(), at)
	require.NoError(t, err)
	require.IsNotType(t, &tlsconn.Conn{}, conn)
	require.NoError(t, n.Is(context.Background(), "", pccl))
	require.Error(t, n.Is(context.Background(), "gpu-1", pccl), "it has a name")
	require.Error(t, n.Is(context.Background(), "", wire.UUID{1}), "it has none")
	require.Error(t, n.known("", wire.UUID{1}))
	over, stop := context.WithCancel(context.Background())
	stop()
	require.ErrorContains(t, n.Is(over, "", wire.UUID{7}), "an endpoint without a certificate says that it is peer")
	n.learn([]wire.NamedMember{{UUID: pccl, State: at}, {UUID: wire.UUID{1}, Name: "gpu-1", State: at}})
	_, err = n.fetching(dial)(context.Background(), at)
	require.Error(t, err, "a handshake was made, which failed")
}

// Shared state is handed out to members alone. Whoever says that a member's address is
// its own does not keep others from it.
func TestSharedStateAmongMembers(t *testing.T) {
	all := namesOf(t, "holder", "asks", "liar", "outside")
	holder := all[0]
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	tell := func(n *names, members ...string) {
		var list []wire.NamedMember
		for i, m := range members {
			list = append(list, wire.NamedMember{UUID: wire.UUID{byte(i + 1)}, Name: m, State: at})
		}
		n.learn(list)
	}
	tell(holder, "asks", "liar")
	server := holder.server(secure.State)
	dial := func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	}
	fetch := func(n *names) (dialled, taken error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			var c net.Conn
			if c, taken = ln.Accept(); taken == nil {
				c = server.Wrap(c)
				_, taken = server.Greet(c)
				c.Close()
			}
		}()
		c, dialled := n.fetching(dial)(context.Background(), at)
		<-done
		if dialled == nil {
			c.Close()
		}
		return dialled, taken
	}
	for _, told := range [][]string{{"holder"}, {"holder", "liar"}, {"liar", "holder"}} {
		tell(all[1], told...)
		dialled, taken := fetch(all[1])
		require.NoError(t, dialled, "%v", told)
		require.NoError(t, taken)
	}
	tell(all[1], "liar")
	dialled, _ := fetch(all[1])
	require.ErrorIs(t, dialled, secure.WrongName)
	tell(all[1], "liar", "another")
	dialled, _ = fetch(all[1])
	require.ErrorContains(t, dialled, "holder is at")
	tell(all[3], "holder")
	_, taken := fetch(all[3])
	require.ErrorContains(t, taken, "not a member of the group")
}
