package fsm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

var reg = wire.C2MRequestSessionRegistration{P2PPort: 10, SharedStatePort: 11, BenchmarkPort: 12}

// "sender not registered: kick (for ReportPeerBandwidth, too)".
func TestUnregisteredSender_Section5(t *testing.T) {
	for _, p := range everyPacket[1:] {
		w := newWorld(t, Config{})
		c := w.connectAt("127.0.0.1:1")
		w.send(c, p)
		w.isClosed(c, "before the registration")
		require.Equal(t, "127.0.0.1:1", w.factOf("kick").Remote.String())
	}
}

// "One packet is fully processed, including all replies, before the next":
// the kick's own consequences included.
func TestKickTakesEffectAtOnce_Section5(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	w.send(cs[0], wire.C2MCheckPeersPending{})
	w.send(cs[1], connected)
	w.isClosed(cs[1], "not allowed")
	require.False(t, want[wire.M2CPeersPendingResponse](w, cs[0]).PeersPending)
	// Packets that the kicked client had sent before mean nothing any more.
	w.send(cs[1], wire.C2MCheckPeersPending{})
	w.leave(cs[1])
	w.quiet(cs[0])
}

// "The first client is never rejected"; it is accepted and connects at once:
// M2C 1, then M2C 2 with unchanged = 1 and all counters 1, then a ring of itself.
func TestFirstClient_Section6(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:1", "10.1.2.3:1", "[::1]:1", "[2001:db8::1]:1"} {
		w := newWorld(t, Config{})
		c := w.connectAt(addr)
		w.send(c, reg)
		require.True(t, want[wire.M2CSessionRegistrationResponse](w, c).Accepted)
		require.Equal(t, wire.M2CP2PConnectionInfo{
			Unchanged: true, GlobalWorldSize: 1, LocalWorldSize: 1, NumDistinctGroup: 1, LargestGroupSize: 1,
		}, want[wire.M2CP2PConnectionInfo](w, c))
		w.send(c, connected)
		require.Equal(t, wire.M2CP2PConnectionsEstablished{Success: true, Ring: []wire.UUID{w.ids[c]}}, want[wire.M2CP2PConnectionsEstablished](w, c))
		w.quiet(c)
	}
}

// The locality rule, IPv6 and mapped addresses included.
func TestLocality_Section6(t *testing.T) {
	for _, tc := range []struct {
		first, second string
		ok            bool
	}{
		{"127.0.0.1:1", "127.9.9.9:1", true},
		{"127.0.0.1:1", "[::1]:1", false}, // PCCL peers, which cannot reach each other there
		{"[::1]:1", "127.0.0.1:1", false},
		{"127.0.0.1:1", "[::ffff:127.0.0.1]:1", true},
		{"127.0.0.1:1", "10.0.0.1:1", false},
		{"[::1]:1", "192.168.0.1:1", false},
		{"10.0.0.1:1", "127.0.0.1:1", false},
		{"10.0.0.1:1", "[::1]:1", false},
		{"10.0.0.1:1", "192.168.0.1:1", true},
	} {
		w := newWorld(t, Config{})
		a := w.connectAt(tc.first)
		w.send(a, reg)
		want[wire.M2CSessionRegistrationResponse](w, a)
		b := w.connectAt(tc.second)
		w.send(b, reg)
		r := want[wire.M2CSessionRegistrationResponse](w, b)
		require.Equal(t, tc.ok, r.Accepted, tc)
		require.True(t, r.Ext.IsZero(), "an extension for a PCCL peer")
	}
}

// A peer may say at which address others reach it: they are told that one, and
// the locality rule looks at it.
func TestAnnouncedHost(t *testing.T) {
	far := netip.MustParseAddr("203.0.113.9")
	native := reg
	native.Ext = wire.Ext{Native: true, Host: far}
	w := newWorld(t, Config{})
	a := w.connectAt("127.0.0.1:1") // beside the master, and reachable from elsewhere
	w.send(a, native)
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, a).Accepted)
	want[wire.M2CP2PConnectionInfo](w, a)
	w.send(a, connected)
	want[wire.M2CP2PConnectionsEstablished](w, a)
	b := w.connectAt("10.0.0.1:1")
	w.send(b, reg)
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, b).Accepted)
	w.send(a, wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
	require.Equal(t, netip.AddrPortFrom(far, reg.P2PPort), want[wire.M2CP2PConnectionInfo](w, b).Peers[0].Addr)
	require.Equal(t, "10.0.0.1", want[wire.M2CP2PConnectionInfo](w, a).Peers[0].Addr.Addr().String())

	for _, bad := range []netip.Addr{netip.IPv4Unspecified(), netip.MustParseAddr("224.0.0.1")} {
		w := newWorld(t, Config{})
		native.Ext.Host = bad
		a := w.connectAt("127.0.0.1:1")
		w.send(a, native)
		want[wire.M2CSessionRegistrationResponse](w, a)
		b := w.connectAt("10.0.0.1:1")
		w.send(b, reg)
		require.False(t, want[wire.M2CSessionRegistrationResponse](w, b).Accepted, "%v counts as no address", bad)
	}
}

