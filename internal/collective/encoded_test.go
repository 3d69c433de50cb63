package collective

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

// quantCase is one combination with a quantizer.
type quantCase struct {
	name   string
	dt, wt dtype.Type
	op     dtype.Op
}

// quantCases are all combinations that the quantizers take.
var quantCases = func() (list []quantCase) {
	for _, name := range quant.Names() {
		q, err := quant.Lookup(name)
		if q == nil || err != nil {
			continue
		}
		for dt := range dtype.Type(dtype.NumTypes) {
			for wt := range dtype.Type(128) { // Int4 is beyond NumTypes
				for _, op := range allOps {
					if quant.Check(q, dt, wt, op, 1000, true) == nil && dt != wt {
						list = append(list, quantCase{name, dt, wt, op})
					}
				}
			}
		}
	}
	return list
}()

func (c *quantCase) quantizer(t testing.TB) quant.Quantizer {
	q, err := quant.Lookup(c.name)
	require.NoError(t, err)
	return q
}

// bytes returns what so many bytes in memory are on the wire; of nil as many.
func (c *quantCase) bytes(t testing.TB, size int) int {
	if c == nil {
		return size
	}
	return quant.FormOf(c.quantizer(t), c.dt, c.wt).Size(size / c.dt.Size())
}

// pieces returns how many elements fill so many of the smallest pieces.
func (c *quantCase) pieces(t testing.TB, n int) int {
	f := quant.FormOf(c.quantizer(t), c.dt, c.wt)
	op := &Operation{spec: Spec{Quantizer: c.quantizer(t)}, code: code{unit: f.Bytes}}
	return n * op.align() / f.Bytes * f.Elements
}

// quantize makes a task one with any quantizer.
func (k *task) quantize(rng *rand.Rand) {
	c := quantCases[rng.IntN(len(quantCases))]
	k.code, k.dt, k.op = &c, c.dt, c.op
}

// hop sets dst := dst op what a receiver decodes of src.
func (c *quantCase) hop(q quant.Quantizer, op dtype.Op, dst, src []byte) {
	if len(src) == 0 {
		return
	}
	m := q.Params(c.dt, c.wt, src)
	w := make([]byte, quant.FormOf(q, c.dt, c.wt).Size(len(src)/c.dt.Size()))
	q.Quantize(c.dt, c.wt, &m, w, src)
	q.Dequantize(c.dt, c.wt, &m, op, dst, w)
}

// expectEncoded computes what every member is to have, the dumb way: a sum is encoded at
// every hop of the ring, and a block that is gathered once.
func (k *task) expectEncoded(w *world, block func([]byte, int) []byte) {
	n, q := w.shape.n, k.code.quantizer(w.t)
	if n == 1 {
		k.want[0] = slices.Clone(k.specs[0].Src)
		return
	}
	if k.kind == plan.AllGather {
		var all []byte
		for _, s := range k.specs {
			got := make([]byte, len(s.Src))
			k.code.hop(q, dtype.Set, got, s.Src)
			all = append(all, got...)
		}
		for i := range n {
			k.want[i] = all
		}
		return
	}
	how := k.op
	if how == dtype.Avg {
		how = dtype.Sum
	}
	for i := range n {
		at := slices.Index(w.shape.order, i)
		var acc []byte
		for d := 1; d <= n; d++ {
			local := slices.Clone(block(k.specs[w.shape.order[(at+d)%n]].Src, i))
			if d > 1 {
				k.code.hop(q, how, local, acc)
			}
			acc = local
		}
		if k.op == dtype.Avg {
			w.shape.cfg.Backend.Finalize(k.dt, acc, n)
		}
		k.want[i] = acc
	}
}

// meta is what precedes a piece of block i; with rng not always as it should be.
func (c *quantCase) meta(rng *rand.Rand, i int) []byte {
	if c == nil {
		return nil
	}
	q, _ := quant.Lookup(c.name)
	src := make([]byte, 64*c.dt.Size())
	content(rand.New(rand.NewPCG(1, uint64(i))), c.dt, src)
	m := q.Params(c.dt, c.wt, src)
	raw := wire.AppendMeta([]byte{0}, &wire.DequantizationMeta{
		Tag: 5, Kind: wire.MetaKind(m.Kind), DType: m.DType, Min: m.Min, Max: m.Max,
		ZeroPoint: m.ZeroPoint, Scale: m.Scale, Size: m.Size, Bytes: m.Bytes,
	})
	raw[0] = byte(len(raw) - 1)
	if rng == nil {
		return raw
	}
	switch rng.IntN(40) {
	case 0:
		raw[rng.IntN(len(raw))] ^= byte(1 + rng.IntN(255))
	case 1:
		raw = raw[:rng.IntN(len(raw))]
	}
	return raw
}

// Every combination that a quantizer takes, by both kinds, with equal and unequal blocks,
// empty ones and such that end within a group.
func TestEveryQuantizer(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		rng := rand.New(rand.NewPCG(11, uint64(n)))
		w := newWorld(t, shape{n: n, order: rng.Perm(n), frame: 256, pool: 1 + n%2, cfg: Config{minStripe: 256}})
		for _, c := range quantCases {
			for _, kind := range []plan.Kind{plan.AllGather, plan.ReduceScatter} {
				for _, most := range []int{1, 33, 700} {
					k := draw(rng, w, kind, most)
					k.code, k.dt, k.op = &c, c.dt, c.op
					w.run(rng, k)
				}
			}
		}
		w.close()
	}
}

