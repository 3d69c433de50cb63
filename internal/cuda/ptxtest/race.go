package ptxtest

import (
	"fmt"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// What an access does; of a memory instruction's mode.
const (
	reads = iota
	writes
	agrees // atomic or volatile: may meet others of its kind
)

// trace is what is known of a byte of shared memory: the last warp of each kind
// that used it, and between which barriers. Two are enough: if several warps
// have read since the last barrier, one of them is another one than the writer.
type trace struct {
	at   [3]uint32 // period of the last access of each kind
	by   [3]int16  // its warp
	also [3]int16  // another warp in the same period, -1: none
}

// touch notes an access to shared memory and fails the launch if another warp
// has used a byte without a barrier in between, unless both only read or both
// are atomic.
//
//go:norace
func (w *warp) touch(in *instr, lane int, addr, n uint64) {
	b := w.blk
	kind := int(in.mode)
	for i := addr; i < addr+n; i++ {
		t := &b.traces[i]
		for k := range t.at {
			if k == kind && kind != writes || t.at[k] != b.period {
				continue
			}
			if other := t.by[k]; other != int16(w.id) || t.also[k] >= 0 {
				if other == int16(w.id) {
					other = t.also[k]
				}
				w.fault(in, lane, driver.LaunchFailed, fmt.Sprintf(
					"race: warp %d has %s byte %d of the shared memory, and no barrier came between", other,
					[]string{"read", "written", "atomically used"}[k], i))
				return
			}
		}
		switch {
		case t.at[kind] != b.period:
			t.at[kind], t.by[kind], t.also[kind] = b.period, int16(w.id), -1
		case t.by[kind] != int16(w.id):
			t.also[kind] = int16(w.id)
		}
	}
}