// "Rejected: a fresh unused uuid; the connection stays open and unregistered;
// another attempt on it is possible." A gopccl peer also learns why.
func TestRejected_Section6(t *testing.T) {
	w := newWorld(t, Config{})
	a := w.member(0, false)
	b := w.connectAt("10.0.0.1:1")
	w.send(b, reg)
	r1 := want[wire.M2CSessionRegistrationResponse](w, b)
	native := reg
	native.Ext.Native = true
	w.send(b, native)
	r2 := want[wire.M2CSessionRegistrationResponse](w, b)
	require.False(t, r1.Accepted || r2.Accepted)
	require.NotEqual(t, r1.UUID, r2.UUID)
	require.NotEqual(t, w.ids[a], r1.UUID)
	require.NotEmpty(t, r2.Ext.Reason)
	require.Equal(t, "10.0.0.1:1", w.factOf("refused").Remote.String())
	w.leave(a)
	w.send(b, reg)
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, b).Accepted)
	want[wire.M2CP2PConnectionInfo](w, b)
}

// A uuid in use is never handed out again.
func TestUUIDsAreUnused_Section6(t *testing.T) {
	same := wire.UUID{7}
	w := newWorld(t, Config{NewUUID: func() wire.UUID { return same }})
	a := w.connectAt("127.0.0.1:1")
	w.send(a, reg)
	want[wire.M2CSessionRegistrationResponse](w, a)
	b := w.connectAt("127.0.0.1:2")
	w.send(b, reg)
	w.isClosed(b, "uuid")
}

// "Addresses handed to other peers are the IP address from which the master
// sees the client plus the port the client reported."
// Quirk Q67.
func TestAddresses_Section6(t *testing.T) {
	w := newWorld(t, Config{})
	a := w.connectAt("10.0.0.1:40000")
	w.send(a, reg)
	want[wire.M2CSessionRegistrationResponse](w, a)
	w.round(true)
	b := w.connectAt("[::ffff:10.0.0.2]:50000")
	w.send(b, wire.C2MRequestSessionRegistration{P2PPort: 20, SharedStatePort: 21, BenchmarkPort: 22})
	want[wire.M2CSessionRegistrationResponse](w, b)
	w.send(a, acceptVote)
	require.Equal(t, []wire.PeerEndpoint{{Addr: addr("10.0.0.2:20"), UUID: w.ids[b]}}, want[wire.M2CP2PConnectionInfo](w, a).Peers)
	require.Equal(t, []wire.PeerEndpoint{{Addr: addr("10.0.0.1:10"), UUID: w.ids[a]}}, want[wire.M2CP2PConnectionInfo](w, b).Peers)
}

// A registered client waits, sees nothing and disturbs no member.
func TestRegisteredClientWaits_Section6(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	for _, c := range cs {
		w.send(c, initiate(1))
	}
	n := w.join(0, false)
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
		w.send(c, complete(1, false))
	}
	for _, c := range cs {
		want[wire.M2CCollectiveCommsAbort](w, c)
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
	synchronise(w, cs, 0)
	w.quiet(n)
	require.Equal(t, Registered, w.m.Snapshot().Clients[2].Phase) // S2-08
	// Phase REGISTERED: bandwidth reports are taken and ignored.
	w.send(n, wire.C2MReportPeerBandwidth{To: w.ids[cs[0]], Mbps: 5})
	w.send(cs[0], wire.C2MReportPeerBandwidth{To: w.ids[n], Mbps: 5})
	w.quiet(n, cs[0])
}

// Connections that do not register are closed; refused ones too.
func TestRegisterTimeout(t *testing.T) {
	w := newWorld(t, Config{RegisterTimeout: 10 * time.Second})
	a := w.member(0, false)
	w.after(time.Second)
	b := w.connectAt("127.0.0.1:5")
	w.after(9 * time.Second)
	w.quiet(a, b)
	w.after(time.Second)
	w.quiet(a)
	w.isClosed(b, "not registered within 10s")
	w.after(time.Hour)
	w.quiet(a)
	_, due := w.m.Deadline()
	require.False(t, due, "an idle machine needs no ticks")
}

// Bytes that are not a packet.
func TestMalformed_Q3(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	w.step(Malformed{Client: cs[0], Err: errTest})
	w.isClosed(cs[0], errTest.Error())
	require.Contains(t, w.factOf("malformed").Text, errTest.Error())
	w.step(Malformed{Client: 99, Err: errTest})
	w.step(Gone{Client: 99})
	w.send(99, connected)
	w.step(Connected{Client: cs[1], Remote: addr("1.2.3.4:5")}) // an id is used once
	w.quiet(cs[1])
	require.Len(t, w.m.Snapshot().Clients, 1)
}
