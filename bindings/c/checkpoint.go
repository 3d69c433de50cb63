//go:build cgo

package main

// #include <stddef.h>
// #include "pccl.h"
import "C"

import (
	"encoding/json"
	"fmt"
	"unsafe"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/checkpoint"
	"github.com/gopccl/gopccl/core/errs"
)

// textOut copies text with a NUL behind it to where the caller has room, if it has enough, and tells its size.
func textOut(text string, out *C.char, capacity C.size_t, size *C.size_t) {
	n := len(text) + 1
	if size != nil {
		*size = C.size_t(n)
	}
	if out != nil && uint64(n) <= uint64(capacity) {
		room := unsafe.Slice((*byte)(unsafe.Pointer(out)), n)
		room[copy(room, text)] = 0
	}
}

// storedState returns the state that a checkpoint is made of, or loaded into.
func storedState(c call, state *C.pcclSharedState_t) (st core.SharedState, err error) {
	if state == nil || (state.infos == nil && state.count > 0) {
		return st, c.bad("shared_state or its infos is NULL")
	}
	st.Revision = uint64(state.revision)
	if st.Tensors, err = tensors(state); err != nil {
		return st, errs.New(errs.CodeOf(err), c.name, err)
	}
	tornMemory.mark(&st)
	return st, nil
}

//export gopccl_save_checkpoint
func gopccl_save_checkpoint(state *C.pcclSharedState_t, dir *C.char, keep C.size_t, meta, out *C.char, capacity C.size_t, size *C.size_t) C.int {
	c := callSaveCheckpoint
	return c.run(func() error {
		if dir == nil {
			return c.bad("directory is NULL")
		}
		var about map[string]string
		if meta != nil {
			if err := json.Unmarshal([]byte(C.GoString(meta)), &about); err != nil {
				return c.bad("meta must be a JSON object whose values are strings: %w", err)
			}
		}
		st, err := storedState(c, state)
		if err != nil {
			return err
		}
		most := int(min(uint64(keep), 1<<30))
		path, left, err := st.SaveCheckpoint(C.GoString(dir), about, most)
		if err != nil {
			return err
		}
		for _, err := range left {
			logger().Warn("an old checkpoint was not removed", "error", err.Error())
		}
		textOut(path, out, capacity, size)
		return nil
	})
}

//export gopccl_load_checkpoint
func gopccl_load_checkpoint(state *C.pcclSharedState_t, path, out *C.char, capacity C.size_t, size *C.size_t) C.int {
	c := callLoadCheckpoint
	return c.run(func() error {
		if path == nil {
			return c.bad("path is NULL")
		}
		st, err := storedState(c, state)
		if err != nil {
			return err
		}
		meta, err := st.LoadCheckpoint(C.GoString(path))
		tornMemory.note(&st, err)
		if err != nil {
			return err
		}
		state.revision = C.uint64_t(st.Revision)
		if meta == nil {
			meta = map[string]string{}
		}
		text, err := json.Marshal(meta)
		if err != nil {
			return errs.New(errs.Internal, c.name, fmt.Errorf("meta data: %w", err))
		}
		textOut(string(text), out, capacity, size)
		return nil
	})
}

//export gopccl_find_checkpoint
func gopccl_find_checkpoint(dir, out *C.char, capacity C.size_t, size *C.size_t) C.int {
	c := callFindCheckpoint
	return c.run(func() error {
		if dir == nil {
			return c.bad("directory is NULL")
		}
		path, skipped, err := checkpoint.Latest(C.GoString(dir))
		for _, damaged := range skipped { // a step back, which nobody should have to guess
			logger().Error("a checkpoint is passed over", "error", damaged.Error())
		}
		if err != nil && len(skipped) > 0 { // not as if there were none: a run must not begin again unasked
			return errs.New(errs.CorruptFile, c.name, err)
		}
		if err != nil {
			return err
		}
		textOut(path, out, capacity, size)
		return nil
	})
}
