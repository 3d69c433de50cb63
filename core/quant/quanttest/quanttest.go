// Package quanttest is the proof that a quantizer does what quant.Quantizer
// asks: results that are the same bits on every peer of a ring, however a
// chunk is cut into frames and wherever it lies in memory, metadata that every
// receiver takes, and a clear refusal of what is not supported.
package quanttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/allocs"
)

// combination is one that a quantizer accepts.
type combination struct {
	t, q dtype.Type
	op   dtype.Op
	form quant.Form
}

func (c combination) String() string { return fmt.Sprintf("%v-%v-%v", c.t, c.q, c.op) }

// Run checks q for every combination of types and operations that it accepts
// between gopccl peers.
func Run(t *testing.T, q quant.Quantizer) {
	if q.Name() == "" || q.Name() == "none" {
		t.Errorf("bad name %q", q.Name())
	}
	accepted, err := checkTable(q)
	if err != nil {
		t.Error(err)
	}
	if len(accepted) == 0 {
		t.Error("no combination is accepted")
	}
	for _, c := range accepted {
		t.Run(c.String(), func(t *testing.T) {
			checks := []func(quant.Quantizer, combination) error{checkCodec, checkAdversarial, checkEmpty}
			if c.op == dtype.Sum {
				checks = append(checks, checkMeta, checkStrange, checkError, checkIdentity, checkGather)
			}
			for _, check := range checks {
				if err := check(q, c); err != nil {
					t.Error(err)
				}
			}
			if n := allocations(q, c); n != 0 {
				t.Errorf("%v allocations per call, want none", n)
			}
		})
	}
}

// checkTable calls Check with everything that a caller may pass, nonsense
// included (data spec, section 4.1), and returns what is accepted for long chunks.
func checkTable(q quant.Quantizer) ([]combination, error) {
	var accepted []combination
	_, formed := q.(quant.Formed)
	for t := range dtype.Type(dtype.NumTypes + 2) {
		for _, qt := range wireTypes() {
			for op := range dtype.Op(dtype.NumOps + 1) {
				native, compat := quant.Check(q, t, qt, op, 1000, true), quant.Check(q, t, qt, op, 1000, false)
				if formed && !errors.Is(compat, quant.ErrNative) {
					return nil, fmt.Errorf("%v to %v, %v: PCCL peers do not have its form, and the error is %w", t, qt, op, compat)
				}
				if compat == nil && native != nil {
					return nil, fmt.Errorf("%v to %v, %v: allowed with PCCL peers and refused without", t, qt, op)
				}
				if native != nil {
					continue
				}
				c := combination{t, qt, op, quant.FormOf(q, t, qt)}
				switch {
				case !op.Valid() || !t.Valid() || !qt.Valid() && !qt.Packed():
					return nil, fmt.Errorf("%v is accepted", c)
				case t != dtype.Float32 && t != dtype.Float64, t == qt, qt.IsFloat():
					return nil, fmt.Errorf("%v is accepted", c)
				case q.Check(t, qt, op, 0, true) == nil:
					return nil, fmt.Errorf("%v is accepted with empty chunks (quirk Q28)", c)
				}
				accepted = append(accepted, c)
			}
		}
	}
	return accepted, nil
}

// wireTypes are those that somebody may ask for, and some that are none.
func wireTypes() (list []dtype.Type) {
	for t := range dtype.Type(dtype.NumTypes + 2) {
		list = append(list, t)
	}
	return append(list, dtype.Uint4, dtype.Int4, dtype.Int4+1)
}

