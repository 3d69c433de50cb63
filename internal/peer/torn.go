package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/checkpoint"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/sharedstate"
)

// Torn returns the keys of the tensors that a synchronisation has overwritten
// and not confirmed, nil if there are none. Each may have its old content, the
// elected one, or parts of both, so that the state as a whole is a mixture of
// two states: it is no state that anybody should compute with. What ends that is a
// synchronisation that succeeds, LoadCheckpoint, or Restored. The slice is the
// caller's.
func (st *SharedState) Torn() []string { return slices.Clone(st.torn) }

// MarkTorn adds keys to those that Torn returns, for programs that make a new
// SharedState of the same memory, or that have left tensors half written.
func (st *SharedState) MarkTorn(keys ...string) {
	for _, k := range keys {
		if !slices.Contains(st.torn, k) {
			st.torn = append(st.torn, k)
		}
	}
}

// Restored says that the caller has given all tensors, and Revision, the
// content of one state again, from a copy of its own: nothing is torn any more.
func (st *SharedState) Restored() { st.torn = nil }

// LoadCheckpoint reads a file that SaveCheckpoint wrote into the tensors and
// Revision, and returns what the caller had it keep. Nothing is torn then. If
// the file is damaged or another model's, nothing has changed; see
// checkpoint.LoadInto for errors.
func (st *SharedState) LoadCheckpoint(path string) (meta map[string]string, err error) {
	s, err := checkpoint.LoadInto(path, st.stored())
	if err != nil {
		var e *errs.Error
		if errors.As(err, &e) && e.Phase == checkpoint.Overwriting {
			for _, t := range st.Tensors {
				st.MarkTorn(t.Key)
			}
		}
		return nil, err
	}
	st.Revision, st.torn = s.Revision, nil
	return s.Meta, nil
}

// SaveCheckpoint writes the state to a new file in dir and returns its path;
// meta is the caller's. See checkpoint.Save for keep, left and errors. A torn state is
// errs.InvalidUsage: a run that went on from it would go on from a mixture.
func (st *SharedState) SaveCheckpoint(dir string, meta map[string]string, keep int) (path string, left []error, err error) {
	if st.isTorn() {
		return "", nil, errs.New(errs.InvalidUsage, "save checkpoint", &sharedstate.Incomplete{Torn: st.Torn()}).WithPeer(dir)
	}
	return checkpoint.Save(dir, checkpoint.State{Revision: st.Revision, Tensors: st.stored(), Meta: meta}, keep)
}

func (st *SharedState) stored() []checkpoint.Tensor {
	list := make([]checkpoint.Tensor, len(st.Tensors))
	for i, t := range st.Tensors {
		list[i] = checkpoint.Tensor(t)
	}
	return list
}

// isTorn reports whether a torn tensor is one of those that st has now.
func (st *SharedState) isTorn() bool {
	return slices.ContainsFunc(st.Tensors, func(t sharedstate.Tensor) bool { return slices.Contains(st.torn, t.Key) })
}

// unconfirmed notes what a failed synchronisation has overwritten and returns
// its error, in which the names of the torn tensors are found.
func (st *SharedState) unconfirmed(w *syncWork, err error) error {
	w.mu.Lock()
	wrote := w.wrote
	w.mu.Unlock()
	if wrote != nil {
		st.MarkTorn(wrote.Done...)
		st.MarkTorn(wrote.Torn...)
	}
	if !st.isTorn() {
		return err
	}
	var known *sharedstate.Incomplete
	if errors.As(err, &known) {
		return err
	}
	if wrote == nil {
		wrote = &sharedstate.Incomplete{Torn: st.Torn()}
	}
	var e *errs.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%w: %w", err, wrote)
	}
	said := *e
	said.Err = error(wrote)
	if e.Err != nil {
		said.Err = fmt.Errorf("%w; %w", e.Err, wrote)
	}
	return &said
}

var (
	errSessionOver = errors.New("the session has ended")
	errUnconfirmed = errors.New("the master has not confirmed the synchronisation")
	errUnknown     = errors.New("the transfer ended unexpectedly")
)

// overwritten keeps what a Fetch has done to the tensors, or may have done.
func (w *syncWork) overwritten(inc *sharedstate.Incomplete) {
	if inc != nil && len(inc.Done)+len(inc.Torn) == 0 {
		inc = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrote = inc
}

// transfer runs a Fetch and keeps what it has done to the tensors, also if it panics.
func (w *syncWork) transfer(ctx context.Context, cfg sharedstate.FetchConfig) (sharedstate.Result, error) {
	keys := make([]string, len(cfg.Want))
	for i, want := range cfg.Want {
		keys[i] = want.Key
	}
	w.overwritten(&sharedstate.Incomplete{Torn: keys, Err: errUnknown})
	res, err := sharedstate.Fetch(ctx, cfg)
	inc := &sharedstate.Incomplete{Done: keys, Err: errUnconfirmed}
	if err != nil {
		if inc = nil; !errors.As(err, &inc) {
			inc = nil // nothing was written
		}
	}
	w.overwritten(inc)
	w.mu.Lock()
	w.rx = res.RxBytes
	w.mu.Unlock()
	return res, err
}
