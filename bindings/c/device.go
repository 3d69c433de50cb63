//go:build cgo

package main

// #include <stdint.h>
// #include "pccl.h"
// uintptr_t gopccl_stream(void);
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
)

// size returns the bytes of count elements at p. No alignment is asked for.
func size(c call, what string, p unsafe.Pointer, count C.size_t, t dtype.Type) (int, error) {
	switch {
	case count == 0:
		return 0, nil
	case p == nil:
		return 0, c.bad("%s is NULL", what)
	case uint64(count) > math.MaxInt64/16/uint64(t.Size()):
		return 0, c.bad("%s cannot have %d elements", what, uint64(count))
	}
	return int(count) * t.Size(), nil
}

func hostMemory(p unsafe.Pointer, n int) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}

// found returns the n bytes at p if they are memory of a device.
func found(p unsafe.Pointer, n int) (b device.Buffer, yes bool) {
	if !devices || n == 0 {
		return b, false
	}
	if b, yes = device.Identify(uint64(uintptr(p)), n); yes {
		b.Stream = uint64(C.gopccl_stream())
	}
	return b, yes
}

// operand returns count elements at p, of a collective or a message, as
// memory of the host or of a device.
func operand(c call, what string, p unsafe.Pointer, count C.size_t, t dtype.Type) ([]byte, device.Buffer, error) {
	n, err := size(c, what, p, count, t)
	if err != nil {
		return nil, device.Buffer{}, err
	}
	if b, yes := found(p, n); yes {
		return nil, b, nil
	}
	return hostMemory(p, n), device.Buffer{}, nil
}

// content returns count elements at p, which are said to be on a device of kind.
func content(kind C.pcclDeviceType_t, key string, p unsafe.Pointer, count C.size_t, t dtype.Type) ([]byte, device.Buffer, error) {
	none := device.Buffer{}
	n, err := size(callSync, fmt.Sprintf("data of tensor %q", key), p, count, t)
	if err != nil {
		return nil, none, err
	}
	switch kind {
	case C.pcclDeviceCpu:
		if b, yes := found(p, n); yes { // to read it would end the process
			return nil, none, callSync.bad("tensor %q: device_type is pcclDeviceCpu, but these are %v", key, b)
		}
		return hostMemory(p, n), none, nil
	case C.pcclDeviceCuda:
		platform, err := device.Lookup(device.CUDA)
		if err != nil {
			return nil, none, named(key, err)
		}
		if n == 0 {
			return nil, none, nil
		}
		b := device.Buffer{Platform: device.CUDA, Ptr: uint64(uintptr(p)), Bytes: n, Device: device.Any, Stream: uint64(C.gopccl_stream())}
		if b, err = platform.Check(b); err != nil {
			return nil, none, named(key, err)
		}
		return nil, b, nil
	}
	return nil, none, callSync.bad("tensor %q: unknown device type %d", key, kind)
}

func named(key string, err error) error {
	return errs.New(errs.CodeOf(err), callSync.name, fmt.Errorf("tensor %q: %w", key, err))
}

//export gopccl_find_device
func gopccl_find_device(p unsafe.Pointer, out *C.int) C.int {
	return callFindDevice.run(func() error {
		if out == nil {
			return callFindDevice.bad("device_out is NULL")
		}
		*out = -1
		if b, yes := found(p, 1); yes {
			*out = C.int(b.Device)
		}
		return nil
	})
}