// samples are chunks of n elements of every kind that training produces, as numbers.
func samples(n int, rng *rand.Rand) map[string][]float64 {
	s := map[string][]float64{}
	make1 := func(name string, f func(i int) float64) {
		v := make([]float64, n)
		for i := range v {
			v[i] = f(i)
		}
		s[name] = v
	}
	make1("normal", func(int) float64 { return rng.NormFloat64() })
	make1("small", func(int) float64 { return rng.NormFloat64() * 1e-6 })
	make1("large", func(int) float64 { return rng.NormFloat64() * 1e6 })
	make1("offset", func(int) float64 { return 1000 + rng.Float64() })
	make1("negative", func(int) float64 { return -5 - rng.Float64() })
	make1("zeros", func(int) float64 { return 0 })
	make1("negative zeros", func(int) float64 { return math.Copysign(0, -1) })
	make1("constant", func(int) float64 { return 0.1 })
	make1("negative constant", func(int) float64 { return -12345.678 })
	make1("subnormal", func(i int) float64 { return float64(i%5) * 1e-41 })
	make1("outlier", func(i int) float64 {
		if i == n/2 {
			return 1e4
		}
		return rng.NormFloat64()
	})
	return s
}

// hostile are chunks that no well-behaved trainer produces.
func hostile(n int, rng *rand.Rand) map[string][]float64 {
	nan, inf := math.NaN(), math.Inf(1)
	s := map[string][]float64{}
	fill := func(name string, some ...float64) {
		v := make([]float64, n)
		for i := range v {
			v[i] = rng.NormFloat64()
			if i < len(some) || len(some) == 1 {
				v[i] = some[i%len(some)]
			}
		}
		s[name] = v
	}
	fill("a NaN", nan, 1)
	fill("all NaN", nan)
	fill("infinite", inf, -inf)
	fill("all infinite", inf)
	fill("largest", math.MaxFloat64, -math.MaxFloat64)
	fill("largest float32", math.MaxFloat32, -math.MaxFloat32)
	fill("all largest float32", math.MaxFloat32)
	fill("smallest", math.SmallestNonzeroFloat64)
	fill("smallest float32", math.SmallestNonzeroFloat32)
	return s
}

// encode gives v as elements of t.
func encode(t dtype.Type, v []float64) []byte {
	b := make([]byte, len(v)*t.Size())
	for i, x := range v {
		if t == dtype.Float32 {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(x)))
		} else {
			binary.LittleEndian.PutUint64(b[8*i:], math.Float64bits(x))
		}
	}
	return b
}

