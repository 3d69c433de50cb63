package ptxtest

import (
	"fmt"
	"math/bits"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

const (
	invalidPC    = driver.InvalidPC
	illegalInstr = driver.IllegalInstr
)

// fault is why a launch failed.
type fault struct {
	result driver.Result
	detail string
}

// block is a thread block on its way through a program; one serves all blocks
// of a launch, one after the other.
type block struct {
	prog      *program
	warps     []*warp
	mem       *memoryMap
	ctx       driver.Context
	last      *allocation // found by the last access
	shared    []byte
	traces    []trace // of the shared memory
	period    uint32  // between two barriers, or of another block
	constants []byte
	args      []byte
	fault     *fault
	grid, dim driver.Dim
	at        driver.Dim
	random    uint64
	steps     int // instructions that are left
	watched   bool
	touched   []*allocation // if watched
}

// launch is a kernel's call.
type launch struct {
	prog      *program
	grid, dim driver.Dim
	dynamic   uint32
	args      []byte
	constants []byte
	variables uint64 // address of the module's globals
	ctx       driver.Context
	mem       *memoryMap
	seed      uint64
	steps     int
	arena     *arena
	watched   bool // memory is used by several streams
}

// arena is the registers of all warps, used again by the next launch.
type arena struct{ r []lanes }

// take returns n registers. They hold what others left there.
func (a *arena) take(n int) []lanes {
	if len(a.r) < n {
		a.r = make([]lanes, n)
		for i := range a.r {
			fill(&a.r[i], poison)
		}
	}
	return a.r[:n:n]
}

// run executes all blocks. It returns the number of instructions that warps
// executed, and the fault that ended it, if any.
func (n *launch) run(as *work) (int, *fault) {
	p := n.prog
	static := (p.shared + 15) &^ 15
	b := &block{
		prog: p, mem: n.mem, ctx: n.ctx, grid: n.grid, dim: n.dim, args: n.args, constants: n.constants,
		shared: make([]byte, static+int(n.dynamic)), traces: make([]trace, static+int(n.dynamic)), random: n.seed, steps: n.steps, watched: n.watched,
	}
	threads := n.dim.X * n.dim.Y * n.dim.Z
	count := int(threads+31) / 32
	registers := n.arena.take(count * p.regs)
	b.warps = make([]*warp, count)
	for i := range b.warps {
		w := &warp{blk: b, id: i, r: registers[i*p.regs:][:p.regs], p: make([]uint32, p.preds), local: make([]byte, 32*p.local)}
		for _, c := range p.consts {
			v := c.value
			if c.global {
				v += n.variables
			}
			fill(&w.r[c.slot], v)
		}
		for _, c := range p.dynamics {
			fill(&w.r[c.slot], uint64(static)+c.value)
		}
		for _, s := range p.specials {
			for l := range w.r[s.slot] {
				w.r[s.slot][l] = uint64(w.special(s.name, uint32(l)))
			}
		}
		b.warps[i] = w
	}
	blocks := uint64(n.grid.X) * uint64(n.grid.Y) * uint64(n.grid.Z)
	offset := uint64(0)
	if blocks > 1 && n.seed != 0 {
		offset = uint64(b.dice(int(min(blocks, 1<<30))))
	}
	for i := range blocks {
		b.run((i+offset)%blocks, threads)
		if b.fault != nil {
			break
		}
	}
	if f := b.settle(as); b.fault == nil {
		b.fault = f
	}
	return n.steps - b.steps, b.fault
}

// flood writes v everywhere, in few steps: the race detector counts them.
func flood(b []byte, v byte) {
	if len(b) == 0 {
		return
	}
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

//go:norace
func fill(r *lanes, v uint64) {
	for l := range r {
		r[l] = v
	}
}

// dice is a number below n, the same ones in every run.
//
//go:norace
func (b *block) dice(n int) int {
	b.random = b.random*6364136223846793005 + 1442695040888963407
	return int(b.random >> 33 % uint64(n))
}

// slice is how many instructions a warp executes before another one's turn.
const slice = 4096

func (b *block) run(index uint64, threads uint32) {
	b.at = driver.Dim{
		X: uint32(index % uint64(b.grid.X)),
		Y: uint32(index / uint64(b.grid.X) % uint64(b.grid.Y)),
		Z: uint32(index / uint64(b.grid.X) / uint64(b.grid.Y)),
	}
	flood(b.shared, poison&0xff)
	b.period++
	for _, w := range b.warps {
		w.begin(threads)
	}
	for b.fault == nil {
		moved, alive := false, false
		turn := b.dice(len(b.warps))
		for i := range b.warps {
			w := b.warps[(i+turn)%len(b.warps)]
			used := w.run(slice)
			moved = moved || used > 0
			alive = alive || w.alive != 0
			if b.steps -= used; b.fault == nil && b.steps <= 0 {
				b.fault = &fault{driver.LaunchTimeout, b.prog.fn.name + ": too many instructions; raise Options.Steps if it ends"}
			}
			if b.fault != nil {
				return
			}
		}
		if !alive {
			return
		}
		if !moved {
			b.release()
		}
	}
}

// begin prepares a warp for a block. Constants and what tells the thread are in
// its registers already, and no instruction writes there.
//
//go:norace
func (w *warp) begin(threads uint32) {
	b := w.blk
	clear(w.p)
	flood(w.local, poison&0xff)
	w.alive = uint32(mask(min(32, threads-uint32(w.id)*32)))
	w.groups = append(w.groups[:0], group{mask: w.alive})
	w.active, w.tired = 0, false
	for i := range b.prog.specials {
		if s := &b.prog.specials[i]; s.perBlock {
			fill(&w.r[s.slot], uint64(w.special(s.name, 0)))
		}
	}
}

// special is the value of a special register in a lane.
//
//go:norace
func (w *warp) special(name string, lane uint32) uint32 {
	b := w.blk
	t := uint32(w.id)*32 + lane
	switch name {
	case "%tid.x":
		return t % b.dim.X
	case "%tid.y":
		return t / b.dim.X % b.dim.Y
	case "%tid.z":
		return t / b.dim.X / b.dim.Y
	case "%ntid.x":
		return b.dim.X
	case "%ntid.y":
		return b.dim.Y
	case "%ntid.z":
		return b.dim.Z
	case "%ctaid.x":
		return b.at.X
	case "%ctaid.y":
		return b.at.Y
	case "%ctaid.z":
		return b.at.Z
	case "%nctaid.x":
		return b.grid.X
	case "%nctaid.y":
		return b.grid.Y
	case "%nctaid.z":
		return b.grid.Z
	case "%laneid":
		return lane
	case "%warpid":
		return uint32(w.id)
	case "%nwarpid", "%nsmid":
		return 64
	case "%lanemask_eq":
		return 1 << lane
	case "%lanemask_lt":
		return 1<<lane - 1
	case "%lanemask_le":
		return 2<<lane - 1
	case "%lanemask_gt":
		return ^(2<<lane - 1)
	case "%lanemask_ge":
		return ^(1<<lane - 1)
	case "%dynamic_smem_size":
		return uint32(len(b.shared) - (b.prog.shared+15)&^15)
	case "%total_smem_size":
		return uint32(len(b.shared))
	}
	return 0 // %smid, %gridid, %envreg
}

// Modes of a barrier.
const (
	barSync = iota
	barPopc
	barAnd
	barOr
)

// release lets the threads go on that wait at a barrier that all have reached.
func (b *block) release() {
	type arrivals struct {
		threads, want int
		yes           int
	}
	at := map[uint32]*arrivals{}
	left := 0
	var in *instr
	for _, w := range b.warps {
		left += bits.OnesCount32(w.alive)
		where := map[uint32]int32{}
		for _, g := range w.groups {
			if in = &b.prog.code[g.pc]; in.class != barrier {
				lane := bits.TrailingZeros32(g.mask)
				w.pc = g.pc
				w.fault(in, lane, driver.LaunchFailed, "waits for lanes that never come")
				return
			}
			lane := bits.TrailingZeros32(g.mask)
			id := uint32(w.r[in.a][lane])
			if pc, twice := where[id]; twice && pc != g.pc {
				w.pc = g.pc
				w.fault(in, lane, driver.LaunchFailed, "lanes of one warp reach a barrier at different places")
				return
			}
			where[id] = g.pc
			a := at[id]
			if a == nil {
				a = &arrivals{}
				at[id] = a
			}
			a.threads += bits.OnesCount32(g.mask)
			if in.c >= 0 {
				a.want = int(uint32(w.r[in.c][lane]))
			}
			if in.p >= 0 {
				p := w.p[in.p]
				if in.imm != 0 {
					p = ^p
				}
				a.yes += bits.OnesCount32(p & g.mask)
			}
		}
	}
	released := false
	b.period++
	for _, w := range b.warps {
		for i := range w.groups {
			g := &w.groups[i]
			in := &b.prog.code[g.pc]
			a := at[uint32(w.r[in.a][bits.TrailingZeros32(g.mask)])]
			if want := a.want; want != 0 && a.threads < min(want, left) || want == 0 && a.threads < left {
				continue
			}
			w.reduced(in, g.mask, a.yes, a.threads)
			g.pc++
			g.waits = false
			released = true
		}
	}
	if !released {
		b.fault = &fault{driver.LaunchFailed, fmt.Sprintf("%s: the threads of block %v wait at different barriers", b.prog.fn.name, b.at)}
	}
}

// reduced gives the lanes m what a barrier with reduction tells.
func (w *warp) reduced(in *instr, m uint32, yes, threads int) {
	if in.mode == barSync {
		return
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		switch {
		case in.mode == barPopc:
			w.r[in.dst][l] = uint64(yes)
		case in.mode == barAnd && yes == threads || in.mode == barOr && yes > 0:
			w.p[in.dst] |= 1 << l
		default:
			w.p[in.dst] &^= 1 << l
		}
	}
}

// sees reports whether threads may use an allocation.
//
//go:norace
func (b *block) sees(a *allocation) bool { return a.kind == driver.Host || a.ctx == b.ctx }

// fault ends the launch; it names the thread and the instruction.
//
//go:norace
func (w *warp) fault(in *instr, lane int, r driver.Result, why string) {
	b := w.blk
	t := uint32(w.id*32 + lane)
	where := fmt.Sprintf("%s, thread (%d,%d,%d) of block (%d,%d,%d)", b.prog.fn.name,
		t%b.dim.X, t/b.dim.X%b.dim.Y, t/b.dim.X/b.dim.Y, b.at.X, b.at.Y, b.at.Z)
	if in.st != nil {
		where += fmt.Sprintf(", line %d, %s", in.st.line, in.st.full())
	}
	b.fault = &fault{r, where + ": " + why}
}
