//go:build cgo

package main

// #include <stddef.h>
import "C"

import (
	"bytes"
	"cmp"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/gopccl/gopccl/core"
)

// stateText describes every communicator and running master of this process. It
// waits for no peer.
func stateText() []byte {
	type numbered struct {
		number uintptr
		server *core.Master
	}
	var masters []numbered
	objects.table.Range(func(n, v any) bool {
		if m, ok := v.(*master); ok {
			if s := m.running.Load(); s != nil {
				masters = append(masters, numbered{n.(uintptr), s})
			}
		}
		return true
	})
	slices.SortFunc(masters, func(a, b numbered) int { return cmp.Compare(a.number, b.number) })
	var b bytes.Buffer
	for _, m := range masters {
		m.server.DumpState(&b)
	}
	core.DumpState(&b)
	return b.Bytes()
}

//export gopccl_dump
func gopccl_dump(buffer unsafe.Pointer, size C.size_t) (n C.size_t) {
	defer func() {
		if recover() != nil { // it is for programs in trouble: no further one
			n = 0
		}
	}()
	text := stateText()
	if buffer != nil && size > 0 {
		out := unsafe.Slice((*byte)(buffer), int(min(uint64(size), uint64(len(text))+1)))
		out[copy(out[:len(out)-1], text)] = 0
	}
	return C.size_t(len(text))
}

var dumpOnce sync.Once

// dumpOnSignal writes a dump at every signal with this number, if it is one, from
// the first call on that says so. A signal that was not asked for stays the program's.
func dumpOnSignal(number int) {
	if number == 0 || !dumpSignals {
		return
	}
	dumpOnce.Do(func() {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.Signal(number))
		go func() {
			for range asked {
				standardError{}.Write(stateText())
			}
		}()
	})
}
