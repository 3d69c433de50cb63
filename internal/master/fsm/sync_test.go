package fsm

import (
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// verdicts takes everybody's M2C 7.
func (w *world) verdicts(cs ...ClientID) (vs []wire.M2CSyncSharedState) {
	w.t.Helper()
	for _, c := range cs {
		vs = append(vs, want[wire.M2CSyncSharedState](w, c))
	}
	return vs
}

func (w *world) confirm(cs ...ClientID) {
	w.t.Helper()
	for _, c := range cs {
		w.send(c, wire.C2MDistSharedStateComplete{})
	}
	for _, c := range cs {
		want[wire.M2CSyncSharedStateComplete](w, c)
	}
}

// Section 9.1: with an expected revision, an older one is outdated, a newer
// one costs the connection and casts no vote.
func TestRevisionRule_Section9_1(t *testing.T) {
	for _, tc := range []struct {
		rev              uint64
		kicked, outdated bool
	}{{2, false, false}, {1, false, true}, {0, false, true}, {3, true, false}, {4, true, false}, {math.MaxUint64, true, false}} {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		synchronise(w, cs, 0)
		synchronise(w, cs, 1)
		w.send(cs[0], syncVoteOf(tc.rev, 0, entry("k", 1)))
		if tc.kicked {
			w.isClosed(cs[0], "the next one is 2") // S1-24
			cs = cs[1:]
		}
		for _, c := range cs {
			if c != 1 {
				w.send(c, syncVoteOf(2, 0, entry("k", 1)))
			}
		}
		for i, v := range w.verdicts(cs...) {
			require.Equal(t, tc.outdated && i == 0, v.IsOutdated) // S1-24
			require.Empty(t, v.Keys)
		}
		w.confirm(cs...)
		require.EqualValues(t, 3, w.m.Snapshot().Groups[0].NextRevision)
	}
}

// Quirk Q48: a revision counts only if its sender may vote.
func TestRevisionOfWhoMayNotVote_Q48(t *testing.T) {
	for _, pccl := range []bool{false, true} {
		w := newWorld(t, Config{PCCLRevisionRule: pccl})
		cs := w.members(1, false)
		n := w.join(0, false)
		w.send(n, syncVoteOf(77, 0, entry("k", 1)))
		w.isClosed(n, "not allowed")
		synchronise(w, cs, 0)
	}
}

// Quirk Q70: in the first election the highest revision that may be handed out
// wins, in any order of the votes; the others are outdated, none is kicked for it.
func TestFirstElection_Q70(t *testing.T) {
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, order := range orders {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		votes := []wire.C2MSyncSharedState{
			syncVoteOf(50, 0, entry("k", 5)), syncVoteOf(0, 0, entry("k", 1)), syncVoteOf(0, 0, entry("k", 1)),
		}
		for _, i := range order {
			w.send(cs[i], votes[i])
		}
		vs := w.verdicts(cs...)
		require.False(t, vs[0].IsOutdated) // S1-23
		for _, v := range vs[1:] {
			require.True(t, v.IsOutdated)
			require.Equal(t, []string{"k"}, v.Keys)
			require.Equal(t, []uint64{5}, v.Hashes)
			require.Equal(t, addr("127.0.0.1:1001"), v.Distributor)
		}
		w.confirm(cs...)
		require.EqualValues(t, 51, w.m.Snapshot().Groups[0].NextRevision)
		synchronise(w, cs, 51)
	}
}

// A receive-only peer has no state to elect, however high its revision.
func TestFirstElectionReceiveOnly_Q70(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	w.send(cs[0], syncVoteOf(90, wire.ReceiveOnly, entry("k", 9)))
	w.send(cs[1], syncVoteOf(3, wire.SendOnly, entry("k", 3)))
	vs := w.verdicts(cs...)
	require.True(t, vs[0].IsOutdated)
	require.Equal(t, []uint64{3}, vs[0].Hashes)
	require.False(t, vs[1].IsOutdated)
}

// PCCL's way: the first voter with a revision fixes it.
func TestPCCLRevisionRule_Q70(t *testing.T) {
	w := newWorld(t, Config{PCCLRevisionRule: true})
	cs := w.members(3, false)
	w.send(cs[0], syncVoteOf(0, 0, entry("k", 1)))
	w.send(cs[1], syncVoteOf(5, 0, entry("k", 1)))
	w.send(cs[2], syncVoteOf(6, 0, entry("k", 1)))
	w.isClosed(cs[2], "the next one is 5")
	for _, v := range w.verdicts(cs[:2]...) {
		require.False(t, v.IsOutdated)
	}
}

// Section 9.2, step 1 and quirk Q71: no peer offers a state, or only an empty one.
func TestNoCandidate_Section9_2_Q71(t *testing.T) {
	for _, v := range []wire.C2MSyncSharedState{syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)), syncVoteOf(0, 0)} {
		w := newWorld(t, Config{})
		cs := w.members(2, false)
		other := w.member(1, false)
		for _, c := range cs {
			w.send(c, v)
		}
		for _, c := range cs {
			w.isClosed(c, "offers a shared state")
		}
		w.quiet(other)
	}
}

