package ptxtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// maze is a random flow graph: block i computes x = x*mul+add, and goes to one
// of two blocks by a bit of x; after a number of steps a lane leaves.
type maze struct {
	mul, add []uint32
	bit      []int
	to       [][2]int
	steps    int
}

func (z *maze) ptx() string {
	var b strings.Builder
	b.WriteString(header + `.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n) {
	.reg .pred %p<3>; .reg .b32 %r<5>; .reg .b64 %d<5>;
	mov.u32 %r0, %tid.x; ld.param.u64 %d0, [in]; ld.param.u64 %d1, [out];
	mul.wide.u32 %d2, %r0, 4; add.s64 %d0, %d0, %d2; add.s64 %d1, %d1, %d2;
	ld.global.u32 %r1, [%d0]; mov.u32 %r2, 0;
`)
	for i := range z.mul {
		fmt.Fprintf(&b, "B%d: mad.lo.s32 %%r1, %%r1, %d, %d;\n\tadd.s32 %%r2, %%r2, 1; setp.gt.s32 %%p0, %%r2, %d; @%%p0 bra END;\n",
			i, z.mul[i], z.add[i], z.steps)
		fmt.Fprintf(&b, "\tand.b32 %%r3, %%r1, %d; setp.eq.s32 %%p1, %%r3, 0;\n\t@%%p1 bra B%d; bra B%d;\n", 1<<z.bit[i], z.to[i][0], z.to[i][1])
	}
	b.WriteString("END: st.global.u32 [%d1], %r1; ret;\n}\n")
	return b.String()
}

// walk is what one lane does.
func (z *maze) walk(x uint32) uint32 {
	at := 0
	for step := 1; ; step++ {
		x = x*z.mul[at] + z.add[at]
		if step > z.steps {
			return x
		}
		at = z.to[at][x>>z.bit[at]&1]
	}
}

// Lanes that part anywhere and meet anywhere compute what each would alone.
func TestDivergence(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(rt, "blocks")
		z := &maze{steps: rapid.IntRange(0, 40).Draw(rt, "steps")}
		for range n {
			z.mul = append(z.mul, rapid.Uint32().Draw(rt, "mul")|1)
			z.add = append(z.add, rapid.Uint32().Draw(rt, "add"))
			z.bit = append(z.bit, rapid.IntRange(0, 31).Draw(rt, "bit"))
			z.to = append(z.to, [2]int{rapid.IntRange(0, n-1).Draw(rt, "to"), rapid.IntRange(0, n-1).Draw(rt, "to")})
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		in := make([]uint32, 40)
		for i := range in {
			in[i] = r.Uint32()
		}
		m := start(t, Options{Seed: r.Uint64()}, []byte(z.ptx()))
		out := m.give(make([]uint32, len(in)))
		require.NoError(t, m.launch("k", 1, uint32(len(in)), 0, out, m.give(in), uint32(0)))
		got := make([]uint32, len(in))
		m.take(out, got)
		for i, x := range in {
			require.Equal(t, z.walk(x), got[i], "lane %d of\n%s", i, z.ptx())
		}
	})
}

// run launches one block of a hand-written kernel k(out) and returns words from out.
func runBlock(t *testing.T, o Options, body string, threads uint32, words int) []uint32 {
	m := start(t, o, []byte(header+body))
	out := m.give(make([]uint32, words))
	require.NoError(t, m.launch("k", 1, threads, 0, out))
	got := make([]uint32, words)
	m.take(out, got)
	return got
}

const prologue = `.visible .entry k(.param .u64 out) {
	.reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %d<9>;
	ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1;
`

