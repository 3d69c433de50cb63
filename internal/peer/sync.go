package peer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/mesh"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/sharedstate"
	"github.com/gopccl/gopccl/internal/wire"
)

// SharedState is what a synchronisation begins with, and what it leaves: of a
// core.SharedState, without what that does beside the session. Revision and Torn
// are changed only by calls that were not refused.
type SharedState struct {
	Revision uint64
	Tensors  []sharedstate.Tensor
	Torn     []string // keys of tensors that were overwritten and not confirmed
}

// SyncOptions and SyncInfo are those of core, and documented there.
type (
	SyncOptions struct {
		Strategy wire.Strategy
		Progress func(done, total uint64, key string)
	}
	SyncInfo struct {
		TxBytes, RxBytes uint64
		Outdated         bool
	}
)

// syncWork is a CallSync's share of the shell.
type syncWork struct {
	revision uint64
	tensors  []sharedstate.Tensor
	legacy   bool
	progress func(done, total uint64, key string)

	fetch sync.WaitGroup // runs while a Fetch may write to tensors
	mu    sync.Mutex
	win   *sharedstate.Window // in which the tensors are handed out
	rx    uint64
	wrote *errs.Incomplete // what the Fetch has done to the tensors, nil: nothing
}

// takeBack ends what a Serve effect has begun, if one has, and returns how many
// bytes were handed out. It waits until the tensors are no longer read, so no step may
// call it.
func (s *Session) takeBack(w *syncWork) (sent uint64) {
	w.mu.Lock()
	win := w.win
	w.mu.Unlock()
	s.sharing.Shut(win)
	if win != nil {
		sent = win.TxBytes()
	}
	return sent
}

// SyncSharedState is core.Communicator.SyncSharedState. st and its slices are the
// session's until it returns.
func (s *Session) SyncSharedState(ctx context.Context, st *SharedState, opt SyncOptions) (SyncInfo, error) {
	if err := st.check(opt); err != nil {
		return SyncInfo{}, err
	}
	if !s.syncing.CompareAndSwap(false, true) {
		return SyncInfo{}, errs.New(errs.Busy, opSync, errors.New("another call of it is running"))
	}
	defer s.syncing.Store(false)
	workers := s.opt.Hash.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	w := &syncWork{
		revision: st.Revision, tensors: st.Tensors,
		legacy: !s.View().Native, progress: opt.Progress,
	}
	torn := st.isTorn()
	_, err := s.call(ctx, opSync, nil, func(id fsm.CallID) fsm.Event {
		return fsm.AskSync{Call: id, Strategy: opt.Strategy, Torn: torn}
	})
	if err != nil {
		return SyncInfo{}, st.unconfirmed(w, err)
	}
	entries, err := s.hashed(ctx, w, workers)
	if err != nil {
		return SyncInfo{}, st.unconfirmed(w, err)
	}
	d, err := s.call(ctx, opSync, w, func(id fsm.CallID) fsm.Event {
		return fsm.CallSync{Call: id, Revision: st.Revision, Strategy: opt.Strategy, Torn: torn, Entries: entries}
	})
	// The tensors are not read or written once the call has returned, however it ended.
	w.fetch.Wait()
	sent := s.takeBack(w)
	if err != nil {
		return SyncInfo{}, st.unconfirmed(w, err)
	}
	st.Revision, st.Torn = d.Sync.Revision, nil
	w.mu.Lock()
	defer w.mu.Unlock()
	return SyncInfo{TxBytes: sent, RxBytes: w.rx, Outdated: d.Sync.Outdated}, nil
}

const opSync = "sync shared state"

