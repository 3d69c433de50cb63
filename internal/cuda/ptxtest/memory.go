package ptxtest

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// allocation is a range of addresses with memory behind it. Around each there
// is a gap, and no address is given out twice, so that a wrong one is noticed.
type allocation struct {
	base   uint64
	data   []byte
	kind   driver.Kind
	device int
	ctx    driver.Context
	charge uint64 // bytes of the device's memory
	freed  bool
	size   uint64 // of freed memory
	// Which kernels used it, and what the running one uses.
	log           []usage
	reads, writes footprint
	seen          bool
}

func (a *allocation) end() uint64 { return a.base + max(uint64(len(a.data)), a.size) }

// memoryMap is all allocations by address.
type memoryMap struct {
	list []*allocation
	kept [][]byte // with Options.InProcess: no address is given out again
}

// find returns the live allocation that holds addr, or nil.
func (t *memoryMap) find(addr uint64) *allocation {
	a := t.below(addr)
	if a != nil && !a.freed && addr-a.base < uint64(len(a.data)) {
		return a
	}
	return nil
}

// below returns the last allocation that begins at or before addr.
func (t *memoryMap) below(addr uint64) *allocation {
	i := sort.Search(len(t.list), func(i int) bool { return t.list[i].base > addr })
	if i == 0 {
		return nil
	}
	return t.list[i-1]
}

func (t *memoryMap) insert(a *allocation) {
	i := sort.Search(len(t.list), func(i int) bool { return t.list[i].base > a.base })
	t.list = append(t.list, nil)
	copy(t.list[i+1:], t.list[i:])
	t.list[i] = a
}

// forgetHost removes freed host memory that Go has given out again.
func (t *memoryMap) forgetHost(addr, n uint64) {
	t.list = slices.DeleteFunc(t.list, func(a *allocation) bool {
		return a.freed && a.kind == driver.Host && a.base < addr+n && addr < a.end()
	})
}

// forget removes freed memory.
func (t *memoryMap) forget(old []*allocation) {
	gone := make(map[*allocation]bool, len(old))
	for _, a := range old {
		gone[a] = true
	}
	t.list = slices.DeleteFunc(t.list, func(a *allocation) bool { return gone[a] })
}

// Memory is given out in units of this many bytes, with a gap as large behind.
const (
	granule = 512
	guard   = 1 << 20
)

// allocate returns memory of the device of c, nil if there is too little.
func (d *Device) allocate(c *context, n uint64) *allocation {
	charge := (n + granule - 1) &^ (granule - 1)
	if n > d.opts.Memory || charge > d.opts.Memory-d.used[c.device] {
		return nil
	}
	a := &allocation{base: d.next, data: make([]byte, n), kind: driver.Device, device: c.device, ctx: c.handle, charge: charge}
	if d.opts.InProcess {
		b := make([]byte, n+granule)
		off := -int(address(b)) & (granule - 1)
		a.data = b[off : off+int(n) : off+int(n)]
		a.base, d.mem.kept = address(a.data), append(d.mem.kept, b)
	}
	flood(a.data, poison&0xff)
	d.used[c.device] += charge
	d.next += (n + 2*guard - 1) &^ (guard - 1)
	d.mem.insert(a)
	return a
}

// describe says what is known about a bad address.
func (t *memoryMap) describe(addr, n uint64) string {
	a := t.below(addr)
	switch {
	case a == nil:
		return fmt.Sprintf("%#x is not an address", addr)
	case a.freed && addr-a.base < a.size:
		return fmt.Sprintf("%#x is in freed memory of %d bytes", addr, a.size)
	case addr < a.end():
		return fmt.Sprintf("%d bytes at %#x reach past an allocation of %d bytes, or belong to another context", n, addr, len(a.data))
	}
	return fmt.Sprintf("%#x is %d bytes past an allocation of %d bytes", addr, addr-a.end(), a.end()-a.base)
}

