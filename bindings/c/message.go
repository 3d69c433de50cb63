//go:build cgo

package main

// #include "gopccl.h"
import "C"

import (
	"context"
	"unsafe"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
)

// letter is a message in flight.
type letter struct{ *core.Transfer }

func (l letter) await() (landed, bool, error) {
	if !until(context.Background(), l.Done()) {
		return landed{peer: nobody}, false, interrupted(callAwait)
	}
	peer, err := l.Wait(context.Background())
	return landed{peer: peer}, true, err
}

// beginning is core.Communicator.SendAsync or ReceiveAsync.
type beginning func(context.Context, core.Message) (*core.Transfer, error)

// message returns what d describes.
func message(on call, d *C.gopcclMessage_t) (m core.Message, err error) {
	switch {
	case d == nil:
		return m, on.bad("message is NULL")
	case uint64(d.size) != uint64(unsafe.Sizeof(*d)):
		return m, on.bad("size is %d, want sizeof(gopcclMessage_t), which is %d", uint64(d.size), unsafe.Sizeof(*d))
	}
	m = core.Message{Peer: int(d.peer), Tag: uint64(d.tag)}
	m.Data, m.Device, err = operand(on, "data", d.data, d.bytes, dtype.Uint8)
	return m, err
}

// exchanged sends or receives what d describes, and returns the other end.
func (m *comm) exchanged(on call, begin beginning, d *C.gopcclMessage_t) (peer int, err error) {
	msg, err := message(on, d)
	if err != nil {
		return nobody, err
	}
	return patient(on, m.ctx, func(ctx context.Context) (int, error) {
		t, err := begin(ctx, msg)
		if err != nil {
			return nobody, err
		}
		return t.Wait(ctx)
	})
}

// dispatch begins what d describes, and writes the tag of its handle.
func (m *comm) dispatch(on call, begin beginning, d *C.gopcclMessage_t, wanted C.int, out *C.uint64_t) error {
	if wanted == 0 {
		return on.bad("handle_out is NULL")
	}
	msg, err := message(on, d)
	if err != nil {
		return err
	}
	tag, err := m.launchMessage(func() (flying, error) {
		t, err := patient(on, m.ctx, func(ctx context.Context) (*core.Transfer, error) { return begin(ctx, msg) })
		return letter{t}, err
	})
	*out = C.uint64_t(tag)
	return err
}

//export gopccl_send
func gopccl_send(h C.uintptr_t, d *C.gopcclMessage_t) C.int {
	return callSend.guard(func() error {
		m, s, err := connected(callSend, h)
		if err == nil {
			_, err = m.exchanged(callSend, s.SendAsync, d)
		}
		return err
	})
}

//export gopccl_receive
func gopccl_receive(h C.uintptr_t, d *C.gopcclMessage_t, out *C.int) C.int {
	return callReceive.guard(func() error {
		m, s, err := connected(callReceive, h)
		if err != nil {
			return err
		}
		from, err := m.exchanged(callReceive, s.ReceiveAsync, d)
		if err == nil && out != nil {
			*out = C.int(from)
		}
		return err
	})
}

//export gopccl_send_async
func gopccl_send_async(h C.uintptr_t, d *C.gopcclMessage_t, wanted C.int, out *C.uint64_t) C.int {
	return callSend.guard(func() error {
		m, s, err := connected(callSend, h)
		if err != nil {
			return err
		}
		return m.dispatch(callSend, s.SendAsync, d, wanted, out)
	})
}

//export gopccl_receive_async
func gopccl_receive_async(h C.uintptr_t, d *C.gopcclMessage_t, wanted C.int, out *C.uint64_t) C.int {
	return callReceive.guard(func() error {
		m, s, err := connected(callReceive, h)
		if err != nil {
			return err
		}
		return m.dispatch(callReceive, s.ReceiveAsync, d, wanted, out)
	})
}

//export gopccl_receipt
func gopccl_receipt(h C.uintptr_t, tag C.uint64_t, out *C.gopcclReceipt_t) C.int {
	return callAwait.guard(func() error {
		if out == nil {
			return callAwait.bad("receipt_out is NULL")
		}
		l, known, err := verdict(h, tag)
		if known {
			out.peer = C.int(l.peer)
			out.result = C.pcclResult_t(callAwait.result(err))
			out.known = true // behind all that it stands for
		}
		return err
	})
}