// Section 9.2, step 2: six fields make a mask; step 4 compares four of them
// and the hash.
func TestMasks_Section9_2(t *testing.T) {
	base := entry("k", 1)
	for name, tc := range map[string]struct {
		change   func(*wire.StateEntry)
		mismatch bool
		dirty    bool
	}{
		"key":          {func(e *wire.StateEntry) { e.Key = "x" }, true, false},
		"hash type":    {func(e *wire.StateEntry) { e.HashType = 1 }, true, false},
		"data type":    {func(e *wire.StateEntry) { e.DType = dtype.Int8 }, true, false},
		"inequality":   {func(e *wire.StateEntry) { e.AllowInequality = true }, true, false},
		"hash":         {func(e *wire.StateEntry) { e.Hash = 2 }, false, true},
		"num elements": {func(e *wire.StateEntry) { e.NumElements = 9 }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			cs := w.members(3, false)
			odd := base
			tc.change(&odd)
			w.send(cs[0], syncVoteOf(0, 0, base))
			w.send(cs[1], syncVoteOf(0, 0, base))
			w.send(cs[2], syncVoteOf(0, 0, odd))
			if tc.mismatch {
				w.isClosed(cs[2], "does not fit")
				cs = cs[:2]
			}
			for i, v := range w.verdicts(cs...) {
				require.Equal(t, tc.dirty && i == 2, v.IsOutdated) // S1-23
			}
		})
	}
}

// A list longer than the winner's is fine, a shorter one is a mismatch (quirk
// Q58); dirty keys come in the order of the mask.
func TestListLengths_Section9_2_Q58(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(5, false)
	full := []wire.StateEntry{entry("a", 1), entry("b", 2), entry("c", 3)}
	w.send(cs[0], syncVoteOf(0, 0, full...))
	w.send(cs[1], syncVoteOf(0, 0, full...))
	w.send(cs[2], syncVoteOf(0, 0, entry("a", 1), entry("b", 2), entry("c", 3), entry("d", 4)))
	w.send(cs[3], syncVoteOf(0, 0, entry("a", 9), entry("b", 2), entry("c", 8)))
	w.send(cs[4], syncVoteOf(0, 0, entry("a", 1), entry("b", 2)))
	w.isClosed(cs[4], `"c") is missing`)
	vs := w.verdicts(cs[:4]...)
	require.False(t, vs[0].IsOutdated || vs[1].IsOutdated || vs[2].IsOutdated)
	require.Equal(t, []string{"a", "c"}, vs[3].Keys)
	require.Equal(t, []uint64{1, 3}, vs[3].Hashes)
	require.Equal(t, []wire.HashType{0, 0}, vs[3].HashTypes)
}

