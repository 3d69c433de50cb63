package fsm

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// givenUp is a call that is given up before its answer comes, and the calls that
// follow.
type givenUp struct {
	begin  func(r *rig) CallID
	answer func(r *rig) // comes when the caller is gone
	next   func(t *testing.T, r *rig)
}

func (c givenUp) run(t *testing.T) {
	r := connected(t, true, 1, 2)
	given := c.begin(r)
	r.step(CallCancel{Call: given})
	r.failed(given, errs.Canceled)
	require.True(t, r.m.View().Connected)
	c.answer(r)
	c.next(t, r)
}

func ask(r *rig) CallID {
	c := r.newCall()
	r.step(CallPending{Call: c})
	return c
}

// A vote that is cast cannot be taken back, and neither can its result: the answer
// to a question that was given up is what the next call works with, as the others
// have got it as well.
func TestCanceledQueriesKeepTheirAnswers(t *testing.T) {
	for name, c := range map[string]givenUp{
		"asked again": {
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
		"then a round": {
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
		"then an operation": {
			begin: ask, answer: func(r *rig) { r.in(wire.M2CPeersPendingResponse{PeersPending: true}) },
			next: func(t *testing.T, r *rig) {
				op := r.launch(1)
				r.succeed(op, 1)
				r.ok(r.await(op))
				ask(r)
				r.sent(wire.C2MCheckPeersPending{}) // the others are behind the question, too
			},
		},
		"then a synchronisation": {
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
		"beside an operation that was there before": {
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
		"answered later": {
			begin: ask, answer: func(*rig) {},
			next: func(t *testing.T, r *rig) {
				c := ask(r)
				r.silent()
				r.in(wire.M2CPeersPendingResponse{PeersPending: true})
				require.True(t, r.ok(c).Pending)
			},
		},
	} {
		t.Run(name, c.run)
	}
}

// The round that follows an operation goes on without the caller that awaited it.
func TestCanceledAwaitsKeepTheirRound(t *testing.T) {
	givenUp{
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
	}.run(t)
}

// The other calls leave the run, so that there is no next one.
func TestCanceledVotesLeaveTheRun(t *testing.T) {
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

// The thing that a call waits for decides what giving it up means: a vote that is cast leaves
// the run, a question stays open for the next one that asks, and what has not begun
// is dropped.
func TestCancelCalls(t *testing.T) {
	t.Run("a vote cannot be taken back", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		c := r.update()
		r.step(CallCancel{Call: c})
		r.failed(c, errs.UpdateTopologyFailed, errs.Canceled)
		want[Disconnect](r)
	})
	t.Run("pending query", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		a, b := r.newCall(), r.newCall()
		r.step(CallPending{Call: a})
		r.sent(wire.C2MCheckPeersPending{})
		r.step(CallCancel{Call: a})
		r.failed(a, errs.Canceled)
		r.step(CallPending{Call: b})
		r.silent() // the vote stands
		r.in(wire.M2CPeersPendingResponse{PeersPending: true})
		require.True(t, r.ok(b).Pending)
	})
	t.Run("postponed calls", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		r.step(CallCancel{Op: op})
		u, l, w := r.update(), r.newCall(), r.newCall()
		r.step(CallCollective{Call: l, Op: 50, Tag: 2})
		r.step(CallAwait{Call: w, Op: 50})
		r.step(CallCancel{Call: u})
		r.failed(u, errs.Canceled)
		r.step(CallCancel{Call: w, Op: 50})
		r.failed(w, errs.Canceled)
		r.failed(l, errs.Canceled)
		s := r.sync("w")
		r.step(MasterGone{})
		r.failed(s, errs.InvalidUsage, errs.MasterLost)
		require.NotContains(t, r.finishes, OpID(50))
	})
}

// An operation that is given up is aborted for all, and its buffer restored; the
// caller hears of it when nothing touches the buffer any more.
func TestCancelOperations(t *testing.T) {
	t.Run("running operation", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		r.commence(1)
		r.step(CallCancel{Call: w, Op: op})
		want[AbortData](r)
		r.unanswered(w)
		r.step(DataEnded{Op: op, Err: errors.New("aborted")})
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
		r.failed(w, errs.Canceled)
		require.Equal(t, map[OpID]bool{op: true}, r.finishes)
		// The others run a round and count on this peer; calls wait for it.
		u := r.update()
		r.silent()
		r.abort(1, true)
		r.complete(1)
		r.sent(vote0)
		r.unanswered(u)
		r.round(1, 2)
		r.sent(vote1)
		r.round(1, 2)
		r.ok(u)
	})
	t.Run("running operation, then the session ends", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		r.commence(1)
		r.step(CallCancel{Call: w, Op: op})
		r.step(MasterGone{})
		r.unanswered(w)
		r.step(DataEnded{Op: op, Err: errors.New("aborted")})
		r.failed(w, errs.Canceled)
		require.Equal(t, map[OpID]bool{op: true}, r.finishes)
	})
	t.Run("operation before it commenced", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		r.step(CallCancel{Call: w, Op: op})
		r.failed(w, errs.Canceled)
		require.Equal(t, map[OpID]bool{op: true}, r.finishes)
		r.commence(1)
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
		_, started := has[StartData](r)
		require.False(t, started)
		r.abort(1, true)
		r.complete(1)
		r.sent(vote0)
		r.round(1, 2)
		require.True(t, r.m.View().Connected)
	})
	t.Run("operation before it was awaited", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		op := r.launch(1)
		r.step(CallCancel{Op: op})
		r.failed(r.await(op), errs.Canceled)
		r.failed(r.await(op), errs.InvalidUsage)
	})
	t.Run("operation in a group with PCCL peers", func(t *testing.T) {
		r := connected(t, false, 1, 2)
		op := r.launch(1)
		w := r.await(op)
		r.commence(1)
		r.step(CallCancel{Call: w, Op: op})
		want[AbortData](r)
		want[Disconnect](r)
		r.unanswered(w)
		r.step(DataEnded{Op: op, Err: errors.New("aborted")})
		r.failed(w, errs.Canceled)
		require.True(t, r.finishes[op])
		require.False(t, r.m.View().Connected)
	})
	t.Run("await in its round", func(t *testing.T) {
		r := connected(t, true, 1, 2, 3)
		op := r.launch(1)
		w := r.await(op)
		r.fail(op, 1)
		r.sent(vote0)
		r.step(CallCancel{Call: w, Op: op})
		r.failed(w, errs.Canceled, errs.RankConnectionLost)
		u := r.update()
		r.round(1, 2)
		r.sent(vote1)
		r.round(1, 2)
		r.ok(u)
	})
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
		want[Disconnect](r) // there is no bound on the wait for its verdict
		require.Contains(t, r.dones, w)
	})
}
