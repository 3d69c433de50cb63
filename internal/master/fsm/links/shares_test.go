package links

import (
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/wire"
)

func host(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

// at places peer 10h+k at host h; peers from 90 on are not known.
func at(e Edge) (from, to netip.Addr, ok bool) {
	where := func(u wire.UUID) int { return (int(u[3]) - 1) / 10 }
	f, t := where(e.From), where(e.To)
	return host(f), host(t), f != t && f < 9 && t < 9
}

func link(from, to int) Edge { return Edge{numbered(from), numbered(to)} }

func gave(from, to int, mbps float64) Measured { return Measured{link(from, to), mbps} }

// No host sends or receives twice in a round, nothing is lost but duplicates and
// links that are not between two known hosts.
func TestApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var edges []Edge
		for range rapid.IntRange(0, 40).Draw(t, "links") {
			peer := rapid.IntRange(10, 99)
			edges = append(edges, link(peer.Draw(t, "from"), peer.Draw(t, "to")))
		}
		want, got := map[Edge]bool{}, map[Edge]bool{}
		for _, e := range edges {
			if _, _, ok := at(e); ok {
				want[e] = true
			}
		}
		for _, r := range Apart(edges, at) {
			sends, receives := map[netip.Addr]bool{}, map[netip.Addr]bool{}
			require.NotEmpty(t, r)
			for _, e := range r {
				from, to, _ := at(e)
				require.False(t, sends[from] || receives[to] || got[e])
				sends[from], receives[to], got[e] = true, true, true
			}
		}
		require.Equal(t, want, got)
	})
}

// A set is what left or entered one host at the same time; single links and
// impossible rates are in none.
func TestTogether(t *testing.T) {
	round := []Measured{
		gave(10, 20, 50), gave(11, 30, 40), gave(12, 13, 900), // the last one within the host
		gave(21, 31, 7), gave(14, 40, math.Inf(1)), gave(15, 50, 0), gave(90, 10, 5),
	}
	require.Equal(t, []Joint{
		{Host: host(1), Way: Out, Links: []Measured{round[0], round[1]}, Total: 90},
		{Host: host(3), Way: In, Links: []Measured{round[1], round[3]}, Total: 47},
	}, Together(round, at))
}

// Of a host's sets one that gave the most and was divided evenly names the link
// to be measured alone.
func TestSuspects(t *testing.T) {
	sets := []Joint{
		{Host: host(1), Way: Out, Links: []Measured{gave(10, 20, 80), gave(11, 30, 20)}, Total: 100},
		{Host: host(1), Way: Out, Links: []Measured{gave(10, 40, 45), gave(11, 20, 51)}, Total: 96},
		{Host: host(1), Way: Out, Links: []Measured{gave(10, 50, 10), gave(11, 50, 10)}, Total: 20},
		{Host: host(1), Way: In, Links: []Measured{gave(20, 10, 5), gave(30, 11, 4)}, Total: 9},
	}
	require.Equal(t, []Edge{link(11, 20), link(20, 10)}, Suspects(sets))
	require.Empty(t, Suspects(nil))
}

// A link that gives clearly more alone than together with others shows that its
// host is shared, and how much it has.
func TestJudge(t *testing.T) {
	sets := []Joint{
		{Host: host(1), Way: Out, Links: []Measured{gave(10, 20, 50), gave(11, 30, 50)}, Total: 100},
		{Host: host(1), Way: Out, Links: []Measured{gave(10, 40, 60), gave(11, 20, 50)}, Total: 110},
	}
	for _, c := range []struct {
		alone Measured
		want  Verdict
		ok    bool
	}{
		{gave(10, 20, 100), Verdict{Shared: true, Together: 50, Most: 110}, true},
		{gave(10, 20, 120), Verdict{Shared: true, Together: 50, Most: 120}, true},
		{gave(10, 20, sharedBy*50), Verdict{Together: 50, Most: 110}, true},
		{gave(10, 50, 100), Verdict{}, false}, // in none of the sets
		{gave(10, 20, 0), Verdict{}, false},
		{gave(10, 20, math.Inf(1)), Verdict{}, false},
	} {
		v, ok := Judge(sets, host(1), Out, c.alone)
		require.Equal(t, c.ok, ok, "%v", c.alone)
		if ok {
			require.Equal(t, c.want, v)
		}
	}
	_, ok := Judge(sets, host(1), In, gave(10, 20, 100))
	require.False(t, ok)
}

// Links that a shared host has held back are to be measured again: the fast links of
// the rounds that used all that it has.
func TestHeldBack(t *testing.T) {
	sets := []Joint{
		{Host: host(1), Way: Out, Links: []Measured{gave(10, 20, 50), gave(11, 30, 48), gave(12, 30, 2)}, Total: 100},
		{Host: host(1), Way: Out, Links: []Measured{gave(10, 40, 10), gave(11, 20, 10)}, Total: 20},
		{Host: host(2), Way: In, Links: []Measured{gave(30, 20, 10), gave(40, 21, 10)}, Total: 20},
	}
	shared := func(j Joint) float64 {
		if j.Host == host(1) {
			return 100
		}
		return 0
	}
	require.Equal(t, []Edge{link(10, 20), link(11, 30)}, HeldBack(sets, shared, nil))
	require.Equal(t, []Edge{link(11, 30)}, HeldBack(sets, shared, []Measured{gave(10, 20, 99)}))
}

func TestShares(t *testing.T) {
	var s Shares
	require.Nil(t, s.Sharing([]netip.Addr{host(1), host(1)}))
	s.Set(host(3), In, 0)
	require.Empty(t, s, "what is not shared is not kept")
	s.Set(host(1), Out, 100)
	s.Set(host(2), In, 50)
	s.Set(host(1), In, 70)
	s.Set(host(1), In, 0)
	require.Equal(t, 100.0, s.Mbps(host(1), Out))
	require.Zero(t, s.Mbps(host(1), In))
	require.Zero(t, s.Mbps(host(3), Out))
	require.Nil(t, s.Sharing([]netip.Addr{host(1), host(2), host(3), host(3)}), "no two are at a host that is shared")
	require.Equal(t, &topo.Sharing{Host: []int{0, 1, 0, 2}, Out: []float64{100, 0, 0}, In: []float64{0, 50, 0}},
		s.Sharing([]netip.Addr{host(1), host(2), host(1), host(3)}))
	s.Keep(func(h netip.Addr) bool { return h == host(2) })
	require.Zero(t, s.Mbps(host(1), Out))
	require.Equal(t, 50.0, s.Mbps(host(2), In))
	require.Equal(t, "out in", Out.String()+" "+In.String())
}