// What is sent is the encoded form and no more.
func TestQuantizedBytes(t *testing.T) {
	w := newWorld(t, shape{n: 4, link: loopback})
	for kind, want := range map[plan.Kind]uint64{plan.AllGather: 3 * 100_000, plan.ReduceScatter: 3 * 100_000} {
		k := &task{kind: kind, dt: dtype.Float32, op: dtype.Sum, counts: slices.Repeat([]int{100_000}, 4), code: &quantCase{"minmax", dtype.Float32, dtype.Uint8, dtype.Sum}}
		k.fill(w, rand.New(rand.NewPCG(1, 1)))
		s := w.start(k.specs)
		s.ok(t)
		for _, op := range s.ops {
			tx, rx := op.Counters()
			require.Equal(t, []uint64{want, want}, []uint64{tx, rx}, kind)
			require.LessOrEqual(t, want, uint64(k.specs[0].MostSent(4, false)))
		}
		s.finish(false)
	}
	sent := uint64(0)
	for _, e := range w.eng {
		sent += e.link.Stats.Snapshot().TxBytes
	}
	require.Less(t, sent, uint64(2*4*310_000), "with all heads and metadata")
}

func TestQuantizationIsChecked(t *testing.T) {
	e := newWorld(t, shape{n: 1}).eng[0]
	q := (&quantCase{name: "zeropoint"}).quantizer(t)
	b := make([]byte, 64)
	good := Spec{Kind: plan.ReduceScatter, DType: dtype.Float32, Op: dtype.Sum, Src: b[:32], Dst: b[32:40], Quantizer: q, WireType: dtype.Uint8}
	require.NoError(t, good.Check(4, 0, true))
	for says, change := range map[string]func(*Spec){
		"quantizes float32":                 func(s *Spec) { s.DType = dtype.Int32 },
		"supports sum and avg":              func(s *Spec) { s.Op = dtype.Max },
		"quantizes to int8":                 func(s *Spec) { s.WireType = dtype.Int4 },
		"belongs to an all-reduce, an all-": func(s *Spec) { s.Kind = plan.Reduce; s.Dst = b[32:64] },
	} {
		s := good
		change(&s)
		_, err := e.New(s)
		require.ErrorIs(t, err, errs.InvalidArgument, says)
		require.ErrorContains(t, err, says)
	}
}

// Pieces whose metadata is not as it should be.
func TestHostileMetadata(t *testing.T) {
	c := &quantCase{"minmax", dtype.Float32, dtype.Uint8, dtype.Sum}
	good := c.meta(nil, 0)
	other := slices.Clone(good)
	other[len(other)-1] ^= 1
	data := make([]byte, 64)
	piece := func(meta, data []byte) []byte { return slices.Concat(meta, data) }
	for name, x := range map[string]struct {
		payloads [][]byte
		says     string
	}{
		"none":           {[][]byte{nil}, "came without metadata"},
		"not quantized":  {[][]byte{data}, "metadata of 0 bytes"},
		"too much":       {[][]byte{piece([]byte{255}, make([]byte, 400))}, "metadata of 255 bytes"},
		"metadata alone": {[][]byte{good}, "metadata of"},
		"damaged":        {[][]byte{piece(append([]byte{good[0], 77}, good[2:]...), data)}, "bad metadata"},
		"two kinds":      {[][]byte{piece(good, data), piece(other, data)}, "other metadata than those before"},
	} {
		for _, kind := range []plan.Kind{plan.AllGather, plan.ReduceScatter} {
			a := newAlone(t, 2, false, Config{})
			all, own := slices.Repeat([]byte{7}, 8*128), slices.Repeat([]byte{9}, 4*128)
			spec := Spec{Kind: kind, Tag: 5, DType: dtype.Float32, Op: dtype.Sum, Src: own, Dst: all, Preserve: true, Quantizer: c.quantizer(t), WireType: c.wt}
			if kind == plan.ReduceScatter {
				spec.Src, spec.Dst = all, own
			}
			op, done := a.start(1, spec)
			for i, p := range x.payloads {
				a.piece(1, 5, 1|mark, 64, i, 128, p)
			}
			err := verdict(t, done)
			require.ErrorIs(t, err, errs.Protocol, name)
			require.ErrorContains(t, err, x.says, name)
			op.Finish(true)
			require.Equal(t, slices.Repeat([]byte{7}, 8*128), all, name)
			require.Equal(t, slices.Repeat([]byte{9}, 4*128), own, name)
			a.w.close()
			require.Zero(t, a.e.link.Pool.Stats().InUse, name)
		}
	}
}

// FuzzQuantizedLengths: blocks of any lengths, cut in any way, have the oracle's bits, and
// what is sent is the encoded form to the byte.
func FuzzQuantizedLengths(f *testing.F) {
	for i := range byte(20) {
		f.Add(uint16(i)*7, uint16(i)*90, uint16(i%3)*400, uint8(i), uint64(i))
	}
	f.Fuzz(func(t *testing.T, a, b, c uint16, cut uint8, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, shape{n: 3, order: rng.Perm(3), pool: 1 + int(seed%2), frame: 64 + int(cut)*16, cfg: Config{piece: 64 * int(cut%5), minStripe: 256}})
		k := draw(rng, w, []plan.Kind{plan.AllGather, plan.ReduceScatter}[seed%2], 1)
		k.quantize(rng)
		k.varied, k.counts = true, []int{int(a % 3000), int(b % 3000), int(c % 3000)}
		w.run(rng, k)
		w.close()
	})
}
