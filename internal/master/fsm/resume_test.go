package fsm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// ran builds a world whose group synchronised the revisions before next with
// the entry k=7, and was left by everybody.
func ran(t *testing.T, cfg Config, next uint64) *world {
	w := newWorld(t, cfg)
	cs := w.members(2, true)
	for rev := range next {
		for _, c := range cs {
			w.send(c, syncVoteOf(rev, 0, entry("k", 7)))
		}
		w.verdicts(cs...)
		w.endSync(cs, false)
	}
	for _, c := range cs {
		w.leave(c)
	}
	require.Empty(t, w.m.groups, "nothing else is kept of an empty group")
	return w
}

// resumes lets one new peer vote and returns whether its state was elected.
func (w *world) resumes(v wire.C2MSyncSharedState) bool {
	w.t.Helper()
	w.facts = nil
	c := w.member(0, true)
	w.send(c, v)
	p := w.verdicts(c)[0]
	if p.IsOutdated && !v.Ext.Torn {
		require.Equal(w.t, noAddr, p.Distributor)
		require.True(w.t, w.factOf("state-lost").Warn)
		require.Contains(w.t, p.Ext.Reason, "load the latest checkpoint")
		require.Contains(w.t, p.Ext.Reason, "master.lost_state to anew")
	}
	w.endSync([]ClientID{c}, p.IsOutdated)
	w.leave(c)
	return !p.IsOutdated
}

// A run whose peers have all left goes on from the state that it had, or
// a later one, and from nothing else.
func TestARunGoesOnFromWhereItWas(t *testing.T) {
	w := ran(t, Config{}, 3) // 0, 1, 2
	require.Contains(t, w.factOf("state-kept").Text, "revision 3, or of 2 as it was")
	for range 2 { // a refusal changes nothing
		require.False(t, w.resumes(syncVoteOf(0, 0, entry("k", 1))), "a fresh peer") // S2-55
		require.False(t, w.resumes(syncVoteOf(1, 0, entry("k", 7))), "an older checkpoint")
		require.False(t, w.resumes(syncVoteOf(2, 0, entry("k", 8))), "the same revision, another content") // S2-55
		require.False(t, w.resumes(torn(syncVoteOf(2, 0, entry("k", 7)))), "a mixture that looks like it")
	}
	require.True(t, w.resumes(syncVoteOf(2, 0, entry("k", 7))), "the state as it was") // S2-55
	require.True(t, w.resumes(syncVoteOf(3, 0, entry("k", 9))), "the next one")
	require.False(t, w.resumes(syncVoteOf(2, 0, entry("k", 7))), "which is what counts from now on")
	require.True(t, w.resumes(syncVoteOf(50, 0, entry("k", 5))), "a later one")
	require.False(t, w.resumes(syncVoteOf(49, 0, entry("k", 5))))
}

// A peer that only sends is dropped if its state is refused, and hears why. It is
// said once: no transfer has begun that could have failed.
func TestARefusedStateIsExplainedToWhoSendsOnly(t *testing.T) {
	w := ran(t, Config{}, 3)
	w.facts = nil
	c := w.member(0, true)
	w.send(c, syncVoteOf(0, wire.SendOnly, entry("k", 1)))
	why := want[wire.M2CPeerDropped](w, c).Reason
	require.Contains(t, why, "load the latest checkpoint")
	require.Contains(t, why, "master.lost_state to anew")

	w = ran(t, Config{}, 3)
	c = w.member(0, true)
	w.facts = nil
	w.send(c, syncVoteOf(0, 0, entry("k", 1)))
	w.verdicts(c)
	w.endSync([]ClientID{c}, true)
	for _, f := range w.facts {
		require.NotContains(t, f.Text, "every holder left")
	}
}

