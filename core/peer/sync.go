package peer

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/peer/fsm"
	"github.com/gopccl/gopccl/core/sharedstate"
	"github.com/gopccl/gopccl/core/wire"
)

// SharedState is what a group keeps equal: named tensors and the revision of
// their content. The tensors' memory stays the caller's; the session reads and
// may overwrite it only inside SyncSharedState.
type SharedState struct {
	Revision uint64
	Tensors  []sharedstate.Tensor
}

// SyncOptions of one synchronisation.
type SyncOptions struct {
	Strategy wire.Strategy
	// Progress is called from one goroutine while content is fetched: bytes
	// received and expected, and the key being received. nil: none.
	Progress func(done, total uint64, key string)
}

// SyncInfo is what a synchronisation moved: payload bytes sent to others and
// received, and whether this peer was outdated.
type SyncInfo struct {
	TxBytes, RxBytes uint64
	Outdated         bool
}

// syncWork is a CallSync's share of the shell.
type syncWork struct {
	revision uint64
	tensors  []sharedstate.Tensor
	legacy   bool
	progress func(done, total uint64, key string)

	fetch sync.WaitGroup // runs while a Fetch may write to tensors
	mu    sync.Mutex
	rx    uint64
}

// SyncSharedState makes st equal on all peers of the group (control spec,
// section 9): every accepted peer of the group must call it with the same keys
// in the same order. The trainer raises st.Revision by one before each call
// after the first; a peer that was outdated gets content and revision of the
// elected state. On errs.TransferFailed or errs.HashMismatch the tensors may be
// partly overwritten and the revision is unchanged: sync again before use.
// Cancelling ctx leaves the run.
func (s *Session) SyncSharedState(ctx context.Context, st *SharedState, opt SyncOptions) (SyncInfo, error) {
	const name = "sync shared state"
	if st == nil || len(st.Tensors) == 0 {
		return SyncInfo{}, errs.New(errs.InvalidArgument, name, fmt.Errorf("the shared state has no tensors"))
	}
	if opt.Strategy > wire.SendOnly {
		return SyncInfo{}, errs.New(errs.InvalidArgument, name, fmt.Errorf("unknown strategy %d", opt.Strategy))
	}
	seen := make(map[string]bool, len(st.Tensors))
	for _, t := range st.Tensors {
		switch {
		case seen[t.Key]:
			return SyncInfo{}, errs.New(errs.InvalidArgument, name, fmt.Errorf("two tensors are called %q", t.Key))
		case !t.DType.Valid():
			return SyncInfo{}, errs.New(errs.InvalidArgument, name, fmt.Errorf("tensor %q has unknown element type %d", t.Key, uint8(t.DType)))
		case t.Bytes()%t.DType.Size() != 0:
			return SyncInfo{}, errs.New(errs.InvalidArgument, name,
				fmt.Errorf("tensor %q: %d bytes are not a whole number of %v elements", t.Key, t.Bytes(), t.DType))
		case !t.Device.None() && len(t.Data) > 0:
			return SyncInfo{}, errs.New(errs.InvalidArgument, name, fmt.Errorf("tensor %q lies on the host and on a device", t.Key))
		}
		seen[t.Key] = true
	}
	workers := s.opt.HashWorkers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	w := &syncWork{
		revision: st.Revision, tensors: append([]sharedstate.Tensor(nil), st.Tensors...),
		legacy: !s.View().Native, progress: opt.Progress,
	}
	entries, err := s.hashed(w, workers)
	if err != nil {
		return SyncInfo{}, err
	}
	// Nobody reads the tensors once the call has returned, whatever its end.
	defer s.state.Shut()
	r, err := s.call(ctx, name, 0, w, func(id fsm.CallID) fsm.Event {
		return fsm.CallSync{Call: id, Revision: st.Revision, Strategy: opt.Strategy, Entries: entries}
	})
	w.fetch.Wait()
	if err != nil {
		return SyncInfo{}, err
	}
	s.state.Shut()
	res := r.(fsm.SyncResult)
	st.Revision = res.Revision
	w.mu.Lock()
	defer w.mu.Unlock()
	return SyncInfo{TxBytes: s.state.TxBytes(), RxBytes: w.rx, Outdated: res.Outdated}, nil
}

// hashed describes the tensors for the vote; a panic while it reads them is an
// error of this call, before the others count on it.
func (s *Session) hashed(w *syncWork, workers int) (entries []wire.StateEntry, err error) {
	defer errs.Catch("sync shared state", func(crash *errs.Error) {
		s.log.Error("panic while tensors were hashed", "error", crash, "stack", errs.StackOf(crash))
		err = crash
	})
	return sharedstate.Entries(w.tensors, w.legacy, workers)
}

func (s *Session) startFetch(e fsm.Fetch) {
	ctx, stop := context.WithCancel(s.ctx)
	s.mu.Lock()
	c := s.calls[e.Call]
	if c != nil {
		c.stop = stop
	}
	s.mu.Unlock()
	if c == nil {
		stop()
		s.box.post(fsm.Fetched{Call: e.Call, Err: context.Canceled})
		return
	}
	w := c.sync
	want := make([]sharedstate.Want, len(e.Keys))
	for i, k := range e.Keys {
		want[i] = sharedstate.Want{Key: k, Hash: e.Hashes[i], HashType: e.HashTypes[i]}
	}
	w.fetch.Add(1)
	s.spawn(func() {
		defer stop()
		defer w.fetch.Done()
		s.state.Shut() // what is being overwritten is handed out to nobody
		res, err := sharedstate.Fetch(ctx, sharedstate.FetchConfig{
			Distributors: addrs(e.Distributors), Want: want, Tensors: w.tensors, Legacy: w.legacy,
			DialTimeout: s.opt.DialTimeout, StallTimeout: s.opt.UserTimeout, Progress: w.progress, Dial: s.dialPeer, Workers: s.opt.HashWorkers,
		})
		w.mu.Lock()
		w.rx = res.RxBytes
		w.mu.Unlock()
		s.box.post(fsm.Fetched{Call: e.Call, Revision: res.Revision, Err: err})
	})
}