// Reversal through shared memory in several rounds: every warp needs what the
// others wrote, whatever the order of warps.
func TestBarriers(t *testing.T) {
	body := ".shared .align 4 .b8 s[4096];\n" + prologue + `
	mov.u64 %d2, s; add.s64 %d2, %d2, %d1; mov.u32 %r1, %ntid.x; sub.s32 %r2, %r1, %r0; sub.s32 %r2, %r2, 1;
	mul.wide.u32 %d3, %r2, 4; mov.u64 %d4, s; add.s64 %d3, %d3, %d4;
	mad.lo.s32 %r3, %r0, 3, 1; mov.u32 %r4, 0;
LOOP:
	st.shared.u32 [%d2], %r3; bar.sync 0; ld.shared.u32 %r5, [%d3]; bar.sync 0;
	mad.lo.s32 %r3, %r5, 5, %r4; add.s32 %r4, %r4, 1; setp.lt.u32 %p0, %r4, 7; @%p0 bra LOOP;
	st.global.u32 [%d0], %r3; ret;
}`
	for seed := range uint64(8) {
		got := runBlock(t, Options{Seed: seed}, body, 200, 200)
		x := make([]uint32, 200)
		for i := range x {
			x[i] = uint32(3*i + 1)
		}
		for k := range uint32(7) {
			y := make([]uint32, 200)
			for i := range y {
				y[i] = x[199-i]*5 + k
			}
			x = y
		}
		require.Equal(t, x, got)
	}
}

// Without the barrier it is a race, whatever order the warps have; volatile
// accesses may race, and then some order shows it.
func TestMissingBarrierShows(t *testing.T) {
	body := ".shared .align 4 .b8 s[4096];\n" + prologue + `
	mov.u64 %d2, s; add.s64 %d2, %d2, %d1; xor.b32 %r2, %r0, 32; mul.wide.u32 %d3, %r2, 4; mov.u64 %d4, s; add.s64 %d3, %d3, %d4;
	st.shared.u32 [%d2], %r0; ld.shared.u32 %r5, [%d3]; st.global.u32 [%d0], %r5; ret;
}`
	for seed := range uint64(4) {
		for _, body := range []string{body, strings.Replace(body, "ld.shared", "ld.volatile.shared", 1)} {
			m := start(t, Options{Seed: seed}, []byte(header+body))
			require.NoError(t, m.launch("k", 1, 64, 0, m.give(make([]uint32, 64))))
			err := m.StreamSynchronize(m.s)
			require.ErrorIs(t, err, result(driver.LaunchFailed))
			require.ErrorContains(t, err, "race: warp")
		}
	}
	got := runBlock(t, Options{Seed: 1}, strings.ReplaceAll(body, ".shared.u32", ".volatile.shared.u32"), 64, 64)
	require.Contains(t, got, uint32(poison&0xffffffff))
}

// Which pairs of accesses to a byte race: by other warps, between the same
// barriers, unless both read or both are atomic.
func TestRaces(t *testing.T) {
	ins := map[string]string{
		"read": "ld.shared.u8 %r5, [%d2];", "write": "st.shared.u8 [%d2], 1;", "agree": "ld.volatile.shared.u8 %r5, [%d2];",
		"beside": "st.shared.u8 [%d2+1], 1;", "wide": "ld.shared.u16 %r5, [%d2];", "add": "atom.shared.add.u32 %r5, [%d2], 1;",
	}
	for first, a := range ins {
		for second, b := range ins {
			for _, bar := range []string{"", "bar.sync 0;"} {
				body := ".shared .align 4 .b8 s[8];\n" + prologue + `
	mov.u64 %d2, s; setp.ge.u32 %p1, %r0, 32; @!%p1 ` + a + bar + "@%p1 " + b + " ret; }"
				m := start(t, Options{Seed: 7}, []byte(header+body))
				require.NoError(t, m.launch("k", 1, 64, 0, m.give(make([]uint32, 64))))
				err := m.StreamSynchronize(m.s)
				reads := func(s string) bool { return s == "read" || s == "wide" }
				agrees := func(s string) bool { return s == "agree" || s == "add" }
				apart := func(s, o string) bool { return s == "beside" && (o == "read" || o == "write" || o == "agree") }
				if bar != "" || reads(first) && reads(second) || agrees(first) && agrees(second) || apart(first, second) || apart(second, first) {
					require.NoError(t, err, "%s%s%s", a, bar, b)
					continue
				}
				require.ErrorContains(t, err, "race: warp", "%s%s", a, b)
			}
		}
	}
}