// Those who come back vote together: the latest state wins, the others fetch it.
func TestALaterStateWinsWhenARunGoesOn(t *testing.T) {
	w := ran(t, Config{}, 3)
	cs := w.members(4, true)
	for i, v := range []wire.C2MSyncSharedState{
		syncVoteOf(2, 0, entry("k", 7)), syncVoteOf(0, 0, entry("k", 1)),
		syncVoteOf(3, 0, entry("k", 9)), syncVoteOf(2, 0, entry("k", 8)),
	} {
		w.send(cs[i], v)
	}
	for i, p := range w.verdicts(cs...) {
		require.Equal(t, i != 2, p.IsOutdated)
	}
	w.endSync(cs, false)
	require.EqualValues(t, 4, w.m.Snapshot().Groups[0].NextRevision)
	// From then on it is a group as any other.
	w.send(cs[0], syncVoteOf(5, 0, entry("k", 9)))
	w.isClosed(cs[0], "the next one is 4")

	w = ran(t, Config{}, 3)
	cs = w.members(3, true)
	w.send(cs[0], syncVoteOf(2, 0, entry("k", 8)))
	w.send(cs[1], syncVoteOf(2, 0, entry("k", 7)))
	w.send(cs[2], syncVoteOf(1, 0, entry("k", 7)))
	for i, p := range w.verdicts(cs...) {
		require.Equal(t, i != 1, p.IsOutdated, "of equal revisions the content that it had wins")
	}
}

// The state that was elected last counts even if no member was left to confirm it.
func TestARunThatEndsInASynchronisation(t *testing.T) {
	for _, first := range []bool{false, true} {
		w, next := newWorld(t, Config{}), uint64(7)
		if !first {
			w, next = ran(t, Config{}, 3), 3
		}
		cs := w.members(2, true)
		w.send(cs[0], syncVoteOf(next, 0, entry("k", 9)))
		w.send(cs[1], syncVoteOf(0, 0, entry("k", 1)))
		w.verdicts(cs...)
		for _, c := range cs {
			w.leave(c)
		}
		require.False(t, w.resumes(syncVoteOf(0, 0, entry("k", 1))))
		require.True(t, w.resumes(syncVoteOf(next, 0, entry("k", 3))), "it may have been trained further")
		if !first {
			require.False(t, w.resumes(syncVoteOf(2, 0, entry("k", 7))))
		}
	}
}

// The operator's word lets a run begin anew: before, afterwards, or once.
func TestOperatorLetsAnEndedRunBeginAnew(t *testing.T) {
	fresh := syncVoteOf(0, 0, entry("k", 1))
	w := ran(t, Config{BeginAnew: true}, 3)
	require.True(t, w.resumes(fresh))
	require.Contains(t, w.factOf("state-reset").Text, "revision 3 given up")

	w = ran(t, Config{}, 3)
	require.False(t, w.resumes(fresh))
	w.step(LostState{BeginAnew: true})
	require.True(t, w.resumes(fresh))

	w = ran(t, Config{}, 3)
	w.step(ResetState{})
	require.Contains(t, w.factOf("state-reset").Text, "an operator asked for it")
	require.True(t, w.resumes(fresh))
	w = ran(t, Config{}, 3)
	c := w.member(0, true) // the group is there again
	w.step(ResetState{})
	w.send(c, fresh)
	require.False(t, w.verdicts(c)[0].IsOutdated)
}

// A run that has come no further than its first state is not a loss.
func TestAFreshRunIsForgotten(t *testing.T) {
	w := ran(t, Config{}, 1)
	require.Empty(t, w.m.ended)
	require.True(t, w.resumes(syncVoteOf(0, 0, entry("k", 1))))
}

// The memory of groups that have ended is bounded, and said when it goes.
func TestEndedGroupsAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	for id := range uint32(maxEnded + 3) {
		c := w.member(id, true)
		w.send(c, syncVoteOf(4, 0, entry("k", uint64(id))))
		w.verdicts(c)
		w.endSync([]ClientID{c}, false)
		w.facts = nil
		w.leave(c)
		delete(w.closed, c)
		if id >= maxEnded {
			require.Equal(t, id-maxEnded, w.factOf("state-reset").Group, "the one that ended first goes")
		}
	}
	require.Len(t, w.m.ended, maxEnded)
	require.Empty(t, w.m.groups)
	for id, free := range map[uint32]bool{2: true, 3: false, maxEnded: false} {
		c := w.member(id, true)
		w.send(c, syncVoteOf(0, 0, entry("k", 1)))
		require.Equal(t, !free, w.verdicts(c)[0].IsOutdated, fmt.Sprint(id))
		w.leave(c)
	}
}

func torn(v wire.C2MSyncSharedState) wire.C2MSyncSharedState {
	v.Ext.Torn = true
	return v
}

