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
// awaited yet, by tag: what C holds of one is its tag alone. An operation is nil
// while its launch goes on.
type flights map[uint64]flight

type flight struct {
	operation flying
	number    uint64 // in order of launch
}

// flying is what was launched: a collective, or a message.
type flying interface {
	// Done is closed when it has ended.
	Done() <-chan struct{}
	// await waits for that; it is known then unless the caller gave up waiting.
	await() (l landed, known bool, err error)
}

// landed is what an operation did.
type landed struct {
	info core.ReduceInfo
	peer int // the other end of a message, by its index; nobody of a collective
}

// nobody is the index of no member.
const nobody = -1

// voted is a collective in flight.
type voted struct{ *core.Handle }

func (v voted) await() (l landed, known bool, err error) {
	l.peer = nobody
	l.info, known, err = awaited(v.Handle)
	return l, known, err
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

// launch starts a collective and keeps it, under its tag, until it is awaited.
func (m *comm) launch(c call, tag uint64, start func() (*core.Handle, error)) error {
	m.mu.Lock()
	err := m.launched.check(c, tag)
	if err == nil {
		m.book(tag)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.begin(tag, func() (flying, error) {
		h, err := launched(m.ctx, start)
		return voted{h}, err
	})
}

// launchMessage starts a message and keeps it, under a tag that nothing has, until it is
// awaited. Its own tag does not name it: others may be in flight with the same.
func (m *comm) launchMessage(start func() (flying, error)) (tag uint64, err error) {
	m.mu.Lock()
	for taken := true; taken; _, taken = m.launched[tag] {
		m.messages++
		tag = barrierTag - m.messages
	}
	m.book(tag)
	m.mu.Unlock()
	return tag, m.begin(tag, start)
}

// book takes a tag for an operation. m.mu is held.
func (m *comm) book(tag uint64) {
	m.launches++
	m.launched[tag] = flight{number: m.launches}
}

// begin starts an operation whose tag was taken.
func (m *comm) begin(tag uint64, start func() (flying, error)) error {
	o, err := start()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		delete(m.launched, tag)
		return err
	}
	f := m.launched[tag]
	f.operation = o
	m.launched[tag] = f
	return nil
}

// find returns the operation with a tag, nil if there is none.
func (m *comm) find(tag uint64) flying {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.launched[tag].operation
}

// forget makes the tag of o free.
func (m *comm) forget(tag uint64, o flying) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.launched[tag].operation == o {
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
		if f.operation != nil {
			select {
			case <-f.operation.Done():
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
		l, known, err := verdict(h, tag)
		if known {
			if err == nil {
				moved(&out.info, l.info)
			}
			out.result = C.pcclResult_t(callAwait.result(err))
			out.known = true // behind all that it stands for
		}
		return err
	})
}