// bytesAt returns the n bytes at an address as a lane sees it, nil after a fault.
//
//go:norace
func (w *warp) bytesAt(in *instr, sp space, lane int, addr, n uint64) []byte {
	if addr&(n-1) != 0 {
		w.fault(in, lane, driver.MisalignedAddress, fmt.Sprintf("%#x is not a multiple of %d", addr, n))
		return nil
	}
	if sp == generic {
		switch addr &^ (window - 1) {
		case sharedWindow:
			sp = shared
		case localWindow:
			sp = local
		case constWindow:
			sp = constant
		default:
			sp = global
		}
		addr -= windowAt[sp]
	}
	var from []byte
	switch sp {
	case global:
		a := w.blk.last
		if a == nil || addr-a.base >= uint64(len(a.data)) {
			if a = w.blk.mem.find(addr); a == nil || !w.blk.sees(a) {
				w.fault(in, lane, driver.IllegalAddress, w.blk.mem.describe(addr, n))
				return nil
			}
			w.blk.last = a
		}
		addr -= a.base
		from = a.data
	case shared:
		from = w.blk.shared
	case local:
		from = w.own(lane)
	case constant:
		from = w.blk.constants
	case param:
		from = w.blk.args
	}
	if size := uint64(len(from)); addr >= size || size-addr < n {
		w.fault(in, lane, driver.IllegalAddress, fmt.Sprintf("%d bytes at %#x of %d bytes", n, addr, size))
		return nil
	}
	if sp == global && w.blk.watched {
		w.blk.watch(in, w.blk.last, addr, n)
	}
	if sp == shared && len(w.blk.warps) > 1 {
		if w.touch(in, lane, addr, n); w.blk.fault != nil {
			return nil
		}
	}
	return from[addr : addr+n]
}

//go:norace
func get(b []byte, k kind) uint64 {
	switch k.bytes() {
	case 1:
		if k == s8 {
			return uint64(int8(b[0]))
		}
		return uint64(b[0])
	case 2:
		v := binary.LittleEndian.Uint16(b)
		if k == s16 {
			return uint64(int16(v))
		}
		return uint64(v)
	case 4:
		v := binary.LittleEndian.Uint32(b)
		if k == s32 {
			return uint64(int32(v))
		}
		return uint64(v)
	}
	return binary.LittleEndian.Uint64(b)
}

//go:norace
func put(b []byte, k kind, v uint64) {
	switch k.bytes() {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}

//go:norace
func runLoad(w *warp, in *instr, m uint32) {
	addr := w.r[in.a] // a copy: it may be loaded over
	step := in.kind.bytes()
	if a := w.blk.last; in.space == global && a != nil {
		m = loadNear(w, in, m, &addr, a, step)
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		b := w.bytesAt(in, in.space, l, addr[l]+in.imm, in.width)
		if b == nil {
			return
		}
		for i, to := range in.vec {
			w.r[to][l] = get(b[i*step:], in.kind)
		}
	}
}

// loadNear does the lanes whose address lies in a, which is where the last
// access of the block was, and returns the others.
//
//go:norace
func loadNear(w *warp, in *instr, m uint32, addr *lanes, a *allocation, step int) uint32 {
	if uint64(len(a.data)) < in.width {
		return m
	}
	data, base := a.data, a.base-in.imm
	most := uint64(len(data)) - in.width
	odd := in.width - 1
	rest := uint32(0)
	var d *lanes
	if len(in.vec) == 1 {
		d = &w.r[in.vec[0]]
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		at := addr[l] - base
		if at > most || (addr[l]+in.imm)&odd != 0 {
			rest |= 1 << l
			continue
		}
		b := data[at : at+in.width]
		if w.blk.watched {
			w.blk.watch(in, a, at, in.width)
		}
		switch {
		case d == nil:
			for i, to := range in.vec {
				w.r[to][l] = get(b[i*step:], in.kind)
			}
		case step == 4 && in.kind != s32:
			d[l] = uint64(binary.LittleEndian.Uint32(b))
		case step == 8:
			d[l] = binary.LittleEndian.Uint64(b)
		default:
			d[l] = get(b, in.kind)
		}
	}
	return rest
}

//go:norace
func runStore(w *warp, in *instr, m uint32) {
	addr := &w.r[in.a]
	step := in.kind.bytes()
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		b := w.bytesAt(in, in.space, l, addr[l]+in.imm, in.width)
		if b == nil {
			return
		}
		for i, from := range in.vec {
			put(b[i*step:], in.kind, w.r[from][l])
		}
	}
}

//go:norace
func runAtomic(w *warp, in *instr, m uint32) {
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		b := w.bytesAt(in, in.space, l, w.r[in.a][l]+in.imm, in.width)
		if b == nil {
			return
		}
		old := get(b, in.kind)
		put(b, in.kind, in.f(old, w.r[in.b][l], w.r[in.c][l]))
		if in.dst >= 0 {
			w.r[in.dst][l] = old
		}
	}
}
