package fsm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// reportsIn has a peer come back and say r, and returns the connection.
func (w *world) reportsIn(u wire.UUID, r wire.C2MReport) ClientID {
	w.t.Helper()
	c := w.comes(u, 0, [16]byte{})
	require.True(w.t, want[wire.M2CSessionRegistrationResponse](w, c).Accepted)
	w.obey(w.feed(PacketIn{c, r}))
	return c
}

// A report with numbers that nobody can have been told, or a ring that cannot be its
// sender's, ends the session of its sender, and of nobody else.
func TestImpossibleReports(t *testing.T) {
	three := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	const mine = uint64(4) << termShift
	for name, change := range map[string]func(*wire.C2MReport){
		"no master has given out: round":      func(r *wire.C2MReport) { r.Round.Decision = mine + 1 },
		"no master has given out: answer":     func(r *wire.C2MReport) { r.Query.Decision = 1 << 59 },
		"no master has given out: election":   func(r *wire.C2MReport) { r.Call.Decision = mine + 1 },
		"no master has given out: end":        func(r *wire.C2MReport) { r.Optimized = mine + 1 },
		"no master has given out: sync":       func(r *wire.C2MReport) { r.Synced = mine + 1 },
		"no master has given out: ring":       func(r *wire.C2MReport) { r.Change.Taken = mine + 1 },
		"no master has given out: next ring":  func(r *wire.C2MReport) { r.Change.Prepares = mine + 1 },
		"no master has given out: mesh":       func(r *wire.C2MReport) { r.Mesh.Change = mine + 1 },
		"no master has given out: collective": func(r *wire.C2MReport) { r.Ops = []wire.ReportedOp{opOf(wire.OpRunning, mine)} },
		"no master has given out: former":     func(r *wire.C2MReport) { r.Ops = []wire.ReportedOp{{Vote: initiate(7), After: mine + 1}} },
		"no master has given out: verdict":    func(r *wire.C2MReport) { r.Verdicts = []wire.ReportedVerdict{{Tag: 7, Seq: mine}} },
		"a ring without it":                   func(r *wire.C2MReport) { r.Round.Ring = three[:2] },
		"one member twice":                    func(r *wire.C2MReport) { r.Round.Ring = append(three[:3:3], three[0]) },
	} {
		w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(three...)})
		a, b := w.returns(three[0], stood(three...)), w.returns(three[1], stood(three...))
		r := stood(three...)
		change(&r)
		c := w.reportsIn(three[2], r)
		why, _, _ := strings.Cut(name, ":")
		require.Contains(t, want[wire.M2CPeerDropped](w, c).Reason, why, name)
		w.isClosed(c, why)
		w.quiet(a, b)
		require.True(t, w.m.recovery.on, "%s: the session may come back, and tell the truth", name)
	}
}

// A round that two members deny, that nobody confirms and that the registry does not have is
// no round, in whatever order the reports come. One that all know of is: the registry may be an old copy.
func TestRoundsAreBelievedTogether(t *testing.T) {
	three := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	far := stood(three...)
	far.Round.Decision = 4<<termShift - 1
	for liar := range three {
		w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(three...)})
		var cs []ClientID
		for i, u := range three {
			r := stood(three...)
			if i == liar {
				r = far
			}
			cs = append(cs, w.reportsIn(u, r))
		}
		for i, c := range cs {
			want[wire.M2CResumed](w, c)
			if i == liar {
				require.Contains(t, want[wire.M2CPeerDropped](w, c).Reason, "neither the registry nor the other members")
				continue
			}
			w.quiet(c)
		}
		cs[liar] = w.reportsIn(three[liar], stood(three...))
		require.False(t, w.m.recovery.on)
		require.Len(t, w.accepted(), 3)
	}
	w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(three...)})
	for _, u := range three {
		w.reportsIn(u, far)
	}
	require.Len(t, w.accepted(), 3)
}