// A barrier that counts and combines predicates.
func TestBarrierReductions(t *testing.T) {
	body := prologue + `
	rem.u32 %r1, %r0, 3; setp.eq.s32 %p0, %r1, 0;
	bar.red.popc.u32 %r2, 0, %p0; bar.red.or.pred %p1, 0, %p0; bar.red.and.pred %p2, 0, !%p0; setp.ge.s32 %p3, %r0, 0; bar.red.and.pred %p4, 1, %p3;
	selp.b32 %r3, 1000, 0, %p1; @%p2 add.s32 %r3, %r3, 10000; @%p4 add.s32 %r3, %r3, 100000;
	add.s32 %r2, %r2, %r3; st.global.u32 [%d0], %r2; ret;
}`
	for i, v := range runBlock(t, Options{}, body, 100, 100) {
		require.Equal(t, uint32(34+1000+100000), v, "thread %d", i)
	}
}

// Shuffles as the manual defines them, in segments and beyond their ends.
func TestShuffles(t *testing.T) {
	for _, sync := range []bool{true, false} {
		for mode, from := range map[string]func(lane, b, first, last, seg int) (int, bool){
			"up":   func(lane, b, _, last, _ int) (int, bool) { return lane - b, lane-b >= last },
			"down": func(lane, b, _, last, _ int) (int, bool) { return lane + b, lane+b <= last },
			"bfly": func(lane, b, _, last, _ int) (int, bool) { return lane ^ b, lane^b <= last },
			"idx": func(_, b, first, last, seg int) (int, bool) {
				return first | b&^seg, first|b&^seg <= last
			},
		} {
			for _, width := range []int{32, 16, 8, 2} {
				for _, b := range []int{0, 1, 3, 7, 16, 31} {
					c := (32 - width) << 8
					if mode != "up" {
						c |= 31
					}
					ins := fmt.Sprintf("shfl.%s.b32 %%r1|%%p0, %%r0, %d, %d;", mode, b, c)
					if sync {
						ins = fmt.Sprintf("shfl.sync.%s.b32 %%r1|%%p0, %%r0, %d, %d, -1;", mode, b, c)
					}
					got := runBlock(t, Options{}, prologue+"add.s32 %r0, %r0, 100;"+ins+"@%p0 add.s32 %r1, %r1, 1000; st.global.u32 [%d0], %r1; ret; }", 32, 32)
					for lane := range 32 {
						seg := 32 - width
						first := lane & seg
						last := first | c&31&^seg
						want, ok := from(lane, b, first, last, seg)
						if !ok {
							require.Equal(t, uint32(100+lane), got[lane], "%s lane %d", ins, lane)
							continue
						}
						require.Equal(t, uint32(1100+want), got[lane], "%s lane %d", ins, lane)
					}
				}
			}
		}
	}
}

// What has no value is poison: the lanes that are not there.
func TestShuffleFromNobody(t *testing.T) {
	got := runBlock(t, Options{}, prologue+"shfl.down.b32 %r1, %r0, 1, 31; st.global.u32 [%d0], %r1; ret; }", 20, 20)
	require.Equal(t, uint32(19), got[18])
	require.Equal(t, uint32(poison&0xffffffff), got[19])
}

