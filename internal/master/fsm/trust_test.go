package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// wiring carries out rounds: which pairs can connect, and which peers keep silent.
type wiring struct {
	w    *world
	port uint16
	cut  func(from, to ClientID) bool
	mute func(ClientID) bool
}

func newWiring(w *world) *wiring {
	return &wiring{
		w: w, port: 5000,
		cut:  func(ClientID, ClientID) bool { return false },
		mute: func(ClientID) bool { return false },
	}
}

func (x *wiring) client(u wire.UUID) ClientID {
	for c, id := range x.w.ids {
		if id == u {
			return c
		}
	}
	x.w.t.Fatalf("nobody has uuid %v", u)
	return 0
}

// join registers a peer with a port that none had before.
func (x *wiring) join(native bool) ClientID {
	c := x.w.connectAt("127.0.0.1:9")
	x.port++
	x.w.send(c, wire.C2MRequestSessionRegistration{P2PPort: x.port, Ext: wire.Ext{Native: native}})
	require.True(x.w.t, want[wire.M2CSessionRegistrationResponse](x.w, c).Accepted)
	return c
}

func (x *wiring) in(state State) (cs []ClientID) {
	for _, c := range x.w.m.Snapshot().Clients {
		if c.State == state {
			cs = append(cs, c.ID)
		}
	}
	return cs
}

// round lets all members vote to accept newcomers and the participants report.
// ok says how it ended, or over = false that somebody has not reported.
func (x *wiring) round() (ok, over bool) {
	x.w.t.Helper()
	for _, c := range x.w.accepted() {
		x.w.inbox[c] = nil
		x.w.send(c, acceptVote)
	}
	part := x.in(Connecting)
	require.NotEmpty(x.w.t, part, "no round begins")
	for _, c := range part {
		x.w.hearsRound(c)
	}
	for _, c := range part {
		if x.mute(c) || x.w.closed[c] != "" {
			continue
		}
		var failed []wire.UUID
		for _, u := range x.w.m.conns[c].place.neighbours {
			if x.cut(c, x.client(u)) {
				failed = append(failed, u)
			}
		}
		x.w.send(c, wire.C2MP2PConnectionsEstablished{Success: len(failed) == 0, FailedPeers: failed})
	}
	return x.verdict(part)
}

// verdict takes the verdict that all of cs who are there have got.
func (x *wiring) verdict(cs []ClientID) (ok, over bool) {
	for _, c := range cs {
		for _, p := range x.w.inbox[c] {
			if v, is := p.(wire.M2CP2PConnectionsEstablished); is {
				require.False(x.w.t, over && ok != v.Success, "verdicts differ")
				ok, over = v.Success, true
			}
		}
	}
	return ok, over
}

// A newcomer that cannot be reached, or that reaches no member, is out after one
// failed round and is told why; the members stay, and so does a newcomer that
// comes at the same time.
func TestNewcomerOutOfReachCostsOneRound_Q5(t *testing.T) {
	for _, native := range []bool{true, false} {
		for _, n := range []int{2, 3, 4, 8, 16, 32, 64} {
			for _, way := range []string{"in", "out", "both"} {
				t.Run(fmt.Sprintf("native %v/%d members/%s", native, n, way), func(t *testing.T) {
					w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
					cs := w.members(n, native)
					honest := w.join(0, native)
					bad := w.join(0, native)
					x := newWiring(w)
					x.cut = func(from, to ClientID) bool {
						return way != "in" && from == bad || way != "out" && to == bad
					}
					ok, over := x.round()
					require.True(t, over && !ok)
					switch way {
					case "in":
						w.isClosed(bad, "cannot reach it at 127.0.0.1:1: forward this port")
					case "out":
						w.isClosed(bad, "cannot reach its neighbours at 127.0.0.1:1 and 127.0.0.1:1: let it open connections")
					default:
						w.isClosed(bad, "cannot reach it")
					}
					ok, over = x.round()
					require.True(t, over && ok)
					require.Equal(t, append(cs, honest), w.accepted()) // S2-15
					require.Len(t, w.closed, 1)
				})
			}
		}
	}
}

// An honest newcomer between two that no peer reaches is not to blame for them.
func TestHonestNewcomerBetweenBadOnes(t *testing.T) {
	for _, way := range []string{"in", "out"} {
		w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
		cs := w.members(4, true)
		a, honest, b := w.join(0, true), w.join(0, true), w.join(0, true) // beside each other by uuid
		x := newWiring(w)
		x.cut = func(from, to ClientID) bool {
			end := to
			if way == "out" {
				end = from
			}
			return end == a || end == b
		}
		failed := 0
		for {
			ok, over := x.round()
			require.True(t, over)
			if ok {
				break
			}
			failed++
			require.Less(t, failed, 5, "no end: %v", w.closed)
		}
		require.Equal(t, append(cs, honest), w.accepted(), way)
		require.LessOrEqual(t, failed, 2, way)
	}
}