// Without an authority a master follows the term that peers know, but not to the end of all
// terms because of one of them.
func TestTermsAreFollowedWithinBounds(t *testing.T) {
	w := heir(t, Config{})
	r := stood(two...)
	r.Query.Decision = 1 << 59
	w.isClosed(w.reportsIn(two[0], r), "no master has given out")
	w.leave(w.comes(two[0], MaxTerm-1, [16]byte{}))
	require.Less(t, w.m.cfg.Term, uint32(mostFollowed))
	r.Query.Decision = 7<<termShift + 3
	w.returns(two[0], r)
	require.Equal(t, uint32(8), w.m.cfg.Term)
}

// Nobody who was given up comes back with those who say once more what they hold.
func TestWhoWasGivenUpStaysOut(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	r := w.standing(0, 0)
	gone := w.ids[cs[2]]
	w.leave(cs[2])
	w.after(w.m.cfg.Linger)
	require.Len(t, w.accepted(), 2)
	for _, c := range cs {
		w.inbox[c] = nil
	}
	w.returnsTo(cs[:2], 0)
	late := w.comes(gone, 0, [16]byte{})
	want[wire.M2CSessionRegistrationResponse](w, late)
	w.send(late, r)
	w.isClosed(late, "went on without the session")
}

// A revision that two members deny and nobody confirms is not believed, unless the registry
// knows of it. One that others had in hand is.
func TestRevisionsAreBelievedTogether(t *testing.T) {
	three := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	next := func(change func(rs []wire.C2MReport)) uint64 {
		w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(three...)}) // revision 3 is next
		rs := []wire.C2MReport{stood(three...), stood(three...), stood(three...)}
		for i := range rs {
			rs[i].NextRevision = 3
		}
		change(rs)
		for i, u := range three {
			w.reportsIn(u, rs[i])
		}
		require.False(t, w.m.recovery.on)
		return w.m.Snapshot().Groups[0].NextRevision
	}
	require.EqualValues(t, 3, next(func(rs []wire.C2MReport) { rs[0].NextRevision = 1 << 63 }))
	require.EqualValues(t, 5, next(func(rs []wire.C2MReport) { rs[0].NextRevision, rs[1].NextRevision = 5, 5 }))
	require.EqualValues(t, 5, next(func(rs []wire.C2MReport) {
		rs[0].NextRevision, rs[1].NextRevision = 5, 4
		rs[0].Synced = 12
		for i := range rs[1:] {
			c := &rs[1+i].Call
			c.Step, c.Decision, c.Vote = wire.StepSynced, 12, syncVoteOf(4, 0, entry("x", 1))
			c.Verdict = wire.M2CSyncSharedState{Distributor: noAddr, Ext: wire.Ext{Resuming: wire.Resuming{NextRevision: 5}}}
		}
	}))
}

// Nor is an election of another revision than the group expected.
func TestElectionsThatCannotHaveBeen(t *testing.T) {
	w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(two...)})
	a := w.returns(two[0], stood(two...))
	r := stood(two...)
	r.Call = wire.ReportedCall{Step: wire.StepFetching, Decision: 12, Vote: syncVoteOf(1<<62, 0, entry("x", 1))}
	r.Call.Verdict = wire.M2CSyncSharedState{Distributor: noAddr, Ext: wire.Ext{Resuming: wire.Resuming{NextRevision: 1<<62 + 1}}}
	b := w.reportsIn(two[1], r)
	w.isClosed(b, "did not expect")
	require.Equal(t, two[1], want[wire.M2CPeerDropped](w, a).UUID)
	require.EqualValues(t, 3, w.m.Snapshot().Groups[0].NextRevision)
}

// The bytes that a client can have kept while others are waited for are bounded.
func TestHeldBytesAreBounded(t *testing.T) {
	w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(two...)})
	a := w.returns(two[0], stood(two...))
	large := wire.C2MSyncSharedState{Entries: []wire.StateEntry{{Key: strings.Repeat("k", wire.MaxPacket/8)}}}
	for range 7 {
		w.send(a, large)
	}
	w.quiet(a)
	w.send(a, large)
	w.isClosed(a, "too large")
	require.Empty(t, w.m.recovery.held)
}
