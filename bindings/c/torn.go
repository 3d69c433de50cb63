//go:build cgo

package main

// #include <stdbool.h>
// #include "pccl.h"
import "C"

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// tornTable knows, by its address, the memory that synchronisations have left
// torn, since a pcclSharedState_t has no room for it and many programs make a
// new one each time. A program written for PCCL cannot say that it has loaded a
// checkpoint, so a tensor counts as torn only as long as its content is what
// was left, unless the program has marked it itself.
type tornTable struct {
	mu   sync.Mutex
	left map[uint64]tornTensor
}

type tornTensor struct {
	bytes  int
	digest uint64
	marked bool // by gopcclSetTorn: its content says nothing
}

var tornMemory = tornTable{left: map[uint64]tornTensor{}}

func addressOf(t *core.Tensor) uint64 {
	if !t.Device.None() {
		return t.Device.Ptr
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(t.Data))))
}

func digestOf(t core.Tensor) uint64 {
	return core.StateHash(&core.SharedState{Tensors: []core.Tensor{t}})
}

// known returns what is noted of t.
func (m *tornTable) known(t *core.Tensor) (tornTensor, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.left[addressOf(t)]
	return e, ok && t.Bytes() > 0 && e.bytes == t.Bytes()
}

func (m *tornTable) set(t *core.Tensor, e tornTensor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left[addressOf(t)] = e
}

func (m *tornTable) forget(t *core.Tensor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.left, addressOf(t))
}

// mark marks the torn tensors of st.
func (m *tornTable) mark(st *core.SharedState) {
	for i := range st.Tensors {
		t := &st.Tensors[i]
		e, ok := m.known(t)
		switch {
		case !ok:
		case e.marked || e.digest == digestOf(*t):
			st.MarkTorn(t.Key)
		default:
			m.forget(t) // the program has given it another content
		}
	}
}

// note takes over what a synchronisation has left of st.
func (m *tornTable) note(st *core.SharedState, err error) {
	switch errs.CodeOf(err) {
	case errs.Busy, errs.PendingAsyncOps: // it was refused and has left everything as it was
		return
	}
	torn := st.Torn()
	for i := range st.Tensors {
		t := &st.Tensors[i]
		if t.Bytes() == 0 {
			continue
		}
		if slices.Contains(torn, t.Key) {
			e, _ := m.known(t)
			m.set(t, tornTensor{bytes: t.Bytes(), digest: digestOf(*t), marked: e.marked})
		} else {
			m.forget(t)
		}
	}
}

// flags returns the list of a state's flags, and its tensors.
func flags(state *C.pcclSharedState_t, list *C.bool) (core.SharedState, []C.bool, error) {
	var st core.SharedState
	if state == nil || (state.infos == nil && state.count > 0) {
		return st, nil, callTorn.bad("shared_state or its infos is NULL")
	}
	var err error
	st.Tensors, err = tensors(state)
	if err != nil || list == nil {
		return st, nil, err
	}
	return st, unsafe.Slice(list, int(state.count)), nil
}

//export gopccl_get_torn
func gopccl_get_torn(state *C.pcclSharedState_t, out *C.bool) C.int {
	return callTorn.run(func() error {
		st, list, err := flags(state, out)
		if err != nil {
			return err
		}
		if out == nil {
			return callTorn.bad("torn_out is NULL")
		}
		tornMemory.mark(&st)
		torn := st.Torn()
		for i := range list {
			list[i] = C.bool(slices.Contains(torn, st.Tensors[i].Key))
		}
		return nil
	})
}

//export gopccl_set_torn
func gopccl_set_torn(state *C.pcclSharedState_t, torn *C.bool) C.int {
	return callTorn.run(func() error {
		st, list, err := flags(state, torn)
		if err != nil {
			return err
		}
		for i := range st.Tensors {
			t := &st.Tensors[i]
			if list != nil && bool(list[i]) && t.Bytes() > 0 {
				tornMemory.set(t, tornTensor{bytes: t.Bytes(), marked: true})
			} else {
				tornMemory.forget(t)
			}
		}
		return nil
	})
}
