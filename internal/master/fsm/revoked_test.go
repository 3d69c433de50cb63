package fsm

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// The list in force is told to those that take it, and have a name: at their registration,
// and when it changes, in front of what becomes of those that it names.
func TestRevocationsAreTold(t *testing.T) {
	w := newWorld(t, Config{Revocations: []string{"one"}})
	hello := func(who Identity, takes bool) ClientID {
		w.next++
		id := w.next
		w.step(Connected{Client: id, Remote: netip.MustParseAddrPort("127.0.0.1:50000"), Who: who})
		w.step(PacketIn{Client: id, Packet: wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: wire.Ext{Native: true, Secured: wire.Secured{Revocations: takes}}}})
		return id
	}
	told := func(id ClientID) (lists []string) {
		for _, p := range w.inbox[id] {
			if l, ok := p.(wire.M2CRevocations); ok {
				lists = append(lists, l.DER)
			}
		}
		return lists
	}
	a, b, c := hello(Identity{Name: "gpu-0"}, true), hello(Identity{Name: "gpu-1"}, false), hello(Identity{}, true)
	require.Equal(t, []string{"one"}, told(a))
	w.step(Revocations{Lists: []string{"two", "three"}})
	w.step(Revoked{Client: a, Why: "gone"})
	require.Equal(t, []string{"one", "two", "three"}, told(a))
	require.Empty(t, told(b), "an older one")
	require.Empty(t, told(c), "in plaintext")
	require.Equal(t, []string{"two", "three"}, told(hello(Identity{Name: "gpu-2"}, true)))
}

// A client whose certificate is revoked hears so, and the others and the log with it,
// in one line; one that has not registered is closed.
func TestRevokedClients(t *testing.T) {
	const why = "certificate revoked of peer gpu-2: serial 7"
	w := newWorld(t, Config{})
	a, b := w.member(0, true), w.member(0, true)
	c := w.connectAt("127.0.0.1:50000")
	w.facts = nil
	w.step(Revoked{Client: b, Why: why})
	w.isClosed(b, why)
	require.Equal(t, why, want[wire.M2CPeerDropped](w, b).Reason)
	require.Equal(t, why, want[wire.M2CPeerDropped](w, a).Reason)
	require.Len(t, w.facts, 1)
	require.Contains(t, w.facts[0].Text, "is gone: "+why)
	require.True(t, w.facts[0].Warn)
	w.step(Revoked{Client: c, Why: why})
	w.isClosed(c, why)
	before := w.m.Snapshot()
	w.step(Revoked{Client: b, Why: why}) // it has left
	require.Equal(t, before, w.m.Snapshot())
	w.quiet(a)
}