// An outdated peer keeps its connection and gets its dirty keys up to the
// first mismatch.
func TestOutdatedPeerIsNotKicked_Section9_2(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	synchronise(w, cs, 0)
	w.send(cs[0], syncVoteOf(1, 0, entry("a", 1), entry("b", 2), entry("c", 3)))
	w.send(cs[1], syncVoteOf(0, 0, entry("a", 7), entry("x", 2), entry("c", 9)))
	vs := w.verdicts(cs...)
	require.True(t, vs[1].IsOutdated)
	require.Equal(t, []string{"a"}, vs[1].Keys)
}

// Ties: of equally many votes the mask whose first vote came last wins.
func TestTies_Section9_2(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(4, false)
	for _, i := range []int{2, 0, 3, 1} { // 2 and 3 hold hash 2, 0 and 1 hash 1
		w.send(cs[i], syncVoteOf(0, 0, entry("k", uint64(1+i/2))))
	}
	vs := w.verdicts(cs...)
	require.False(t, vs[0].IsOutdated || vs[1].IsOutdated)
	require.True(t, vs[2].IsOutdated && vs[3].IsOutdated) // S1-23
}

// The majority's content wins, whatever the order of the votes.
func TestMajority_Section9_2(t *testing.T) {
	for last := range 5 {
		w := newWorld(t, Config{})
		cs := w.members(5, false)
		for i := range cs {
			k := (i + last) % 5
			w.send(cs[k], syncVoteOf(0, 0, entry("k", uint64(k/3))))
		}
		for i, v := range w.verdicts(cs...) {
			require.Equal(t, i >= 3, v.IsOutdated) // S1-23
		}
	}
}

// Many newcomers that only receive cannot outvote two that only send.
func TestSendOnlyBeatsManyReceivers_Section9_2(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(12, false)
	for i, c := range cs {
		if i < 10 {
			w.send(c, syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)))
		} else {
			w.send(c, syncVoteOf(0, wire.SendOnly, entry("k", 2)))
		}
	}
	for i, v := range w.verdicts(cs...) {
		require.Equal(t, i < 10, v.IsOutdated) // S2-27
	}
}

// Step 8 and quirk Q14: requesters start at different holders, a receive-only
// peer hands out nothing if others can; gopccl peers learn all holders.
func TestDistributors_Section9_2_Q14(t *testing.T) {
	w := newWorld(t, Config{})
	var cs []ClientID
	for i := range 6 {
		cs = append(cs, w.member(0, i == 4))
	}
	for i, c := range cs {
		switch {
		case i == 0:
			w.send(c, syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)))
		case i < 3:
			w.send(c, syncVoteOf(0, wire.SendOnly, entry("k", 1)))
		default:
			w.send(c, syncVoteOf(0, wire.ReceiveOnly, entry("k", 2)))
		}
	}
	vs := w.verdicts(cs...)
	holders := []netip.AddrPort{addr("127.0.0.1:1002"), addr("127.0.0.1:1003")}
	require.Equal(t, noAddr, vs[0].Distributor)
	require.Equal(t, holders[0], vs[3].Distributor)
	require.Equal(t, holders[1], vs[4].Distributor)
	require.Equal(t, holders[0], vs[5].Distributor)
	require.Equal(t, []netip.AddrPort{holders[1], holders[0]}, vs[4].Ext.Distributors)
	require.True(t, vs[3].Ext.IsZero())
}

// Completion of section 9.3: M2C 8 to all when all have confirmed.
func TestCompletion_Section9_3(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	for i, c := range cs {
		w.send(c, syncVoteOf(0, 0, entry("k", uint64(i/2))))
	}
	w.verdicts(cs...)
	for i, c := range cs {
		w.quiet(cs...)
		w.send(c, wire.C2MDistSharedStateComplete{})
		if i < 2 {
			require.Equal(t, VoteSyncDone, w.state(c))
		}
	}
	for _, c := range cs {
		want[wire.M2CSyncSharedStateComplete](w, c)
	}
	require.EqualValues(t, 1, w.m.Snapshot().Groups[0].NextRevision)
	for _, c := range cs { // nothing of the state stays with the master
		require.Equal(t, syncVote{has: 1}, w.m.conns[c].vote) // S1-13
	}
}