// Votes, matches and masks over lanes that parted.
func TestVotes(t *testing.T) {
	body := prologue + `
	setp.lt.u32 %p0, %r0, 20; rem.u32 %r1, %r0, 3; setp.eq.s32 %p1, %r1, 0; setp.ge.s32 %p6, %r0, 0;
	mov.u32 %r9, 0; mov.u32 %r8, 0;
	@%p0 bra LOW;
	vote.sync.ballot.b32 %r9, %p1, 0xfff00000;
	match.any.sync.b32 %r8, %r1, 0xfff00000;
	bra DONE;
LOW:
	activemask.b32 %r9;
	vote.sync.all.pred %p2, %p6, 0xfffff; vote.sync.any.pred %p3, !%p6, 0xfffff; vote.sync.uni.pred %p4, %p1, 0xfffff; vote.all.pred %p7, %p1;
	selp.b32 %r8, 1, 0, %p2; @%p3 add.s32 %r8, %r8, 10; @%p4 add.s32 %r8, %r8, 100; @%p7 add.s32 %r8, %r8, 1000;
	match.all.sync.b32 %r2|%p5, %r0, 0xfffff; @%p5 add.s32 %r8, %r8, 10000; add.s32 %r8, %r8, %r2;
	match.all.sync.b64 %r2|%p5, %d9, 0xfffff; @%p5 add.s32 %r8, %r8, 20000;
DONE:
	st.global.u32 [%d0], %r9; st.global.u32 [%d0+128], %r8; ret;
}`
	body = strings.Replace(body, ".reg .b64 %d<9>;", ".reg .b64 %d<9>; .reg .b64 %d9; mov.u64 %d9, 77;", 1)
	got := runBlock(t, Options{}, body, 32, 64)
	for lane := range uint32(32) {
		var thirds, same uint32
		for l := uint32(20); l < 32; l++ {
			if l%3 == 0 {
				thirds |= 1 << l
			}
			if l%3 == lane%3 {
				same |= 1 << l
			}
		}
		if lane < 20 {
			require.Equal(t, uint32(1<<20-1), got[lane])
			require.Equal(t, uint32(20001), got[32+lane])
			continue
		}
		require.Equal(t, thirds, got[lane])
		require.Equal(t, same, got[32+lane])
	}
}

// Lanes that come to a shuffle on different ways wait for each other.
func TestLanesMeet(t *testing.T) {
	body := prologue + `
	and.b32 %r1, %r0, 1; setp.eq.s32 %p0, %r1, 0; mov.u32 %r2, %r0;
	@%p0 bra EVEN;
	add.s32 %r2, %r2, 100;
	bar.warp.sync -1;
	bra JOIN;
JOIN:
	shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1; st.global.u32 [%d0], %r3; ret;
EVEN:
	add.s32 %r2, %r2, 200;
	bra BACK;
BACK:
	bar.warp.sync -1;
	bra JOIN;
}`
	// Two different bar.warp.sync: the lanes of neither are complete.
	m := start(t, Options{}, []byte(header+body))
	require.NoError(t, m.launch("k", 1, 32, 0, m.give(make([]uint32, 32))))
	require.ErrorIs(t, m.StreamSynchronize(m.s), &driver.Error{Result: driver.LaunchFailed})
	got := runBlock(t, Options{}, strings.ReplaceAll(body, "bar.warp.sync -1;", ""), 32, 32)
	for lane := range uint32(32) {
		want := lane ^ 1
		if want&1 == 0 {
			want += 200
		} else {
			want += 100
		}
		require.Equal(t, want, got[lane])
	}
}

// A lane may wait for another one of its warp, and a warp for another one.
func TestSpinning(t *testing.T) {
	body := ".shared .align 4 .b8 s[8];\n" + prologue + `
	mov.u64 %d2, s; setp.ne.s32 %p0, %r0, 0; @%p0 bra WAIT0;
	st.shared.u32 [%d2], 0; st.shared.u32 [%d2+4], 0;
WAIT0: bar.sync 0;
	setp.eq.s32 %p1, %r0, WHO; @%p1 bra WRITE;
SPIN: ld.volatile.shared.u32 %r1, [%d2]; setp.eq.s32 %p2, %r1, 0; @%p2 bra SPIN;
	bra OUT;
WRITE: st.volatile.shared.u32 [%d2], 7; mov.u32 %r1, 7;
OUT: st.global.u32 [%d0], %r1; ret;
}`
	for _, who := range []int{0, 5, 31, 32, 63} {
		for _, v := range runBlock(t, Options{Seed: 3}, strings.ReplaceAll(body, "WHO", fmt.Sprint(who)), 64, 64) {
			require.Equal(t, uint32(7), v)
		}
	}
}