// A member whose connections broke and that no peer reaches any more is out after
// two rounds at most, in a group of any size; no other has to go.
func TestMemberOutOfReachCostsTwoRounds_Q5(t *testing.T) {
	for _, n := range []int{3, 4, 5, 8, 13, 32, 64} {
		for _, way := range []string{"in", "out", "both"} {
			w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
			cs := w.members(n, true)
			bad := cs[n/2]
			x := newWiring(w)
			x.cut = func(from, to ClientID) bool { return way != "in" && from == bad || way != "out" && to == bad }
			failed := 0
			for {
				ok, over := x.round()
				require.True(t, over)
				if ok {
					break
				}
				failed++
				require.LessOrEqual(t, failed, 2, "%d members, %s: %v", n, way, w.closed)
			}
			require.Contains(t, w.closed, bad)
			require.Len(t, w.closed, 1, "%d members, %s", n, way)
		}
	}
}

// Whatever pairs cannot connect, rounds come to an end: after not many more
// failed ones than there are members a ring stands, of those that are left.
func TestFailedRoundsEnd(t *testing.T) {
	most := 0
	for seed := range uint32(300) {
		rnd := seed*2654435761 + 12345
		draw := func(n uint32) uint32 { rnd = rnd*1664525 + 1013904223; return rnd >> 8 % n }
		w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
		n := 3 + int(draw(9))
		w.members(n, draw(2) == 0)
		x := newWiring(w)
		cut := map[[2]ClientID]bool{}
		share := 2 + draw(8)
		x.cut = func(from, to ClientID) bool {
			if _, drawn := cut[[2]ClientID{from, to}]; !drawn {
				cut[[2]ClientID{from, to}] = draw(share) == 0
			}
			return cut[[2]ClientID{from, to}]
		}
		failed := 0
		for {
			if ok, over := x.round(); over && ok {
				break
			} else if len(w.accepted()) == 0 {
				break
			}
			failed++
			require.LessOrEqual(t, failed, 2*n, "seed %d: %d members, cut %v", seed, n, cut)
		}
		most = max(most, failed)
	}
	require.Greater(t, most, 3, "no seed was hard")
}

// A peer that reports failures without a name cannot stop the run.
func TestFailureWithoutNamesEnds(t *testing.T) {
	for _, stranger := range []bool{false, true} {
		w := newWorld(t, Config{})
		cs := w.members(5, true)
		bad := cs[2]
		names := []wire.UUID(nil)
		if stranger {
			names = []wire.UUID{w.ids[cs[0]]} // no neighbour of it
		}
		failed := 0
		for ; w.closed[bad] == ""; failed++ {
			require.Less(t, failed, 10)
			for _, c := range w.accepted() {
				w.inbox[c] = nil
				w.send(c, establishVote)
			}
			w.send(bad, failedTo(names...))
			for _, c := range w.accepted() {
				if c != bad {
					w.send(c, connected)
				}
			}
		}
		w.isClosed(bad, "names none of its neighbours")
		require.LessOrEqual(t, failed, maxStrikes)
		require.Len(t, w.closed, 1)
	}
}

// A peer that cost a round waits outside, twice as long every time, and is told how
// long; others do not, and a peer that stands in a ring starts anew.
func TestWhoCostARoundWaitsOutside(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(3, true)
	x := newWiring(w)
	come := func(port uint16) (c ClientID, r wire.M2CSessionRegistrationResponse) {
		c = w.connectAt("127.0.0.1:9")
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: port, Ext: wire.Ext{Native: true}})
		return c, want[wire.M2CSessionRegistrationResponse](w, c)
	}
	dead := true
	const port = 777
	x.cut = func(_, to ClientID) bool { return dead && !slices.Contains(cs, to) }
	for i := range 12 {
		bad, r := come(port)
		w.ids[bad] = r.UUID
		require.True(t, r.Accepted, r.Ext.Reason)
		w.now = max(w.now, w.m.debt.others.opens())
		x.round()
		w.isClosed(bad, "cannot reach it at 127.0.0.1:777")
		wait := min(firstWait<<i, longestWait)
		_, r = come(port)
		require.False(t, r.Accepted)
		require.Equal(t, uint16(errs.TurnedAway), r.Ext.ReasonCode)
		require.Contains(t, r.Ext.Reason, fmt.Sprintf("try again in %v: the peer at 127.0.0.1:777", wait))
		_, r = come(port + 1)
		require.True(t, r.Accepted)
		w.after(wait - time.Millisecond)
		_, r = come(port)
		require.False(t, r.Accepted)
		w.after(time.Millisecond)
		dead = i < 10
		w.now = max(w.now, w.m.debt.others.opens())
		ok, _ := x.round() // the members repeat the one it cost
		require.True(t, ok)
		for _, i := range w.m.Snapshot().Clients { // the one of the other port
			if i.Phase != Accepted {
				w.leave(i.ID)
			}
		}
		if !dead {
			break
		}
	}
	good, r := come(port)
	w.ids[good] = r.UUID
	ok, _ := x.round()
	require.True(t, ok)
	require.Empty(t, w.m.outside)
	require.Contains(t, w.accepted(), good)
}

