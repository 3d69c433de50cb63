//go:build cgo

package main

// #include "gopccl.h"
import "C"

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// flights are the asynchronous operations of a communicator that nobody has
// awaited yet, by tag: what C holds of one is its tag alone. A handle is nil
// while its launch goes on.
type flights map[uint64]flight

type flight struct {
	handle *core.Handle
	number uint64 // in order of launch
}

// unawaited refuses a tag that stands for an operation which was not awaited,
// as PCCL does: whether that one has ended is a matter of timing.
func (m *comm) unawaited(c call, tag uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.launched.check(c, tag)
}

func (f flights) check(c call, tag uint64) error {
	if _, taken := f[tag]; taken {
		return errs.New(errs.InvalidArgument, c.name, fmt.Errorf("tag %d is in flight: an operation with it was launched and not awaited", tag)).
			WithHint("await it first, or take another tag")
	}
	return nil
}

// launch starts an operation and keeps it, under its tag, until it is awaited.
func (m *comm) launch(c call, tag uint64, start func() (*core.Handle, error)) error {
	m.mu.Lock()
	err := m.launched.check(c, tag)
	if err == nil {
		m.launches++
		m.launched[tag] = flight{number: m.launches}
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	h, err := launched(m.ctx, start)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		delete(m.launched, tag)
		return err
	}
	f := m.launched[tag]
	f.handle = h
	m.launched[tag] = f
	return nil
}

// find returns the operation with a tag, nil if there is none.
func (m *comm) find(tag uint64) *core.Handle {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.launched[tag].handle
}

// forget makes the tag of h free.
func (m *comm) forget(tag uint64, h *core.Handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.launched[tag].handle == h {
		delete(m.launched, tag)
	}
}

// list describes all operations in the order of their launches.
func (m *comm) list() []C.gopcclAsyncReduce_t {
	m.mu.Lock()
	defer m.mu.Unlock()
	type known struct {
		flight
		tag uint64
	}
	all := make([]known, 0, len(m.launched))
	for tag, f := range m.launched {
		all = append(all, known{f, tag})
	}
	slices.SortFunc(all, func(a, b known) int { return cmp.Compare(a.number, b.number) })
	out := make([]C.gopcclAsyncReduce_t, len(all))
	for i, f := range all {
		out[i] = C.gopcclAsyncReduce_t{tag: C.uint64_t(f.tag)}
		if f.handle != nil {
			select {
			case <-f.handle.Done():
				out[i].ended = true
			default:
			}
		}
	}
	return out
}

//export gopccl_list
func gopccl_list(h C.uintptr_t, list *C.gopcclAsyncReduce_t, capacity C.size_t, count *C.size_t) C.int {
	return callList.guard(func() error {
		m, err := lookup[comm](callList, uintptr(h))
		if err != nil {
			return err
		}
		if count == nil || (list == nil && capacity > 0) {
			return callList.bad("list or count_out is NULL")
		}
		all := m.list()
		copy(unsafe.Slice(list, int(min(uint64(capacity), uint64(len(all))))), all)
		*count = C.size_t(len(all))
		return nil
	})
}

//export gopccl_verdict
func gopccl_verdict(h C.uintptr_t, tag C.uint64_t, out *C.gopcclVerdict_t) C.int {
	return callAwait.guard(func() error {
		if out == nil {
			return callAwait.bad("verdict_out is NULL")
		}
		info, known, err := verdict(h, tag)
		if known {
			if err == nil {
				moved(&out.info, info)
			}
			out.result = C.pcclResult_t(callAwait.result(err))
			out.known = true // behind all that it stands for
		}
		return err
	})
}
