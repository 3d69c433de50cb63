package fsm

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// Who is in TLS knows only of members who has no certificate. So a newcomer without one is
// tried by those without, and one with a certificate tries those with: nobody is turned away
// for what a stranger to it cannot know.
func TestWhoTriesWhom(t *testing.T) {
	for _, members := range [][]string{{"gpu-0", ""}, {"", "gpu-1"}, {"gpu-0", "gpu-1", "", ""}, {"", "gpu-1", "", "gpu-3"}, {"", ""}, {"gpu-0", "gpu-1"}} {
		f := newField(t, 0)
		f.cut = func(from, to ClientID) bool {
			as := func(c ClientID) string { return f.w.m.conns[c].listens.as.Name }
			told := func(c ClientID) bool { return f.w.m.conns[c].round.in || slices.Contains(f.w.accepted(), c) }
			return as(from) != "" && as(to) == "" && !(told(from) && told(to))
		}
		tried := 0
		enter := func(name string) {
			f.w.name = name
			c := f.enter()
			asked := f.try()
			if slices.Contains(members, name) || name == "" && slices.Contains(members, "") {
				tried += len(asked)
			}
			if len(f.w.m.clients) == 1 {
				f.w.round(true)
				return
			}
			require.True(t, f.pending(), "%q after %q", name, members)
			ok, _ := f.round()
			require.True(t, ok)
			require.Contains(t, f.w.accepted(), c)
		}
		for _, name := range append(members, "", "gpu-9", "") {
			enter(name)
		}
		require.Empty(t, f.w.closed)
		require.NotZero(t, tried)
	}
}

// A peer that takes nothing in plaintext and one without a certificate are never in one
// group: the second one is refused, and hears why.
func TestPlaintextBesideThoseThatTakeNone(t *testing.T) {
	register := func(w *world, name string, strict bool, group uint32) wire.M2CSessionRegistrationResponse {
		w.name, w.strict = name, strict
		c := w.connectAt("127.0.0.1:9")
		w.send(c, wire.C2MRequestSessionRegistration{PeerGroup: group, P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{Native: true, Secured: w.secured()}})
		return want[wire.M2CSessionRegistrationResponse](w, c)
	}
	w := newWorld(t, Config{})
	require.True(t, register(w, "gpu-0", true, 0).Accepted)
	w.round(true)
	r := register(w, "", false, 0)
	require.False(t, r.Accepted)
	require.Contains(t, r.Ext.Reason, "it has no certificate, and gpu-0/")
	require.Contains(t, r.Ext.Reason, "security.mode")
	require.True(t, register(w, "gpu-1", true, 0).Accepted)
	require.True(t, register(w, "", false, 1).Accepted, "another group")

	w = newWorld(t, Config{})
	require.True(t, register(w, "", false, 0).Accepted)
	w.round(true)
	r = register(w, "gpu-0", true, 0)
	require.False(t, r.Accepted)
	require.Contains(t, r.Ext.Reason, "gpu-0 takes nothing in plaintext")
	require.True(t, register(w, "gpu-0", false, 0).Accepted)

	// Members that take both do not bring together two newcomers that cannot be neighbours.
	for _, order := range [][]string{{"", "gpu-1"}, {"gpu-1", ""}} {
		w = newWorld(t, Config{})
		require.True(t, register(w, "gpu-0", false, 0).Accepted)
		w.round(true)
		require.True(t, register(w, order[0], true, 0).Accepted)
		require.False(t, register(w, order[1], true, 0).Accepted, "%q", order)
	}
}

// A member without a certificate tries none of another group that take nothing in plaintext.
func TestWhoTakesNothingInPlaintextIsNotTriedSo(t *testing.T) {
	f := newField(t, 0)
	enter := func(group uint32, name string, strict bool) ClientID {
		f.w.name, f.w.strict = name, strict
		c := f.w.connectAt("127.0.0.1:9")
		f.port++
		f.w.send(c, wire.C2MRequestSessionRegistration{PeerGroup: group, P2PPort: f.port, Ext: wire.Ext{Native: true, Preflight: true, Secured: f.w.secured()}})
		require.True(t, want[wire.M2CSessionRegistrationResponse](f.w, c).Accepted)
		return c
	}
	strict := map[ClientID]bool{}
	f.cut = func(from, to ClientID) bool { return f.w.m.conns[from].listens.as.Name == "" && strict[to] }
	for _, in := range []struct {
		group uint32
		name  string
	}{{1, ""}, {1, ""}, {1, ""}, {0, "gpu-0"}, {0, "gpu-1"}, {2, "gpu-2"}} {
		c := enter(in.group, in.name, true)
		strict[c] = in.name != ""
		f.try()
		if len(f.w.m.clients) == 1 {
			f.w.round(true)
			continue
		}
		require.True(t, f.pending(), in)
		ok, _ := f.round()
		require.True(t, ok, in)
		require.Contains(t, f.w.accepted(), c)
	}
	require.Empty(t, f.w.closed)
}