// The memory of addresses is bounded.
func TestMemoryOfAddressesIsBounded(t *testing.T) {
	w := newWorld(t, Config{})
	for i := range 3 * maxOutside {
		w.m.keepOut(&client{remote: addr("10.0.0.1:1"), listens: listeners{p2p: uint16(i)}}, strings.Repeat("x", 10))
	}
	require.Len(t, w.m.outside, maxOutside)
	require.Equal(t, "10.0.0.1:767", w.m.outside[maxOutside-1].addr)
}

// A round that the bound ends drops, of two neighbours, the one that more peers
// wait for, though it is the others that have not reported.
func TestSlowPeerGoesAndNotItsNeighbours(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
		cs := w.members(n, true)
		slow := w.join(0, false)
		for _, c := range cs {
			w.send(c, acceptVote)
		}
		near := map[ClientID]bool{}
		for _, c := range append(cs, slow) {
			for _, e := range want[wire.M2CP2PConnectionInfo](w, c).Peers {
				near[c] = near[c] || e.UUID == w.ids[slow]
			}
		}
		w.send(slow, connected)
		for _, c := range cs {
			if !near[c] {
				w.send(c, connected)
			}
		}
		w.after(12 * time.Second)
		w.isClosed(slow, "could not connect to it within 12s")
		require.Len(t, w.closed, 1)
		for _, c := range cs { // they notice, and report
			if near[c] {
				w.send(c, failedTo(w.ids[slow]))
			}
		}
		x := newWiring(w)
		ok, _ := x.round()
		require.True(t, ok)
		require.Equal(t, cs, w.accepted())
	}
	// Those who waited get the time once more, not for ever.
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	cs := w.members(3, true)
	slow := w.join(0, false)
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	w.send(slow, connected)
	w.send(cs[1], connected)
	w.after(23 * time.Second)
	require.Len(t, w.closed, 1)
	w.after(time.Second)
	w.isClosed(cs[0], "not established within 24s")
	w.isClosed(cs[2], "not established within 24s")
}

// A peer that leaves fails the part of its own group; the rings of the others stand, and
// they are not needed for the repetition.
func TestLeaverFailsItsGroupOnly_Q6(t *testing.T) {
	for _, native := range []bool{true, false} {
		w := newWorld(t, Config{VoteTimeout: time.Minute})
		a, b := w.member(1, native), w.member(1, native)
		x, y, z := w.member(2, native), w.member(2, native), w.member(2, native)
		n := w.join(1, native)
		for _, c := range []ClientID{a, b, x, y, z} {
			w.send(c, acceptVote)
		}
		for _, c := range []ClientID{a, b, n, x, y, z} {
			want[wire.M2CP2PConnectionInfo](w, c)
		}
		w.leave(z)
		if native {
			want[wire.M2CPeerDropped](w, x)
			want[wire.M2CPeerDropped](w, y)
		}
		for _, c := range []ClientID{a, b, n, x, y} {
			w.send(c, connected)
		}
		for _, c := range []ClientID{a, b, n} {
			v := want[wire.M2CP2PConnectionsEstablished](w, c)
			require.True(t, v.Success)
			require.Len(t, v.Ring, 3)
		}
		for _, c := range []ClientID{x, y} {
			require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		}
		// No member of group 1 votes; one of them is even at something else that needs all.
		w.send(a, wire.C2MOptimizeTopology{})
		w.send(x, acceptVote)
		w.quiet(a, b, n, x, y)
		w.send(y, acceptVote)
		for _, c := range []ClientID{x, y} {
			want[wire.M2CP2PConnectionInfo](w, c)
			w.send(c, connected)
		}
		for _, c := range []ClientID{x, y} {
			v := want[wire.M2CP2PConnectionsEstablished](w, c)
			require.True(t, v.Success)
			require.Len(t, v.Ring, 2)
		}
		w.quiet(a, b, n)
		// And the votes of all are those of all again.
		w.send(x, acceptVote)
		w.send(y, acceptVote)
		w.quiet(x, y)
	}
}

