package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"

	cpugeneric "github.com/gopccl/gopccl/backends/cpu_generic"
)

func oracle(t *testing.T) backend.Backend {
	b, err := cpugeneric.Driver{}.New()
	require.NoError(t, err)
	return b
}

// quieted returns x with the bit that makes a NaN quiet, and whether it is a NaN.
func quieted(t dtype.Type, x uint64) (uint64, bool) {
	s := specials(t)
	inf, quiet, sign := s[9], s[11]-s[9], s[len(s)/2]
	return x | quiet, x&^sign > inf
}

// expect is a op b as a kernel has to compute it. A NaN that arithmetic makes is
// the first operand that is one, quiet, else the negative one without payload.
func expect(t *testing.T, cpu backend.Backend, typ dtype.Type, op dtype.Op, a, b []byte) []byte {
	want := make([]byte, len(a))
	cpu.Reduce(typ, op, want, a, b)
	if !typ.IsFloat() || op == dtype.Max || op == dtype.Min {
		return want
	}
	s := specials(typ)
	for i := range len(a) / typ.Size() {
		got := element(typ, want, i)
		if _, nan := quieted(typ, got); !nan {
			continue
		}
		x, nan := quieted(typ, element(typ, a, i))
		if !nan {
			x, nan = quieted(typ, element(typ, b, i))
		}
		if !nan {
			x = s[11] | s[len(s)/2]
		}
		if sameNaNs {
			require.Equal(t, x, got, "%v of %v: the processor differs from the rule", op, typ)
		}
		setElement(typ, want, i, x)
	}
	return want
}

// layout is where three operands lie: multiples of the element's size behind a
// border of 16 bytes, and whether dst is a or b.
type layout struct {
	dst, a, b int
	alias     string
}

var layouts = []layout{{}, {alias: "a"}, {alias: "b"}, {1, 1, 1, ""}, {0, 1, 0, ""}, {2, 0, 3, ""}, {a: 1, b: 1, alias: "a"}, {b: 1, alias: "b"}, {0, 0, 1, "a"}}

// Every operation on every type, in two- and three-operand form, with and
// without vectors, gives the bits of cpu_generic, and of the rule for NaNs.
func TestReduce(t *testing.T) {
	m, cpu := open(t, Reduction), oracle(t)
	for _, seed := range seeds(1) {
		m.reduceAll(cpu, rand.New(rand.NewPCG(seed, 7)))
	}
}

func (m *machine) reduceAll(cpu backend.Backend, rng *rand.Rand) {
	for typ := range dtype.Type(dtype.NumTypes) {
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			for i, l := range layouts {
				lengths := []int{1 + rng.IntN(70)}
				if !testing.Short() {
					lengths = append(lengths, rng.IntN(20), 300+rng.IntN(900), 256*16/typ.Size()+rng.IntN(40))
				} else if (i+int(op)+int(typ))%3 != 0 {
					continue
				}
				for _, n := range lengths {
					m.reduce(cpu, typ, op, l, patterns(typ, n, rng), patterns(typ, n, rng))
				}
			}
		}
	}
}

func (m *machine) reduce(cpu backend.Backend, typ dtype.Type, op dtype.Op, l layout, a, b []byte) {
	n := len(a) / typ.Size()
	want := expect(m.t, cpu, typ, op, a, b)
	x, y := m.put(a, l.a*typ.Size()), m.put(b, l.b*typ.Size())
	dst := x
	switch l.alias {
	case "":
		dst = m.put(make([]byte, len(a)), l.dst*typ.Size())
	case "b":
		dst = y
	}
	require.NoError(m.t, m.k.Reduce(typ, op, dst.Ptr, x.Ptr, y.Ptr, uint64(n), 0))
	m.same(typ, want, m.take(dst), "%v of %d %v, %+v: %x and %x", op, n, typ, l, a, b)
	for _, o := range []operand{x, y} {
		if o.Ptr != dst.Ptr {
			m.free(o)
		}
	}
}

// same compares elements and names the first that differs.
func (m *machine) same(t dtype.Type, want, got []byte, format string, a ...any) {
	require.Len(m.t, got, len(want))
	for i := range len(want) / t.Size() {
		if w, g := element(t, want, i), element(t, got, i); w != g {
			require.Failf(m.t, "element differs", "%d is %#x, want %#x: %s", i, g, w, fmt.Sprintf(format, a...))
		}
	}
}

// Every pair of special patterns of every float, among them NaNs of both kinds
// with and without payload, zeros of both signs and subnormals.
func TestReduceSpecials(t *testing.T) {
	m, cpu := open(t, Reduction), oracle(t)
	for typ := dtype.Float16; typ <= dtype.Float64; typ++ {
		s := specials(typ)
		n := len(s) * len(s)
		a, b := make([]byte, n*typ.Size()), make([]byte, n*typ.Size())
		for i := range n {
			setElement(typ, a, i, s[i/len(s)])
			setElement(typ, b, i, s[i%len(s)])
		}
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			m.reduce(cpu, typ, op, layout{}, a, b)
		}
	}
}

// All patterns of the 16 bit floats beside chosen ones: every rounding.
func TestReduceHalves(t *testing.T) {
	m, cpu := open(t, Reduction), oracle(t)
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	step := 1
	if testing.Short() {
		step = 37
	}
	var some []uint16
	for i := 0; i < len(all); i += step {
		some = append(some, all[i])
	}
	rng := rand.New(rand.NewPCG(2, 7))
	other := make([]uint16, len(some))
	for i := range other {
		other[i] = uint16(rng.Uint32())
	}
	for _, typ := range []dtype.Type{dtype.Float16, dtype.BFloat16} {
		for _, op := range []dtype.Op{dtype.Sum, dtype.Prod} {
			m.reduce(cpu, typ, op, layout{}, dtype.AsBytes(some), dtype.AsBytes(other))
		}
	}
}

// The quotient of an average: integers are cut, floats rounded once. World
// sizes that do not fit the element divide like others.
func TestFinalize(t *testing.T) {
	m, cpu := open(t, Reduction), oracle(t)
	rng := rand.New(rand.NewPCG(3, 7))
	for typ := range dtype.Type(dtype.NumTypes) {
		for i, world := range []int{2, 3, 7, 48, 300, 70000, 1<<31 - 1, 1, 0} {
			if testing.Short() && (i+int(typ))%4 != 0 && i < 7 {
				continue
			}
			n := 1 + rng.IntN(90)
			if i == 1 {
				n += 256 * 16 / typ.Size()
			}
			x := patterns(typ, n, rng)
			o := m.put(x, i%3*typ.Size())
			if world > 0 {
				cpu.Finalize(typ, x, world)
			}
			require.NoError(t, m.k.Finalize(typ, o.Ptr, uint64(n), world, 0))
			m.same(typ, x, m.take(o), "%d %v by %d", n, typ, world)
		}
	}
}
