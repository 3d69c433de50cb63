package ptxtest

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// Text that is not PTX, or not what the interpreter knows, fails with its line.
func TestBadModules(t *testing.T) {
	in := func(ins string) string { return strings.Replace(access, "INS", "\n"+ins, 1) }
	for src, want := range map[string]string{
		"":                                      "line 1: .version or .target is missing",
		".version 6.0":                          "line 1: .version or .target",
		"\n.version six":                        `line 2: bad version "six"`,
		".target sm_x":                          "bad target",
		header + "rubbish":                      `line 4: unexpected "rubbish"`,
		header + ".address_size 32":             "addresses have 64 bits",
		header + "/* no end":                    "line 4: comment without end",
		header + `.pragma "no end`:              "string without end",
		header + "\x01":                         "unexpected byte 0x01",
		header + "é":                            "unexpected byte",
		header + ".visible .entry k(":           "unexpected end",
		header + ".visible .entry k() {":        "unexpected end",
		header + ".global .u32 g[99999999999];": "expected a number up to",
		header + ".global .u32 g[300000];":      "larger than",
		header + ".shared .b8 a[40000]; .shared .b8 b[40000]; .visible .entry k() {}": "more than 49152 bytes",
		header + ".const .b8 a[40000]; .const .b8 b[40000];":                          "more than 65536 bytes",
		header + ".global .u32 g = {1, 2};":                                           "more initial values",
		header + ".global .u32 g; .global .u32 g;":                                    "declared twice",
		header + ".global .u32 g = other;":                                            "only numbers",
		header + ".global .align 3 .u32 g;":                                           "not a power of two",
		header + ".global .pred g;":                                                   "no type of a variable",
		header + ".visible .entry k(.param .b8 a[5000]) {}":                           "expected a number up to 4352",
		header + ".visible .entry k() {} .visible .entry k() {}":                      "defined twice",
		header + ".visible .entry k() { " + strings.Repeat("{", 100):                  "too many braces",
		header + ".global .u32 g = " + strings.Repeat("{", 200):                       "too many braces",
		header + ".visible .entry k() { mov.u32 " + strings.Repeat("{", 200):          "too many brackets",
		in("nonsense.u32 %r0, %r1;"):                                                  "line 6: the interpreter does not know nonsense.u32",
		in("add.u32 %r0, %r1;"):                                                       "with 2 operands",
		in("add.u32 %r0, %r1, %r9;"):                                                  "register %r9 is not declared",
		in("add.u32 %r0, %r1, %x;"):                                                   "unknown register %x",
		in("add.u32 %r0, %r1, %d0;"):                                                  "a register of type b64 where u32 belongs",
		in("add.u64 %r0, %d1, %d0;"):                                                  "a register of type b32 where u64 belongs",
		in("add.u32 %p0, %r1, %r2;"):                                                  "belongs",
		in("add.q32 %r0, %r1, %r2;"):                                                  "has no type",
		in("add.odd.u32 %r0, %r1, %r2;"):                                              "does not know .odd of add",
		in("add.f32 %r0, %r1, 1;"):                                                    "an integer where a floating-point number belongs",
		in("add.f64 %d0, %d1, 0f3F800000;"):                                           "a single where a double belongs",
		in("add.u8 %r0, %r1, %r2;"):                                                   "does not know add.u8",
		in("mul.wide.u64 %d0, %d1, %d2;"):                                             "does not know mul.wide.u64",
		in("shl.b32 %r0, %r1, %d0;"):                                                  "belongs",
		in("ex2.f32 %r0, %r1;"):                                                       "does not know ex2.f32",
		in("cvt.s32.f32 %r0, %r1;"):                                                   "does not know cvt.s32.f32",
		in("bra NOWHERE;"):                                                            "label NOWHERE is not there",
		in("L: L: ret;"):                                                              "declared twice",
		in("@%r0 ret;"):                                                               "a guard has to be a predicate",
		in("ld.global.v2.u32 {%r0}, [%d0];"):                                          "of 1 elements",
		in("ld.global.v3.u32 {%r0, %r1, %r2}, [%d0];"):                                "",
		in("ld.global.u32 %r0, %d0;"):                                                 "an address belongs here",
		in("ld.global.u64 %r0, [%d0];"):                                               "belongs",
		in("st.const.u32 [%d0], %r0;"):                                                "cannot be written",
		in("ld.global.u32 %r0, [%r1];"):                                               "belongs",
		in("mov.b64 {%r0, %r1, %r2}, %d0;"):                                           "of 3 elements",
		in("lop3.b32 %r0, %r1, %r2, %r3, 256;"):                                       "8 bits",
		in("shfl.sync.sideways.b32 %r0, %r1, 1, 31, -1;"):                             "does not know shfl",
		in("call nothing;"):                                                           "not a function of the module",
		in("brx.idx %r0, T;"):                                                         "no .branchtargets",
		in("setp.lt.and.u32 %p0, %r0, %r1;"):                                          "with 3 operands",
		in("setp.lt.u32 %p0, %r0, %r1, %p1;"):                                         "with 4 operands",
		in("mov.u32 %r0, 09;"):                                                        "bad number",
		in("mov.u32 %r0, 0x12345678123456789;"):                                       "bad number",
		in("mov.u32 %r0, -%r1;"):                                                      "not an integer",
		in("tex.2d.v4.f32.f32 {%r0, %r0, %r0, %r0}, [t, {%r0, %r0}];"):                "",
		in("wmma.load.a.sync %r0, [%d0];"):                                            "",
		header + ".func f() { call f; ret; } .visible .entry k() { call f; }":         "calls itself",
		header + ".func f(); .visible .entry k() { call f; }":                         "not defined",
		header + ".func f(.param .b32 a) { ret; } .visible .entry k() { call f; }":    "0 parameters where f has 1",
	} {
		_, err := compiledNew(src)
		var bad *syntaxError
		require.ErrorAs(t, err, &bad, "%q", src)
		require.ErrorContains(t, err, want, "%q", src)
		require.Positive(t, bad.line)
	}
	m := start(t, Options{}, sample)
	_, log, err := m.ModuleLoad([]byte(header + "rubbish"))
	require.ErrorIs(t, err, result(driver.InvalidPTX))
	require.Equal(t, `line 4: unexpected "rubbish"`, log)
}