// check refuses what cannot be a shared state.
func (st *SharedState) check(opt SyncOptions) error {
	const name = opSync
	if st == nil || len(st.Tensors) == 0 {
		return errs.New(errs.InvalidArgument, name, fmt.Errorf("the shared state has no tensors"))
	}
	if opt.Strategy > wire.SendOnly {
		return errs.New(errs.InvalidArgument, name, fmt.Errorf("unknown strategy %d", opt.Strategy))
	}
	seen := make(map[string]bool, len(st.Tensors))
	for _, t := range st.Tensors {
		switch {
		case seen[t.Key]:
			return errs.New(errs.InvalidArgument, name, fmt.Errorf("two tensors are called %q", t.Key))
		case !t.DType.Valid():
			return errs.New(errs.InvalidArgument, name, fmt.Errorf("tensor %q has unknown element type %d", t.Key, uint8(t.DType)))
		case t.Bytes()%t.DType.Size() != 0:
			return errs.New(errs.InvalidArgument, name,
				fmt.Errorf("tensor %q: %d bytes are not a whole number of %v elements", t.Key, t.Bytes(), t.DType))
		case !t.Device.None() && len(t.Data) > 0:
			return errs.New(errs.InvalidArgument, name, fmt.Errorf("tensor %q lies on the host and on a device", t.Key))
		}
		seen[t.Key] = true
	}
	return nil
}

// hashed describes the tensors for the vote; a panic while it reads them is an
// error of this call, before the others count on it. Work of the trainer that
// never ends may stand before a tensor on a device: the end of ctx or of the
// session ends the wait.
func (s *Session) hashed(ctx context.Context, w *syncWork, workers int) (entries []wire.StateEntry, err error) {
	defer errs.Catch(opSync, func(crash *errs.Error) {
		s.log.Error("panic while tensors were hashed", "error", crash, "stack", errs.StackOf(crash))
		err = crash
	})
	given := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.ctx, func() { stop(errSessionOver) })()
	entries, err = sharedstate.Entries(ctx, w.tensors, w.legacy, s.hasher, workers)
	if errors.Is(err, errs.Canceled) && given.Err() == nil {
		err = s.explain(given, opSync, errs.New(errs.Closed, opSync, nil).WithHint("connect again with a new communicator"))
	}
	return entries, err
}

func (s *Session) startFetch(e fsm.Fetch) {
	ctx, stop := context.WithCancelCause(s.ctx)
	s.mu.Lock()
	c := s.calls[e.Call]
	if c != nil {
		c.stop = func() { stop(errSessionOver) }
		c.sync.fetch.Add(1) // before the call can be answered
	}
	s.mu.Unlock()
	if c == nil {
		stop(nil)
		s.box.post(fsm.Fetched{Call: e.Call, Err: context.Canceled})
		return
	}
	w := c.sync
	want := make([]sharedstate.Want, len(e.Keys))
	for i, k := range e.Keys {
		want[i] = sharedstate.Want{Key: k, Hash: e.Hashes[i], HashType: e.HashTypes[i]}
	}
	s.spawn(func() {
		defer stop(nil)
		defer w.fetch.Done()
		s.takeBack(w) // tensors that are being overwritten are not handed out
		res, err := w.transfer(ctx, sharedstate.FetchConfig{
			Distributors: mesh.Dialable(e.Distributors), Want: want, Tensors: w.tensors, Legacy: w.legacy,
			DialTimeout: s.opt.DialTimeout, StallTimeout: s.opt.UserTimeout, Progress: s.fetching(w.progress), Dial: s.names.fetching(s.mesh.Dial),
			Hasher: s.hasher, Workers: s.opt.Hash.Workers,
		})
		s.box.post(fsm.Fetched{Call: e.Call, Revision: res.Revision, Err: err})
	})
}

// fetching counts what is fetched, and passes it on to progress if that is not nil.
func (s *Session) fetching(progress func(done, total uint64, key string)) func(done, total uint64, key string) {
	last := uint64(0)
	return func(done, total uint64, key string) {
		// A tensor that was found wrong is fetched again, and counts again.
		s.fetched.Add(max(done, last) - last)
		last = done
		if progress != nil {
			progress(done, total, key)
		}
	}
}

// moved is how many bytes of tensors the session has sent and received in
// collectives, and fetched of shared states.
func (s *Session) moved() uint64 {
	d := s.engine.Stats()
	return d.TxBytes + d.RxBytes + s.fetched.Load()
}