// decode is the inverse of encode.
func decode(t dtype.Type, b []byte) []float64 {
	v := make([]float64, len(b)/t.Size())
	for i := range v {
		if t == dtype.Float32 {
			v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		} else {
			v[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	return v
}

// combine is the oracle for accumulation (data spec, section 3).
func combine(t dtype.Type, op dtype.Op, acc, values []byte) []byte {
	a, v := decode(t, acc), decode(t, values)
	for i := range a {
		switch op {
		case dtype.Sum, dtype.Avg:
			a[i] += v[i] // exact enough: encode rounds to t, and float64 has twice float32's precision
		case dtype.Prod:
			a[i] *= v[i]
		case dtype.Max:
			if a[i] < v[i] {
				a[i] = v[i]
			}
		case dtype.Min:
			if v[i] < a[i] {
				a[i] = v[i]
			}
		}
	}
	return encode(t, a)
}

// sameBits compares, taking all NaNs for one, because accumulation may yield any.
func sameBits(t dtype.Type, a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, y := decode(t, a), decode(t, b)
	for i := range x {
		nan := math.IsNaN(x[i]) && math.IsNaN(y[i])
		if !nan && math.Float64bits(x[i]) != math.Float64bits(y[i]) {
			return false
		}
	}
	return true
}

// shifted returns a copy of b that starts at an odd address, with guard bytes
// around, and a function that reports whether they are intact.
func shifted(b []byte) (view []byte, intact func() bool) {
	const guard = 32
	all := bytes.Repeat([]byte{0xa5}, len(b)+2*guard+8)
	start := guard
	for dtype.Aligned(all[start:], 2) {
		start++
	}
	view = all[start : start+len(b)]
	copy(view, b)
	return view, func() bool {
		outside := len(all) - len(b)
		return bytes.Count(all[:start], []byte{0xa5})+bytes.Count(all[start+len(b):], []byte{0xa5}) == outside
	}
}

var chunkLengths = []int{1, 2, 3, 7, 8, 31, 255, 256, 257, 600, 1031}

// checkCodec: the same bits wherever slices lie and however the quantized bytes are cut.
func checkCodec(q quant.Quantizer, c combination) error {
	rng := rand.New(rand.NewPCG(3, uint64(c.t)<<8|uint64(c.q)))
	for _, n := range chunkLengths {
		for name, v := range samples(n, rng) {
			if err := checkChunk(q, c, v, rng); err != nil {
				return fmt.Errorf("%d elements, %s: %w", n, name, err)
			}
		}
	}
	return nil
}

func checkChunk(q quant.Quantizer, c combination, v []float64, rng *rand.Rand) error {
	n := len(v)
	src := encode(c.t, v)
	m := q.Params(c.t, c.q, src)
	if err := q.CheckMeta(c.t, c.q, &m); err != nil {
		return fmt.Errorf("own metadata %+v is refused: %w", m, err)
	}
	wireForm := bytes.Repeat([]byte{0x5a}, c.form.Size(n))
	q.Quantize(c.t, c.q, &m, wireForm, src)
	if !bytes.Equal(src, encode(c.t, v)) {
		return fmt.Errorf("the source was written")
	}
	set := make([]byte, len(src))
	q.Dequantize(c.t, c.q, &m, dtype.Set, set, wireForm)
	acc := make([]float64, n)
	for i := range acc {
		acc[i] = rng.NormFloat64()
	}
	start := encode(c.t, acc)
	got := bytes.Clone(start)
	q.Dequantize(c.t, c.q, &m, c.op, got, wireForm)
	want := combine(c.t, c.op, start, set)
	if !sameBits(c.t, got, want) {
		return fmt.Errorf("op %v is not the accumulation of what set gives", c.op)
	}
	oddSrc, srcIntact := shifted(src)
	if m2 := q.Params(c.t, c.q, oddSrc); c.t == dtype.Float32 && q.CheckMeta(c.t, c.q, &m2) != nil {
		return fmt.Errorf("parameters of an unaligned chunk are refused")
	}
	oddWire, wireIntact := shifted(make([]byte, len(wireForm)))
	q.Quantize(c.t, c.q, &m, oddWire, oddSrc)
	if !bytes.Equal(oddWire, wireForm) {
		return fmt.Errorf("unaligned slices quantize differently")
	}
	oddDst, dstIntact := shifted(start)
	q.Dequantize(c.t, c.q, &m, c.op, oddDst, oddWire)
	if !bytes.Equal(oddDst, got) {
		return fmt.Errorf("unaligned slices dequantize differently")
	}
	if !srcIntact() || !wireIntact() || !dstIntact() {
		return fmt.Errorf("bytes around a slice were written")
	}

	elsewhere, elsewhereIntact := shifted(make([]byte, len(start)))
	before := bytes.Clone(start)
	quant.DequantizeFrom(q, c.t, c.q, &m, c.op, elsewhere, start, wireForm)
	if !bytes.Equal(elsewhere, got) || !bytes.Equal(start, before) || !elsewhereIntact() {
		return fmt.Errorf("op %v to another place differs, or writes elsewhere", c.op)
	}

	pieces := make([]byte, len(src))
	parts := make([]byte, len(wireForm)) // cut on the sender's side as well
	for at := 0; at < n; {
		k := min(n-at, (1+rng.IntN(300))*c.form.Elements)
		from, to := c.form.Size(at), c.form.Size(at+k)
		q.Dequantize(c.t, c.q, &m, dtype.Set, pieces[at*c.t.Size():(at+k)*c.t.Size()], wireForm[from:to])
		q.Quantize(c.t, c.q, &m, parts[from:to], src[at*c.t.Size():(at+k)*c.t.Size()])
		at += k
	}
	if !bytes.Equal(parts, wireForm) {
		return fmt.Errorf("a chunk cut into frames quantizes differently, or not all bytes of a group are written")
	}
	if !bytes.Equal(pieces, set) {
		return fmt.Errorf("a chunk cut into frames dequantizes differently")
	}
	return nil
}

// checkAdversarial: NaN, infinite and huge elements give metadata that
// receivers take, and the same bits aligned or not.
func checkAdversarial(q quant.Quantizer, c combination) error {
	rng := rand.New(rand.NewPCG(5, uint64(c.t)<<8|uint64(c.q)))
	for _, n := range []int{1, 2, 5, 300} {
		for name, v := range hostile(n, rng) {
			src := encode(c.t, v)
			m := q.Params(c.t, c.q, src)
			if err := q.CheckMeta(c.t, c.q, &m); err != nil {
				return fmt.Errorf("%d elements, %s: own metadata %+v is refused: %w", n, name, m, err)
			}
			wireForm := make([]byte, c.form.Size(n))
			q.Quantize(c.t, c.q, &m, wireForm, src)
			one, two := make([]byte, len(src)), make([]byte, len(src))
			q.Dequantize(c.t, c.q, &m, dtype.Set, one, wireForm)
			odd, _ := shifted(two)
			q.Dequantize(c.t, c.q, &m, dtype.Set, odd, wireForm)
			if !bytes.Equal(one, odd) {
				return fmt.Errorf("%d elements, %s: not deterministic", n, name)
			}
		}
	}
	return nil
}

// checkMeta: metadata of another kind is refused.
func checkMeta(q quant.Quantizer, c combination) error {
	m := q.Params(c.t, c.q, encode(c.t, []float64{1, 2, 3}))
	for _, kind := range []quant.Kind{quant.MinMax, quant.ZeroPoint, 2, quant.Own - 1, quant.Own, quant.Own + 1, 255} {
		other := m
		other.Kind = kind
		if (q.CheckMeta(c.t, c.q, &other) == nil) != (kind == m.Kind) {
			return fmt.Errorf("metadata of kind %d: accepted or refused wrongly", kind)
		}
	}
	if m.Kind < quant.Own {
		return nil
	}
	if m.Kind != c.form.Kind {
		return fmt.Errorf("metadata of kind %d, the form says %d", m.Kind, c.form.Kind)
	}
	for _, size := range []int{0, int(m.Size) - 1, int(m.Size) + 1, quant.MaxOwn + 1, 255} {
		other := m
		other.Size = uint8(size)
		if size != int(m.Size) && q.CheckMeta(c.t, c.q, &other) == nil {
			return fmt.Errorf("metadata of %d bytes is accepted, its own has %d", size, m.Size)
		}
	}
	return nil
}

// checkStrange: whatever a peer sends, metadata that is taken and any bytes give
// the same values wherever they lie, and touch no other memory.
func checkStrange(q quant.Quantizer, c combination) error {
	rng := rand.New(rand.NewPCG(11, uint64(c.t)<<8|uint64(c.q)))
	own := q.Params(c.t, c.q, encode(c.t, []float64{-1, 0, 2}))
	for range 200 {
		n := 1 + rng.IntN(100)
		m := own
		for i := 0; m.Kind >= quant.Own && i < int(m.Size); i++ {
			if rng.IntN(4) == 0 {
				m.Bytes[i] = byte(rng.Uint32())
			}
		}
		if q.CheckMeta(c.t, c.q, &m) != nil {
			continue
		}
		wireForm := make([]byte, c.form.Size(n))
		for i := range wireForm {
			wireForm[i] = byte(rng.Uint32())
		}
		one := make([]byte, n*c.t.Size())
		q.Dequantize(c.t, c.q, &m, dtype.Set, one, wireForm)
		odd, intact := shifted(make([]byte, len(one)))
		oddWire, _ := shifted(wireForm)
		q.Dequantize(c.t, c.q, &m, dtype.Set, odd, oddWire)
		if !bytes.Equal(one, odd) || !intact() {
			return fmt.Errorf("strange bytes of %d elements: not deterministic, or memory outside was written", n)
		}
	}
	return nil
}

// checkEmpty: nothing in, nothing out.
func checkEmpty(q quant.Quantizer, c combination) error {
	m := q.Params(c.t, c.q, encode(c.t, []float64{1, 2}))
	dst, intact := shifted(nil)
	q.Quantize(c.t, c.q, &m, dst, nil)
	q.Dequantize(c.t, c.q, &m, c.op, dst, nil)
	quant.DequantizeFrom(q, c.t, c.q, &m, c.op, dst, dst, nil)
	if !intact() {
		return fmt.Errorf("an empty chunk writes")
	}
	return nil
}

// checkError: ordinary values come back about as well as the bits allow.
func checkError(q quant.Quantizer, c combination) error {
	const n = 1000
	v := samples(n, rand.New(rand.NewPCG(17, 1)))["normal"]
	src := encode(c.t, v)
	m := q.Params(c.t, c.q, src)
	wireForm, back := make([]byte, c.form.Size(n)), make([]byte, len(src))
	q.Quantize(c.t, c.q, &m, wireForm, src)
	q.Dequantize(c.t, c.q, &m, dtype.Set, back, wireForm)
	most := 16 / (math.Ldexp(1, min(c.q.Bits(), 18)) - 2)
	for i, x := range decode(c.t, back) {
		if d := math.Abs(x - v[i]); !(d <= most) {
			return fmt.Errorf("%v comes back as %v, more than %v away", v[i], x, most)
		}
	}
	return nil
}

// checkIdentity: in rings of 2 to 16 all peers end with the same bits, and
// only because the owner of a chunk adopts what it sent.
func checkIdentity(q quant.Quantizer, c combination) error {
	rng := rand.New(rand.NewPCG(7, uint64(c.t)<<8|uint64(c.q)))
	ops := []dtype.Op{}
	for op := dtype.Sum; op < dtype.NumOps; op++ {
		if q.Check(c.t, c.q, op, 1000, true) == nil {
			ops = append(ops, op)
		}
	}
	lingering := false
	for _, op := range ops {
		for world := 2; world <= 16; world++ {
			for _, count := range []int{world, 2*world + 1, 37*world + world/2} {
				if q.Check(c.t, c.q, op, count/world, true) != nil {
					continue
				}
				bufs, broken := make([][]byte, world), make([][]byte, world)
				for p := range bufs {
					v := make([]float64, count)
					for i := range v {
						v[i] = rng.NormFloat64() * math.Exp(3*rng.NormFloat64())
					}
					bufs[p] = encode(c.t, v)
					broken[p] = bytes.Clone(bufs[p])
				}
				r := Reduction{Quantizer: q, Type: c.t, Wire: c.q, Op: op}
				r.Run(bufs)
				if !allEqual(bufs) {
					return fmt.Errorf("%v, world %d, %d elements: peers differ", op, world, count)
				}
				r.KeepOwn = true
				r.Run(broken)
				lingering = lingering || !allEqual(broken)
			}
		}
	}
	if !lingering {
		return fmt.Errorf("peers agree even if owners keep their full precision: D(Q(x)) = x, or the ring proves nothing")
	}
	return nil
}

func allocations(q quant.Quantizer, c combination) float64 {
	const n = 1024
	src, acc := make([]byte, n*c.t.Size()+1), make([]byte, n*c.t.Size()+1)
	wireForm := make([]byte, c.form.Size(n)+1)
	rng := rand.New(rand.NewPCG(9, 9))
	for i := 0; i < n*c.t.Size(); i += 4 {
		binary.LittleEndian.PutUint32(src[i:], math.Float32bits(rng.Float32()))
	}
	var m quant.Meta // outside: its address escapes through the interface
	return allocs.PerRun(10, func() {
		for odd := range 2 {
			s, d, w := src[odd:][:n*c.t.Size()], acc[odd:][:n*c.t.Size()], wireForm[odd:][:c.form.Size(n)]
			m = q.Params(c.t, c.q, s)
			q.Quantize(c.t, c.q, &m, w, s)
			q.Dequantize(c.t, c.q, &m, dtype.Set, d, w)
			q.Dequantize(c.t, c.q, &m, c.op, d, w)
		}
	})
}