// A torn state is never elected: not as the highest, the most popular, the last
// or the only one, whatever revision is expected and strategy enforced.
func TestTornStateIsNeverElected(t *testing.T) {
	for name, prepare := range map[string]func() (*world, []ClientID, uint64){
		"first": func() (*world, []ClientID, uint64) {
			w := newWorld(t, Config{})
			return w, w.members(4, true), 0
		},
		"first by PCCL's rule": func() (*world, []ClientID, uint64) {
			w := newWorld(t, Config{PCCLRevisionRule: true})
			return w, w.members(4, true), 0
		},
		"expected": func() (*world, []ClientID, uint64) {
			w := newWorld(t, Config{})
			cs := w.members(4, true)
			synchronise(w, cs, 4)
			return w, cs, 5
		},
		"resumed": func() (*world, []ClientID, uint64) {
			w := ran(t, Config{}, 3)
			return w, w.members(4, true), 3
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, rev := range []uint64{0, 1, 3, 5, 99} { // that the torn ones give
				for last := range 2 {
					w, cs, next := prepare()
					sound := cs[last*3]
					if last == 0 {
						w.send(sound, syncVoteOf(next, 0, entry("k", 1)))
					}
					for _, c := range cs {
						if c != sound {
							w.send(c, torn(syncVoteOf(rev, 0, entry("k", 2))))
						}
					}
					if last == 1 {
						w.send(sound, syncVoteOf(next, 0, entry("k", 1)))
					}
					for _, c := range cs {
						require.NotContains(t, w.closed, c)
						p := want[wire.M2CSyncSharedState](w, c)
						require.Equal(t, c != sound, p.IsOutdated)
						if c != sound {
							require.Equal(t, []uint64{1}, p.Hashes)
							require.NotEqual(t, noAddr, p.Distributor)
						}
					}
				}
			}
		})
	}
}

// Where every state is torn no peer is thrown out: the reason says what helps,
// and a peer with a sound state ends it. A state that is expected stays so.
func TestOnlyTornStates(t *testing.T) {
	for _, cfg := range []Config{{}, {BeginAnew: true}} {
		for _, expected := range []bool{false, true} {
			w := newWorld(t, cfg)
			cs := w.members(3, true)
			next := uint64(0)
			if expected {
				synchronise(w, cs, 4)
				next = 5
			}
			w.facts = nil
			w.send(cs[0], torn(syncVoteOf(next, 0, entry("k", 1))))
			w.send(cs[1], torn(syncVoteOf(next, 0, entry("k", 2))))
			w.send(cs[2], syncVoteOf(next, wire.ReceiveOnly, entry("k", 1)))
			if cfg.BeginAnew {
				for _, f := range w.facts {
					require.NotEqual(t, "state-reset", f.Kind, "nobody would gain by it")
				}
			}
			for _, p := range w.verdicts(cs...) {
				require.True(t, p.IsOutdated)
				require.Equal(t, noAddr, p.Distributor)
				require.Empty(t, p.Keys)
				require.Contains(t, p.Ext.Reason, "those of 2 of 3 members are mixtures")
			}
			w.endSync(cs, true)
			require.Equal(t, next, w.m.Snapshot().Groups[0].NextRevision)
			n := w.member(0, true)
			for i, c := range cs {
				w.send(c, torn(syncVoteOf(next, 0, entry("k", uint64(i)))))
			}
			w.send(n, syncVoteOf(next, 0, entry("k", 9)))
			require.False(t, w.verdicts(n)[0].IsOutdated)
			for _, p := range w.verdicts(cs...) {
				require.Equal(t, []uint64{9}, p.Hashes)
			}
		}
	}
}

// Beside torn gopccl peers a PCCL peer that only receives is thrown out, as it is
// wherever no peer offers a state (quirk Q71); the others are told.
func TestOnlyTornStatesBesidePCCL_Q71(t *testing.T) {
	w := newWorld(t, Config{})
	c, p := w.member(0, true), w.member(0, false)
	w.send(c, torn(syncVoteOf(0, 0, entry("k", 1))))
	w.send(p, syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)))
	w.isClosed(p, "offers a shared state")
	require.True(t, want[wire.M2CSyncSharedState](w, c).IsOutdated)
}