func TestBranchTable(t *testing.T) {
	body := prologue + `
	rem.u32 %r1, %r0, 3; mov.u32 %r2, 0;
	T: .branchtargets A, B, C;
	brx.idx %r1, T;
A:	add.s32 %r2, %r2, 1;
B:	add.s32 %r2, %r2, 10;
C:	add.s32 %r2, %r2, 100; st.global.u32 [%d0], %r2; ret;
}`
	for i, v := range runBlock(t, Options{}, body, 32, 32) {
		require.Equal(t, []uint32{111, 110, 100}[i%3], v)
	}
}

// A grid and a block of three dimensions, and the registers that say where one is.
func TestSpecialRegisters(t *testing.T) {
	names := []string{
		"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z",
		"%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le",
		"%lanemask_gt", "%lanemask_ge", "WARP_SZ", "%dynamic_smem_size", "%total_smem_size",
	}
	var b strings.Builder
	b.WriteString(header + ".shared .b8 fixed[16]; .extern .shared .b8 more[];\n.visible .entry k(.param .u64 out) { .reg .b32 %r<9>; .reg .b64 %d<9>;\n")
	b.WriteString(`mov.u32 %r0, %ctaid.z; mad.lo.s32 %r0, %r0, 2, %ctaid.y; mad.lo.s32 %r0, %r0, 2, %ctaid.x;
	mad.lo.s32 %r0, %r0, 2, %tid.z; mad.lo.s32 %r0, %r0, 3, %tid.y; mad.lo.s32 %r0, %r0, 7, %tid.x;
	ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r0, ` + fmt.Sprint(4*len(names)) + ", %d0; mov.u64 %d1, more; mov.u64 %d1, fixed;\n")
	for i, n := range names {
		fmt.Fprintf(&b, "mov.u32 %%r1, %s; st.global.u32 [%%d0+%d], %%r1;\n", n, 4*i)
	}
	b.WriteString("ret; }")
	m := start(t, Options{Seed: 5}, []byte(b.String()))
	grid, dim := driver.Dim{X: 2, Y: 2, Z: 3}, driver.Dim{X: 7, Y: 3, Z: 2}
	got := make([]uint32, 12*42*len(names))
	out := m.give(got)
	f, err := m.Function(m.m, "k")
	require.NoError(t, err)
	require.NoError(t, m.Launch(f, grid, dim, 100, m.s, arguments(out)))
	m.take(out, got)
	for i := range uint32(12 * 42) {
		th, bl := i%42, i/42
		lane := th % 32
		require.Equal(t, []uint32{
			th % 7, th / 7 % 3, th / 21, 7, 3, 2, bl % 2, bl / 2 % 2, bl / 4, 2, 2, 3,
			lane, th / 32, 1 << lane, 1<<lane - 1, 1<<lane | (1<<lane - 1), ^(1<<lane | (1<<lane - 1)), ^uint32(1<<lane - 1), 32, 100, 116,
		}, got[int(i)*len(names):][:len(names)], "thread %d", i)
	}
}