// A peer that could never be a neighbour of a PCCL peer is refused, and told why.
func TestFamiliesDoNotMixWithPCCL_Q38(t *testing.T) {
	const four, other, six = "10.0.0.1:1", "10.0.0.2:1", "[2001:db8::1]:1"
	for _, tc := range []struct {
		first        string
		firstNative  bool
		second       string
		secondNative bool
		host         string // announced by the second
		ok           bool
	}{
		{four, false, six, true, "", false},
		{four, false, six, true, "192.0.2.1", true},
		{four, false, six, false, "", false},
		{six, true, four, false, "", false},
		{six, true, six, false, "", false},
		{four, true, six, true, "", true},
		{six, true, four, true, "", true},
		{four, false, other, true, "", true},
		{four, true, "[::ffff:10.0.0.2]:1", false, "", true},
	} {
		w := newWorld(t, Config{})
		a := w.connectAt(tc.first)
		w.send(a, wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: tc.firstNative}})
		require.True(t, want[wire.M2CSessionRegistrationResponse](w, a).Accepted)
		b := w.connectAt(tc.second)
		p := wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: tc.secondNative}}
		if tc.host != "" {
			p.Ext.Host = addr(tc.host + ":0").Addr()
		}
		w.send(b, p)
		r := want[wire.M2CSessionRegistrationResponse](w, b)
		require.Equal(t, tc.ok, r.Accepted, "%+v", tc)
		if !tc.ok && tc.secondNative {
			require.Contains(t, r.Ext.Reason, "IPv4")
		}
		// In another group there is nothing to refuse.
		c := w.connectAt(tc.second)
		p.PeerGroup = 1
		w.send(c, p)
		require.True(t, want[wire.M2CSessionRegistrationResponse](w, c).Accepted)
	}
	// A stranger that waits decides nothing for those who come.
	w := newWorld(t, Config{})
	reg := func(at string, native bool) bool {
		c := w.connectAt(at)
		w.send(c, wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: native}})
		ok := want[wire.M2CSessionRegistrationResponse](w, c).Accepted
		return ok
	}
	require.True(t, reg("[2001:db8::1]:1", true))
	w.round(true)
	require.False(t, reg(four, false))
	require.True(t, reg(other, true))
	require.True(t, reg("[2001:db8::2]:1", true))
}

// A loopback host is believed from the same machine only: else a typing error of
// the first peer would keep all others out.
func TestLoopbackHostIsBelievedFromLoopback(t *testing.T) {
	w := newWorld(t, Config{})
	for i, at := range []string{"10.0.0.1:1", "10.0.0.2:1"} {
		c := w.connectAt(at)
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 7, Ext: wire.Ext{Native: true, Host: addr("127.0.0.1:0").Addr()}})
		r := want[wire.M2CSessionRegistrationResponse](w, c)
		require.True(t, r.Accepted, r.Ext.Reason)
		w.factOf("host")
		if i == 0 {
			w.round(true)
		}
	}
	w.send(1, acceptVote)
	require.Equal(t, addr("10.0.0.2:7"), want[wire.M2CP2PConnectionInfo](w, 1).Peers[0].Addr)
	w = newWorld(t, Config{})
	c := w.connectAt("127.0.0.1:1")
	w.send(c, wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: true, Host: addr("127.0.0.9:0").Addr()}})
	require.Equal(t, addr("127.0.0.9:0").Addr(), w.m.clients[0].at(0).Addr())
}

// The peer is told how long the master waits for its part of a round.
func TestRoundBoundIsAnnounced(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
	c := w.connectAt("127.0.0.1:1")
	w.send(c, wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: true}})
	require.Equal(t, 12*time.Second, want[wire.M2CSessionRegistrationResponse](w, c).Ext.RoundBound)
}

// An honest newcomer among many that take part in a round and that no peer
// reaches, or that say that they reach none, stays, whatever the others are
// and wherever it stands among them.
func TestHonestNewcomerAmongManyBadOnes(t *testing.T) {
	for _, native := range []bool{true, false} {
		for _, way := range []string{"in", "out", "both"} {
			for at := range 13 {
				w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
				cs := w.members(4, native)
				bad := map[ClientID]bool{}
				honest := ClientID(0)
				for i := range 13 {
					if c := w.join(0, native && i%2 == 0); i == at {
						honest = c
					} else {
						bad[c] = true
					}
				}
				x := newWiring(w)
				x.cut = func(from, to ClientID) bool { return way != "in" && bad[from] || way != "out" && bad[to] }
				for failed := 0; ; failed++ {
					require.Less(t, failed, 20, "no end: %v", w.closed)
					if ok, over := x.round(); ok && over {
						break
					}
				}
				for _, c := range append(cs, honest) {
					require.NotContains(t, w.closed, c, "native %v, %s, place %d", native, way, at)
				}
				require.Contains(t, w.accepted(), honest)
			}
		}
	}
}
