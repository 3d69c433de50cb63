package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// votesOfAll are the votes that a query for pending peers can meet; round says
// that they wait for a round.
var votesOfAll = map[string]struct {
	vote  wire.Packet
	round bool
}{
	"sync":       {syncVoteOf(0, 0, entry("k", 1)), false},
	"collective": {initiate(1), false},
	"accept":     {acceptVote, true},
	"optimize":   {wire.C2MOptimizeTopology{}, false},
	"establish":  {establishVote, true},
}

// A query for pending peers and another call of the group do not wait for each
// other: those who ask are answered as soon as no other can ask, yes where the
// others wait for a round and no where they wait for anything else, and then
// all can vote alike.
func TestQueryMeetsAnotherCall(t *testing.T) {
	for name, tc := range votesOfAll {
		for _, askFirst := range []bool{true, false} {
			for _, newcomer := range []bool{false, true} {
				t.Run(name, func(t *testing.T) {
					w := newWorld(t, Config{})
					cs := w.members(3, true)
					if newcomer {
						w.join(0, true)
					}
					if askFirst {
						w.send(cs[0], wire.C2MCheckPeersPending{})
					}
					w.send(cs[1], tc.vote)
					if !askFirst {
						w.send(cs[0], wire.C2MCheckPeersPending{})
					}
					w.quiet(cs...) // the third may still ask
					w.send(cs[2], wire.C2MCheckPeersPending{})
					for _, c := range []ClientID{cs[0], cs[2]} {
						require.Equal(t, tc.round, want[wire.M2CPeersPendingResponse](w, c).PeersPending)
						w.quiet(cs[1])
						w.send(c, tc.vote)
					}
					require.Empty(t, w.closed)
					for _, c := range cs {
						require.Len(t, w.inbox[c], 1, "the vote is not through")
					}
				})
			}
		}
	}
}

// A peer that asks late, when those who asked before have gone on, is told the same.
func TestLateQuery(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	w.join(0, true)
	w.send(cs[0], initiate(1))
	w.send(cs[1], initiate(1))
	w.quiet(cs...)
	w.send(cs[2], wire.C2MCheckPeersPending{})
	require.False(t, want[wire.M2CPeersPendingResponse](w, cs[2]).PeersPending)
	w.send(cs[2], initiate(1))
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
		w.send(c, complete(1, false))
	}
	w.finish(1, false, cs...)
	// Now all ask, and hear of the newcomer.
	for _, c := range cs {
		w.send(c, wire.C2MCheckPeersPending{})
	}
	for _, c := range cs {
		require.True(t, want[wire.M2CPeersPendingResponse](w, c).PeersPending)
	}
}

// A peer that works is waited for: it may ask when it is through.
func TestQueryWaitsForWhoWorks(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, true)
	for _, c := range cs {
		w.send(c, initiate(1))
	}
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
	}
	w.send(cs[0], wire.C2MCheckPeersPending{})
	w.send(cs[1], complete(1, false))
	w.quiet(cs...)
	w.send(cs[0], complete(1, false))
	w.finish(1, false, cs...)
	w.quiet(cs...)
	w.send(cs[1], wire.C2MCheckPeersPending{})
	for _, c := range cs {
		require.False(t, want[wire.M2CPeersPendingResponse](w, c).PeersPending)
	}
}

// Only the group that is held up is answered, unless the votes of all groups are.
func TestQueryOfGroups(t *testing.T) {
	w := newWorld(t, Config{})
	a := []ClientID{w.member(0, true), w.member(0, true)}
	b := []ClientID{w.member(1, true), w.member(1, true)}
	w.forget()
	for _, c := range []ClientID{a[0], b[0], b[1]} {
		w.send(c, wire.C2MCheckPeersPending{})
	}
	w.send(a[1], initiate(1))
	require.False(t, want[wire.M2CPeersPendingResponse](w, a[0]).PeersPending)
	w.quiet(b...)
	w.send(a[0], initiate(1))
	for _, c := range a {
		want[wire.M2CCollectiveCommsCommence](w, c)
		w.send(c, complete(1, false))
	}
	w.finish(1, false, a...)
	for _, c := range a {
		w.send(c, acceptVote)
	}
	for _, c := range b {
		require.True(t, want[wire.M2CPeersPendingResponse](w, c).PeersPending)
		w.send(c, acceptVote)
	}
	w.round(true)
}

// PCCL's peers among themselves wait as they do with the original master.
func TestQueryAmongPCCLPeers(t *testing.T) {
	for _, tc := range votesOfAll {
		w := newWorld(t, Config{})
		cs := w.members(2, false)
		w.send(cs[0], wire.C2MCheckPeersPending{})
		w.send(cs[1], tc.vote)
		w.quiet(cs...)
	}
}
