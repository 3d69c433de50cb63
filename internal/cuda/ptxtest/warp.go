package ptxtest

import (
	"math"
	"math/bits"
)

// lanes is a register of a whole warp.
type lanes [32]uint64

// group is the part of a warp's lanes that are at the same instruction.
type group struct {
	pc   int32
	mask uint32
	// waits is set for lanes that have arrived at a barrier of the block, or
	// at an instruction that needs more lanes than are there yet.
	waits bool
}

// warp is 32 threads. Lanes that have left are in no group. Of the groups that
// can run, the one with the smallest address does, so that lanes that parted
// meet again where their paths do; after a whole slice without an end another
// one gets a turn, so that a lane may wait for another one of its warp.
type warp struct {
	r      []lanes
	p      []uint32
	carry  uint32
	pc     int32
	active uint32 // lanes at pc
	alive  uint32 // lanes that have not left
	groups []group
	blk    *block
	id     int
	local  []byte // of all lanes, one after the other
	tired  bool   // the last slice ended early
}

// run executes at most slice instructions: until all groups wait or have left,
// or a fault. It returns how many it has executed.
//
//go:norace
func (w *warp) run(slice int) int {
	code := w.blk.prog.code
	used := 0
	for {
		next := w.pick()
		if w.active == 0 {
			w.tired = false
			return used
		}
		for w.active != 0 && w.pc < next {
			if used >= slice {
				w.tired = true
				w.add(group{pc: w.pc, mask: w.active})
				w.active = 0
				return used
			}
			used++
			in := &code[w.pc]
			m := w.active
			if in.guard >= 0 {
				g := w.p[in.guard]
				if in.not {
					g = ^g
				}
				if m &= g; m == 0 {
					w.pc++
					continue
				}
			}
			switch {
			case in.class == plain:
				in.run(w, in, m)
				w.pc++
			case in.class == memory:
				if in.run(w, in, m); w.blk.fault != nil {
					return used
				}
				w.pc++
			case in.class == branch && m == w.active:
				w.pc = in.target
			default:
				w.control(in, m)
				if w.blk.fault != nil {
					return used
				}
				next = w.nearest()
			}
		}
		if w.active != 0 {
			w.add(group{pc: w.pc, mask: w.active})
			w.active = 0
		}
	}
}

// pick makes a group the running one, and returns the address of the next one.
//
//go:norace
func (w *warp) pick() int32 {
	best, count := -1, 0
	for i := range w.groups {
		if g := &w.groups[i]; !g.waits {
			if count++; best < 0 || g.pc < w.groups[best].pc {
				best = i
			}
		}
	}
	if best < 0 {
		return 0
	}
	other := w.tired && count > 1
	for other {
		if i := w.blk.dice(len(w.groups)); !w.groups[i].waits {
			best = i
			break
		}
	}
	w.tired = false
	w.pc, w.active = w.groups[best].pc, w.groups[best].mask
	w.groups = append(w.groups[:best], w.groups[best+1:]...)
	if other {
		return math.MaxInt32
	}
	return w.nearest()
}

// nearest is the smallest address of a group that could run.
//
//go:norace
func (w *warp) nearest() int32 {
	next := int32(math.MaxInt32)
	for i := range w.groups {
		if g := &w.groups[i]; !g.waits {
			next = min(next, g.pc)
		}
	}
	return next
}

// add puts lanes to those that are at the same address.
//
//go:norace
func (w *warp) add(n group) {
	for i := range w.groups {
		if g := &w.groups[i]; g.pc == n.pc && g.waits == n.waits {
			g.mask |= n.mask
			return
		}
	}
	w.groups = append(w.groups, n)
}

// control executes an instruction that parts the lanes m from the others.
//
//go:norace
func (w *warp) control(in *instr, m uint32) {
	switch in.class {
	case branch:
		w.leave(m, in.target)
	case table:
		for mm := m; mm != 0; {
			lane := bits.TrailingZeros32(mm)
			at := uint32(w.r[in.a][lane])
			if int(at) >= len(in.targets) {
				w.fault(in, lane, invalidPC, "branch table entry out of range")
				return
			}
			w.leave(1<<lane, in.targets[at])
			mm &= mm - 1
		}
	case call:
		for mm := m; mm != 0; mm &= mm - 1 {
			lane := bits.TrailingZeros32(mm)
			w.r[in.dst][lane] = uint64(w.pc + 1)
			w.transfer(in.give, lane)
		}
		w.leave(m, in.target)
	case ret:
		if in.a < 0 {
			w.alive &^= m
			break
		}
		for mm := m; mm != 0; mm &= mm - 1 {
			lane := bits.TrailingZeros32(mm)
			back := int32(w.r[in.a][lane])
			w.transfer(w.blk.prog.code[back-1].get, lane)
			w.leave(1<<lane, back)
		}
	case barrier:
		w.groups = append(w.groups, group{pc: w.pc, mask: m, waits: true})
	case meet:
		w.meet(in, m)
	case trap:
		w.fault(in, bits.TrailingZeros32(m), illegalInstr, "trap")
		return
	}
	w.active &^= m
	w.pc++
}

// leave puts the lanes m to where they go on.
//
//go:norace
func (w *warp) leave(m uint32, pc int32) { w.add(group{pc: pc, mask: m}) }

// meet executes an instruction that needs all lanes of its member mask, if
// they are here, and keeps m waiting otherwise.
//
//go:norace
func (w *warp) meet(in *instr, m uint32) {
	all := m
	for _, g := range w.groups {
		if g.waits && g.pc == w.pc {
			all |= g.mask
		}
	}
	for mm := all; mm != 0; mm &= mm - 1 {
		lane := bits.TrailingZeros32(mm)
		members := uint32(w.r[in.c][lane])
		if members>>lane&1 == 0 {
			w.fault(in, lane, illegalInstr, "the lane is not in its own member mask")
			return
		}
		if members&w.alive&^all != 0 {
			w.groups = append(w.groups, group{pc: w.pc, mask: m, waits: true})
			return
		}
	}
	kept := w.groups[:0]
	for _, g := range w.groups {
		if !g.waits || g.pc != w.pc {
			kept = append(kept, g)
		}
	}
	w.groups = kept
	in.run(w, in, all)
	w.leave(all, w.pc+1)
}

//go:norace
func (w *warp) transfer(list []transfer, lane int) {
	own := w.own(lane)
	for _, t := range list {
		copy(own[t.to:t.to+t.size], own[t.from:t.from+t.size])
	}
}

// own is the local memory of a lane.
//
//go:norace
func (w *warp) own(lane int) []byte {
	n := w.blk.prog.local
	return w.local[lane*n : (lane+1)*n]
}
