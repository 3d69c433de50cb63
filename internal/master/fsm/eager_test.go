package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/master/fsm/pace"
	"github.com/gopccl/gopccl/internal/wire"
)

// eagerMembers builds a group whose members can begin without a commence, and
// returns the epoch of the last round.
func (w *world) eagerMembers(n int) (cs []ClientID, epoch uint64) {
	w.t.Helper()
	w.eager = true
	for range n {
		old := w.accepted()
		c := w.join(0, true)
		for _, o := range old {
			w.send(o, acceptVote)
		}
		cs = append(cs, c)
		for _, c := range cs {
			p := want[wire.M2CP2PConnectionInfo](w, c)
			epoch = p.Ext.Epoch
			w.send(c, connected)
		}
		for _, c := range cs {
			require.True(w.t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		}
	}
	w.facts = nil
	return cs, epoch
}

// A group has an epoch, a new one with every round, if all its members can
// begin without a commence.
func TestEpoch(t *testing.T) {
	w := newWorld(t, Config{})
	_, first := w.eagerMembers(2)
	require.NotZero(t, first)
	w.eager = false
	old := w.accepted()
	c := w.join(0, true)
	for _, o := range old {
		w.send(o, acceptVote)
	}
	for _, c := range append(old, c) {
		require.Zero(t, want[wire.M2CP2PConnectionInfo](w, c).Ext.Epoch)
		w.send(c, connected)
	}
	for _, c := range append(old, c) {
		want[wire.M2CP2PConnectionsEstablished](w, c)
	}
	w.leave(c)
	for _, c := range old {
		w.pop(c) // it was dropped
		w.send(c, establishVote)
	}
	for _, c := range old {
		require.Greater(t, want[wire.M2CP2PConnectionInfo](w, c).Ext.Epoch, first)
	}
}

// Both votes may come at once; the answers come in the order of always.
func TestVotesAheadOfTheCommence(t *testing.T) {
	w := newWorld(t, Config{})
	cs, _ := w.eagerMembers(3)
	for range 2 { // the tag can be used again
		for _, c := range cs[:2] {
			w.send(c, initiate(4))
			w.send(c, complete(4, false))
		}
		w.quiet(cs...)
		w.send(cs[2], initiate(4))
		for _, c := range cs {
			want[wire.M2CCollectiveCommsCommence](w, c)
		}
		w.quiet(cs...)
		w.send(cs[2], complete(4, false))
		w.finish(4, false, cs...)
		require.Equal(t, Idle, w.state(cs[0]))
	}
	// The last one brings both as well.
	for _, c := range cs {
		w.send(c, initiate(4))
		w.send(c, complete(4, c == cs[1]))
	}
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
	}
	w.finish(4, true, cs...)
}

// A failure that was told ahead aborts the others when they perform.
func TestFailureAheadOfTheCommence(t *testing.T) {
	w := newWorld(t, Config{})
	cs, _ := w.eagerMembers(2)
	w.send(cs[0], initiate(4))
	w.send(cs[0], complete(4, true))
	w.send(cs[1], initiate(4))
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
		p := want[wire.M2CCollectiveCommsAbort](w, c)
		require.True(t, p.Aborted)
		require.Equal(t, uint16(errs.RankConnectionLost), p.ReasonCode)
	}
	w.quiet(cs...)
	w.send(cs[1], complete(4, true))
	w.released(4, cs...)
}

// Different arguments are what the error says, even if the data noticed first
// (quirk Q47).
func TestMismatchAheadOfTheCommence(t *testing.T) {
	w := newWorld(t, Config{})
	cs, _ := w.eagerMembers(2)
	other := initiate(4)
	other.Count++
	w.send(cs[0], initiate(4))
	w.send(cs[0], complete(4, true))
	w.send(cs[1], other)
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
		require.Equal(t, uint16(errs.Mismatch), want[wire.M2CCollectiveCommsAbort](w, c).ReasonCode)
	}
	w.send(cs[1], complete(4, false))
	w.released(4, cs...)
}

// A peer that ends twice, or cannot begin without a commence, breaks the rules.
func TestVotesAheadAgainstTheRules(t *testing.T) {
	w := newWorld(t, Config{})
	cs, _ := w.eagerMembers(2)
	w.send(cs[0], initiate(4))
	w.send(cs[0], complete(4, false))
	w.send(cs[0], complete(4, false))
	w.isClosed(cs[0], "completed without being performed")

	w = newWorld(t, Config{})
	plain := w.members(2, true)
	w.send(plain[0], initiate(4))
	w.send(plain[0], complete(4, false))
	w.isClosed(plain[0], "completed without being performed")

	w = newWorld(t, Config{})
	cs, _ = w.eagerMembers(2)
	w.send(cs[0], initiate(5))
	w.send(cs[0], complete(4, false))
	w.isClosed(cs[0], "completed without being performed")
}

// A peer that leaves does not keep the others from the verdict: all that are left
// have everything, or some have not.
func TestLeaveAheadOfTheCommence(t *testing.T) {
	for _, all := range []bool{true, false} {
		w := newWorld(t, Config{})
		cs, _ := w.eagerMembers(3)
		w.send(cs[0], initiate(4))
		w.send(cs[0], complete(4, false))
		w.send(cs[1], initiate(4))
		if all {
			w.send(cs[1], complete(4, false))
		}
		w.leave(cs[2])
		for _, c := range cs[:2] {
			want[wire.M2CPeerDropped](w, c)
			want[wire.M2CCollectiveCommsCommence](w, c)
		}
		if !all {
			for _, c := range cs[:2] {
				require.True(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
			}
			w.send(cs[1], complete(4, true))
			w.released(4, cs[:2]...)
			continue
		}
		w.finish(4, false, cs[:2]...)
	}
}

// A peer that waits elsewhere cannot join; a peer that ended ahead is let go with the rest.
func TestDeadlockAheadOfTheCommence(t *testing.T) {
	w := newWorld(t, Config{})
	cs, _ := w.eagerMembers(2)
	w.send(cs[0], initiate(4))
	w.send(cs[0], complete(4, true))
	w.send(cs[1], acceptVote)
	w.after(time.Minute)
	want[wire.M2CCollectiveCommsCommence](w, cs[0])
	require.True(t, want[wire.M2CCollectiveCommsAbort](w, cs[0]).Aborted)
	require.Equal(t, uint64(4), want[wire.M2CCollectiveCommsComplete](w, cs[0]).Tag)
}

// Work that was over before it was commenced tells nothing of a ring's speed.
func TestAheadIsNotTimed(t *testing.T) {
	for _, ahead := range []bool{true, false} {
		w := newWorld(t, Config{})
		cs, _ := w.eagerMembers(2)
		big := initiate(4)
		big.Count = pace.LeastBytes
		for range pace.Enough {
			for _, c := range cs {
				w.send(c, big)
				w.now += time.Second
				if ahead {
					w.send(c, complete(4, false))
				}
			}
			if !ahead {
				for _, c := range cs {
					w.send(c, complete(4, false))
				}
			}
		}
		p := w.m.groups[0].inForce.pace
		took, _ := p.Against(p)
		require.Equal(t, ahead, took == 0)
	}
}