// Atomic operations of all lanes on one word give what they do in some order.
func TestAtomics(t *testing.T) {
	for op, c := range map[string]struct {
		start uint32
		want  uint32
	}{
		"add.u32 %r1, [%d2], %r0":        {10, 10 + 496},
		"min.s32 %r1, [%d2], %r0":        {^uint32(4), ^uint32(4)},
		"min.u32 %r1, [%d2], %r0":        {^uint32(4), 0},
		"max.s32 %r1, [%d2], %r0":        {^uint32(4), 31},
		"max.u32 %r1, [%d2], %r0":        {^uint32(4), ^uint32(4)},
		"and.b32 %r1, [%d2], -2":         {7, 6},
		"or.b32 %r1, [%d2], %r0":         {64, 95},
		"xor.b32 %r1, [%d2], %r0":        {1, 1},
		"inc.u32 %r1, [%d2], 9":          {0, 2},
		"dec.u32 %r1, [%d2], 9":          {0, 8},
		"exch.b32 %r1, [%d2], 5":         {0, 5},
		"cas.b32 %r1, [%d2], 3, 4":       {3, 4},
		"cas.b32 %r1, [%d2], 2, 4":       {3, 3},
		"add.f32 %r1, [%d2], 0f3F800000": {0x3f800000, 0x42040000},
	} {
		for _, space := range []string{"global.", "", "relaxed.gpu.global."} {
			body := strings.Replace(prologue, "ld.param.u64 %d0, [out];", "ld.param.u64 %d0, [out]; mov.u64 %d2, %d0;", 1) +
				"atom." + strings.Replace(space, "global.", "global.", 1) + op + ";\nmov.u32 %r9, %laneid; st.global.u32 [%d0+4], %r1; ret; }"
			m := start(t, Options{}, []byte(header+body))
			words := make([]uint32, 33)
			words[0] = c.start
			out := m.give(words)
			require.NoError(t, m.launch("k", 1, 32, 0, out))
			m.take(out, words)
			require.Equal(t, c.want, words[0], op)
			require.Equal(t, c.start, words[1], "%s: the first lane saw another value", op)
		}
	}
	body := ".shared .align 8 .b8 s[8];\n" + prologue + `
	mov.u64 %d2, s; setp.ne.s32 %p0, %r0, 0; @!%p0 st.shared.u64 [%d2], 0; bar.sync 0;
	cvt.u64.u32 %d3, %r0; shl.b64 %d3, %d3, 30; red.shared.add.u64 [%d2], %d3; bar.sync 0;
	ld.shared.u64 %d4, [%d2]; shr.u64 %d4, %d4, 30; cvt.u32.u64 %r1, %d4; st.global.u32 [%d0], %r1; ret; }`
	for _, v := range runBlock(t, Options{}, body, 96, 96) {
		require.Equal(t, uint32(95*96/2), v)
	}
}

// Generic addresses of all spaces, loads of all sizes with their signs.
func TestSpaces(t *testing.T) {
	body := ".const .align 4 .b8 c[8] = {1, 2, 3, 0x84, 5, 6, 7, 8};\n.global .align 4 .u32 g[2] = {77, -3};\n.shared .align 4 .b8 s[8];\n" + prologue + `
	.local .align 4 .b8 l[8];
	mov.u64 %d1, c; cvta.const.u64 %d1, %d1; ld.s8 %r1, [%d1+3]; st.global.u32 [%d0], %r1;
	isspacep.const %p0, %d1; selp.b32 %r1, 1, 0, %p0; isspacep.global %p0, %d1; @%p0 add.s32 %r1, %r1, 2; st.global.u32 [%d0+4], %r1;
	mov.u64 %d2, s; cvta.shared.u64 %d3, %d2; st.u16 [%d3+2], %r0; st.shared.u16 [%d2], 0x8001; ld.s16 %r2, [%d3]; st.global.u32 [%d0+8], %r2;
	ld.shared.u16 %r2, [%d2+2]; st.global.u32 [%d0+12], %r2;
	mov.u64 %d4, l; cvta.local.u64 %d5, %d4; st.local.v2.u32 [%d4], {%r0, 9}; ld.v2.u32 {%r3, %r4}, [%d5]; sub.s32 %r3, %r4, %r3; st.global.u32 [%d0+16], %r3;
	cvta.to.local.u64 %d6, %d5; sub.s64 %d6, %d6, %d4; cvt.u32.u64 %r5, %d6; st.global.u32 [%d0+20], %r5;
	mov.u64 %d7, g; cvta.global.u64 %d7, %d7; ld.u32 %r6, [%d7+4]; st.global.u32 [%d0+24], %r6; ld.global.u32 %r6, [g]; st.global.u32 [%d0+28], %r6;
	ld.const.u8 %r7, [c+3]; st.global.u32 [%d0+32], %r7;
	ret; }`
	got := runBlock(t, Options{}, body, 1, 9)
	require.Equal(t, []uint32{0xffffff84, 1, 0xffff8001, 0, 9, 0, ^uint32(2), 77, 0x84}, got)
}
