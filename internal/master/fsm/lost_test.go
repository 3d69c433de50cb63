package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// lost builds a group of two whose state of revision 8 went with its last
// holder: both have revision 3, of different content.
func lost(t *testing.T, cfg Config) (*world, []ClientID) {
	w := newWorld(t, cfg)
	cs := w.members(1, true)
	synchronise(w, cs, 7)
	for range 2 {
		cs = append(cs, w.member(0, true))
	}
	w.leave(cs[0])
	cs = cs[1:]
	for _, c := range cs {
		want[wire.M2CPeerDropped](w, c)
	}
	w.facts = nil
	return w, cs
}

// attempt lets both synchronise with what they have.
func (w *world) attempt(cs []ClientID) []wire.M2CSyncSharedState {
	w.t.Helper()
	for i, c := range cs {
		w.send(c, syncVoteOf(3, 0, entry("k", uint64(i))))
	}
	return w.verdicts(cs...)
}

func (w *world) fails(cs []ClientID) {
	w.t.Helper()
	for _, v := range w.attempt(cs) {
		require.True(w.t, v.IsOutdated)
		require.Equal(w.t, noAddr, v.Distributor)
	}
	w.endSync(cs, true)
}

// begins synchronises with success; one of the two fetches from the other.
func (w *world) begins(cs []ClientID) {
	w.t.Helper()
	vs := w.attempt(cs)
	require.NotEqual(w.t, vs[0].IsOutdated, vs[1].IsOutdated)
	for _, v := range vs {
		require.Equal(w.t, v.IsOutdated, v.Distributor != noAddr)
	}
	w.endSync(cs, false)
	require.EqualValues(w.t, 4, w.m.Snapshot().Groups[0].NextRevision)
	require.Contains(w.t, w.factOf("state-reset").Text, "revision 8 given up")
	require.True(w.t, w.factOf("state-reset").Warn)
}

func (w *world) endSync(cs []ClientID, failed bool) {
	w.t.Helper()
	for _, c := range cs {
		w.send(c, wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: failed}})
	}
	for _, c := range cs {
		want[wire.M2CSyncSharedStateComplete](w, c)
	}
}

// When the last holder of the state has left, synchronisations fail for
// as long as its members stay, as with PCCL's master ...
func TestLostStateStaysLost(t *testing.T) {
	for _, pccl := range []bool{false, true} {
		w, cs := lost(t, Config{PCCLRevisionRule: pccl, BeginAnew: pccl})
		for range 3 {
			w.fails(cs) // S1-25
		}
	}
}

// ... until an operator gives it up: once,
func TestOperatorResetsALostState(t *testing.T) {
	w, cs := lost(t, Config{})
	w.fails(cs)
	w.step(ResetState{Group: 0})
	w.begins(cs)
	// It is for once.
	w.facts = nil
	w.fails(cs)
	// In the middle of a vote.
	w.send(cs[0], syncVoteOf(3, 0, entry("k", 0)))
	w.step(ResetState{Group: 0})
	w.send(cs[1], syncVoteOf(3, 0, entry("k", 0)))
	for _, v := range w.verdicts(cs...) {
		require.False(t, v.IsOutdated)
	}
	w.endSync(cs, false)
	// Where there is nothing to give up, nothing happens.
	before := w.m.Snapshot().Groups
	w.facts = nil
	w.step(ResetState{Group: 5})
	require.Contains(t, w.factOf("state-reset").Text, "expects none") // S1-25
	require.Equal(t, before, w.m.Snapshot().Groups)
}

// ... or by a choice that he makes before it happens, or afterwards.
func TestLostStateBeginsAnew(t *testing.T) {
	w, cs := lost(t, Config{BeginAnew: true})
	w.begins(cs)
	w, cs = lost(t, Config{})
	w.fails(cs)
	w.facts = nil
	w.step(LostState{BeginAnew: true})
	require.Contains(t, w.factOf("state-reset").Text, "start over") // S1-25
	w.facts = nil
	w.begins(cs)
	w.step(LostState{BeginAnew: true})
	w.step(LostState{})
	require.Contains(t, w.facts[len(w.facts)-1].Text, "wait for")
	w.fails(cs)

	// A peer that has what comes next is not passed over ...
	w, cs = lost(t, Config{BeginAnew: true})
	n := w.member(0, true)
	w.send(cs[0], syncVoteOf(3, wire.ReceiveOnly, entry("k", 1)))
	w.send(cs[1], syncVoteOf(8, wire.ReceiveOnly, entry("k", 2)))
	w.send(n, syncVoteOf(8, wire.SendOnly, entry("k", 3)))
	require.False(t, w.verdicts(n)[0].IsOutdated)
	for _, c := range cs {
		require.True(t, want[wire.M2CSyncSharedState](w, c).IsOutdated)
	}
	for _, f := range w.facts {
		require.NotEqual(t, "state-reset", f.Kind)
	}

	// ... but one that only receives does not offer what it says that it has.
	w, cs = lost(t, Config{BeginAnew: true})
	w.send(cs[0], syncVoteOf(3, wire.SendOnly, entry("k", 1)))
	w.send(cs[1], syncVoteOf(8, wire.ReceiveOnly, entry("k", 2)))
	require.False(t, want[wire.M2CSyncSharedState](w, cs[0]).IsOutdated)
	require.Equal(t, []uint64{1}, want[wire.M2CSyncSharedState](w, cs[1]).Hashes)
}