// A peer that could not fetch the state says so and does not count as a holder; the
// others go on. If none holds the elected state, its revision is still to come.
func TestFailedTransfer(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	synchronise(w, cs, 0)
	w.send(cs[0], syncVoteOf(1, wire.SendOnly, entry("k", 5)))
	w.send(cs[1], syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)))
	w.send(cs[2], syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)))
	w.verdicts(cs...)
	w.leave(cs[0])
	cs = cs[1:]
	for _, c := range cs {
		want[wire.M2CPeerDropped](w, c)
		w.send(c, wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: true}})
	}
	for _, c := range cs {
		want[wire.M2CSyncSharedStateComplete](w, c)
	}
	require.Contains(t, w.factOf("state-lost").Text, "every holder left") // S1-25
	require.EqualValues(t, 1, w.m.Snapshot().Groups[0].NextRevision)
	// No member has revision 1: the calls fail, the expected revision stays ...
	for _, c := range cs {
		w.send(c, syncVoteOf(0, 0, entry("k", 1)))
	}
	for _, v := range w.verdicts(cs...) {
		require.True(t, v.IsOutdated)
		require.Equal(t, noAddr, v.Distributor)
		require.Empty(t, v.Ext.Distributors)
	}
	for _, c := range cs {
		w.send(c, wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: true}})
	}
	for _, c := range cs {
		want[wire.M2CSyncSharedStateComplete](w, c)
	}
	// ... until somebody brings it, from a checkpoint.
	n := w.member(0, true)
	for _, c := range cs {
		w.send(c, syncVoteOf(0, 0, entry("k", 1)))
	}
	w.send(n, syncVoteOf(1, 0, entry("k", 5)))
	for _, v := range w.verdicts(cs...) {
		require.True(t, v.IsOutdated)
		require.Len(t, v.Ext.Distributors, 1) // S1-26
		require.Equal(t, []uint64{5}, v.Hashes)
	}
	require.False(t, w.verdicts(n)[0].IsOutdated)
}

// One that failed among others that succeeded changes nothing for them.
func TestOneFailedTransfer(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	for i, c := range cs {
		w.send(c, syncVoteOf(0, 0, entry("k", uint64(i/2))))
	}
	w.verdicts(cs...)
	w.send(cs[2], wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: true}})
	require.Contains(t, w.factOf("sync").Text, "") // the election
	w.confirm(cs[:2]...)
	want[wire.M2CSyncSharedStateComplete](w, cs[2])
	require.EqualValues(t, 1, w.m.Snapshot().Groups[0].NextRevision)
}

// Groups synchronise by themselves.
func TestSyncIsPerGroup_Section9(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.member(0, false), w.member(1, false)
	synchronise(w, []ClientID{a}, 7)
	w.quiet(b)
	synchronise(w, []ClientID{b}, 0)
	synchronise(w, []ClientID{a}, 8)
	g := w.m.Snapshot().Groups
	require.Equal(t, []uint64{9, 1}, []uint64{g[0].NextRevision, g[1].NextRevision})
}

// Re-run elections do not repeat keys (quirk Q53).
func TestKeysOnce_Q53(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(4, false)
	synchronise(w, cs, 0)
	w.send(cs[0], syncVoteOf(0, 0, entry("k", 9)))
	w.send(cs[1], syncVoteOf(1, 0, entry("k", 1)))
	w.send(cs[2], syncVoteOf(1, 0, entry("k", 1)))
	w.send(cs[3], syncVoteOf(1, 0, entry("x", 1)))
	w.isClosed(cs[3], "does not fit")
	require.Equal(t, []string{"k"}, want[wire.M2CSyncSharedState](w, cs[0]).Keys)
}
