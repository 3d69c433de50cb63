package fsm

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// A vote that is cast cannot be taken back, and neither can its result: whatever
// a peer asks for and gives up, the answer that the others have got as well is
// what its next call works with.
func TestCanceledCallsKeepTheirAnswers(t *testing.T) {
	ask := func(r *rig) CallID {
		c := r.newCall()
		r.step(CallPending{Call: c})
		return c
	}
	for name, c := range map[string]struct {
		begin  func(r *rig) CallID
		answer func(r *rig) // comes when the caller is gone
		next   func(t *testing.T, r *rig)
	}{
		"pending, asked again": {
			begin: ask, answer: func(r *rig) { r.in(wire.M2CPeersPendingResponse{PeersPending: true}) },
			next: func(t *testing.T, r *rig) {
				c := ask(r)
				r.silent() // the others have theirs and do not ask
				require.True(t, r.ok(c).Pending)
				c = ask(r)
				r.sent(wire.C2MCheckPeersPending{}) // one answer for one vote
				r.in(wire.M2CPeersPendingResponse{})
				require.False(t, r.ok(c).Pending)
			},
		},
		"pending, then a round": {
			begin: ask, answer: func(r *rig) { r.in(wire.M2CPeersPendingResponse{PeersPending: true}) },
			next: func(t *testing.T, r *rig) {
				u := r.update()
				r.sent(vote1)
				r.round(1, 2)
				r.ok(u)
				ask(r)
				r.sent(wire.C2MCheckPeersPending{}) // what was true before the round is not now
			},
		},
		"pending, then an operation": {
			begin: ask, answer: func(r *rig) { r.in(wire.M2CPeersPendingResponse{PeersPending: true}) },
			next: func(t *testing.T, r *rig) {
				op := r.launch(1)
				r.succeed(op, 1)
				r.ok(r.await(op))
				ask(r)
				r.sent(wire.C2MCheckPeersPending{}) // the others are behind the question, too
			},
		},
		"pending, then a synchronisation": {
			begin: ask, answer: func(r *rig) { r.in(wire.M2CPeersPendingResponse{PeersPending: true}) },
			next: func(t *testing.T, r *rig) {
				c := r.sync("w")
				r.in(wire.M2CSyncSharedState{})
				r.in(wire.M2CSyncSharedStateComplete{})
				r.ok(c)
				ask(r)
				r.sent(wire.C2MCheckPeersPending{}) // the others are behind the question, too
			},
		},
		"pending, beside an operation that was there before": {
			begin: func(r *rig) CallID {
				op := r.launch(1)
				r.await(op)
				return ask(r)
			},
			answer: func(r *rig) { r.in(wire.M2CPeersPendingResponse{PeersPending: true}) },
			next: func(t *testing.T, r *rig) {
				r.succeed(r.op, 1)
				c := ask(r)
				r.silent()
				r.ok(c)
			},
		},
		"pending, answered later": {
			begin: ask, answer: func(*rig) {},
			next: func(t *testing.T, r *rig) {
				c := ask(r)
				r.silent()
				r.in(wire.M2CPeersPendingResponse{PeersPending: true})
				require.True(t, r.ok(c).Pending)
			},
		},
		"round after an operation": {
			begin: func(r *rig) CallID {
				op := r.launch(1)
				w := r.await(op)
				r.fail(op, 1)
				r.sent(vote0)
				return w
			},
			answer: func(r *rig) { r.round(1, 2) },
			next: func(t *testing.T, r *rig) {
				op := r.launch(2)
				r.succeed(op, 2)
				r.ok(r.await(op))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t, true, 1, 2)
			given := c.begin(r)
			r.step(CallCancel{Call: given})
			r.failed(given, errs.Canceled)
			require.True(t, r.m.View().Connected)
			c.answer(r)
			c.next(t, r)
		})
	}
	// The other calls leave the run, so that there is no next one.
	for name, begin := range map[string]func(r *rig) CallID{
		"update":   (*rig).update,
		"optimize": (*rig).optimize,
		"sync":     func(r *rig) CallID { return r.sync("w") },
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t, true, 1, 2)
			c := begin(r)
			r.step(CallCancel{Call: c})
			want[Disconnect](r)
			require.ErrorIs(t, r.failed(c, errs.CodeOf(r.dones[c].Err)), errs.Canceled)
			require.False(t, r.m.View().Connected)
		})
	}
}

// When an operation is given up decides what becomes of it: before this peer has
// reported, it is aborted for all; after it has reported that it is through, the
// verdict is not its own any more, and is what the call returns.
func TestCancelAroundTheReport(t *testing.T) {
	through := func(r *rig, op OpID) {
		r.commence(1)
		r.step(DataEnded{Op: op})
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 1})
	}
	t.Run("success of all", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		through(r, op)
		r.step(CallCancel{Call: w, Op: op})
		r.unanswered(w)
		require.NotContains(t, r.finishes, op)
		r.abort(1, false)
		r.step(CallCancel{Call: w, Op: op})
		r.unanswered(w)
		r.complete(1)
		r.ok(w)
		require.False(t, r.finishes[op], "it has the result, as the others have")
	})
	t.Run("failure of another", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		through(r, op)
		r.step(CallCancel{Call: w, Op: op})
		r.abort(1, true)
		r.complete(1)
		require.True(t, r.finishes[op])
		r.sent(vote0) // the round goes on without the caller
		r.failed(w, errs.Canceled, errs.RankConnectionLost)
		r.round(1, 2)
		op = r.launch(1)
		r.succeed(op, 1)
		r.ok(r.await(op))
	})
	t.Run("failure here", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		r.commence(1)
		r.step(DataEnded{Op: op, Err: errors.New("lost")})
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
		r.step(CallCancel{Call: w, Op: op})
		r.failed(w, errs.Canceled) // that all fail is known
		require.True(t, r.finishes[op])
	})
	t.Run("before the data phase has ended", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		r.commence(1)
		r.step(CallCancel{Call: w, Op: op})
		want[AbortData](r)
		r.step(DataEnded{Op: op}) // it was through at the same moment
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
		r.failed(w, errs.Canceled)
		require.True(t, r.finishes[op])
	})
	t.Run("success before a round that another operation needs", func(t *testing.T) {
		r := connected(t, true, 1, 2, 3)
		one := r.launch(1)
		op := r.launch(2)
		r.fail(one, 1)
		v := r.await(one)
		r.failed(v, errs.RankConnectionLost)
		w := r.await(op)
		r.succeed(op, 2)
		r.sent(vote0)
		r.unanswered(w)
		r.step(CallCancel{Call: w, Op: op})
		r.ok(w) // its result is there, and stays
		require.False(t, r.finishes[op])
		r.round(1, 2)
	})
	t.Run("end of the session", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		through(r, op)
		r.step(CallCancel{Call: w, Op: op})
		r.step(MasterGone{Err: errors.New("reset")})
		r.failed(w, errs.RankConnectionLost, errs.MasterLost)
		require.True(t, r.finishes[op])
	})
	t.Run("PCCL", func(t *testing.T) {
		r := connected(t, false, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		through(r, op)
		r.step(CallCancel{Call: w, Op: op})
		want[Disconnect](r) // nobody bounds the wait for its verdict
		require.Contains(t, r.dones, w)
	})
}