// compiledNew parses and links all kernels of a module.
func compiledNew(src string) (*module, error) {
	mod, err := parse(src)
	if err != nil {
		return nil, err
	}
	for _, name := range mod.order {
		if fn := mod.funcs[name]; fn.entry && !fn.declare {
			if _, err := link(mod, fn, false); err != nil {
				return nil, err
			}
		}
	}
	return mod, nil
}

// Any text is a module or an error with a line, and what it claims is bounded.
func FuzzModule(f *testing.F) {
	f.Add(string(sample))
	f.Add(one("add.s32", s32, s32, s32))
	f.Add(one("setp.lt.and.f32 %p1|%p2, $1, $2, !%p0; mov.b32 {%h1, %h2}, $1;", f32, f32, f32))
	f.Add((&maze{mul: []uint32{3}, add: []uint32{1}, bit: []int{0}, to: [][2]int{{0, 0}}, steps: 3}).ptx())
	f.Add(header + ".func (.param .b32 r) f(.param .b32 a) { ret; } .visible .entry k() { .param .b32 x; .param .b32 y; call (x), f, (y); }")
	f.Add(header + ".visible .entry k() { .reg .b32 %r<2>; .reg .b64 %d; T: .branchtargets A; brx.idx %r0, T; A: atom.add.u32 %r1, [%d], 4; bar.red.popc.u32 %r0, 0, %p; trap; }")
	f.Fuzz(func(t *testing.T, src string) {
		mod, err := compiledNew(src)
		var bad *syntaxError
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("%T: %v", err, err)
		}
		if err == nil && len(mod.constants)+len(mod.variables) > maxConst+maxGlobal {
			t.Fatal("variables beyond all limits")
		}
	})
}
