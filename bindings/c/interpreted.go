//go:build cgo && interpreted && !nocuda && (linux || windows) && (amd64 || arm64)

package main

// #include <stddef.h>
import "C"

import (
	"errors"
	"runtime"
	"unsafe"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/internal/cuda"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// With the tag interpreted, for tests, the library's CUDA devices are those of
// the interpreter, and it has what a program needs to use them. Their memory is
// in this process, so that a tensor can be made over it.
var (
	machine = ptxtest.New(ptxtest.Options{Devices: 2, Seed: 5, InProcess: true})
	served  = cuda.On(machine, device.Settings{})
)

// contexts are what the program's framework holds: the primary ones.
var contexts [2]driver.Context

func init() {
	device.Replace(device.CUDA, served)
	for i := range contexts {
		var err error
		if contexts[i], err = machine.Retain(i); err != nil {
			panic(err)
		}
	}
}

// within calls f with the primary context of a device.
func within(n C.int, f func() error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := machine.Push(contexts[n])
	if err == nil {
		err = f()
	}
	if err == nil {
		_, err = machine.Pop()
	}
	if err != nil {
		panic(err)
	}
}

//export test_alloc
func test_alloc(device C.int, n C.size_t) (p C.size_t) {
	within(device, func() error {
		a, err := machine.Alloc(uint64(n))
		p = C.size_t(a)
		return err
	})
	return p
}

//export test_free
func test_free(device C.int, p C.size_t) {
	within(device, func() error { return machine.Free(driver.Ptr(p)) })
}

//export test_stream
func test_stream(device C.int) (s C.size_t) {
	within(device, func() error {
		made, err := machine.StreamCreate()
		s = C.size_t(made)
		return err
	})
	return s
}

//export test_destroy
func test_destroy(device C.int, s C.size_t) {
	within(device, func() error { return machine.StreamDestroy(driver.Stream(s)) })
}

// test_wait waits for what is queued on a stream.
//
//export test_wait
func test_wait(device C.int, s C.size_t) {
	within(device, func() error { return machine.StreamSynchronize(driver.Stream(s)) })
}

// test_write queues the copy of a copy of src.
//
//export test_write
func test_write(device C.int, dst C.size_t, src unsafe.Pointer, n, s C.size_t) {
	b := append([]byte(nil), unsafe.Slice((*byte)(src), int(n))...)
	within(device, func() error { return machine.CopyToDevice(driver.Ptr(dst), b, driver.Stream(s)) })
}

//export test_read
func test_read(device C.int, dst unsafe.Pointer, src, n C.size_t) {
	within(device, func() error {
		if err := machine.CopyToHost(unsafe.Slice((*byte)(dst), int(n)), driver.Ptr(src), 0); err != nil {
			return err
		}
		return machine.StreamSynchronize(0)
	})
}

// test_left closes the platform and returns whether something of a device is left.
//
//export test_left
func test_left() C.int {
	err := served.Close()
	for i := range contexts {
		err = errors.Join(err, machine.Release(i))
	}
	if err != nil {
		panic(err)
	}
	if machine.Live() != (ptxtest.Counts{}) {
		return 1
	}
	return 0
}
