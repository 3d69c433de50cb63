package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/sharedstate"
)

// markTorn adds keys to the torn ones.
func (st *SharedState) markTorn(keys []string) {
	for _, k := range keys {
		if !slices.Contains(st.Torn, k) {
			st.Torn = append(st.Torn, k)
		}
	}
}

// isTorn reports whether a torn tensor is one of those that st has now.
func (st *SharedState) isTorn() bool {
	return slices.ContainsFunc(st.Tensors, func(t sharedstate.Tensor) bool { return slices.Contains(st.Torn, t.Key) })
}

// unconfirmed notes what a failed synchronisation has overwritten and returns
// its error, in which the names of the torn tensors are found.
func (st *SharedState) unconfirmed(w *syncWork, err error) error {
	w.mu.Lock()
	wrote := w.wrote
	w.mu.Unlock()
	if wrote != nil {
		st.markTorn(wrote.Done)
		st.markTorn(wrote.Torn)
	}
	if !st.isTorn() {
		return err
	}
	var known *errs.Incomplete
	if errors.As(err, &known) {
		return err
	}
	if wrote == nil {
		wrote = &errs.Incomplete{Torn: slices.Clone(st.Torn)}
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
func (w *syncWork) overwritten(inc *errs.Incomplete) {
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
	w.overwritten(&errs.Incomplete{Torn: keys, Err: errUnknown})
	res, err := sharedstate.Fetch(ctx, cfg)
	inc := &errs.Incomplete{Done: keys, Err: errUnconfirmed}
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
