package charlm

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func small(t *testing.T) (*Model, []float32, Batch) {
	t.Helper()
	m, err := New(Shape{Context: 3, Embed: 5, Hidden: 7, Vocab: 6})
	require.NoError(t, err)
	batch := Batch{
		Past: []uint8{0, 1, 2, 5, 5, 1, 3, 4, 0, 2, 2, 2, 1, 0, 5},
		Next: []uint8{3, 0, 5, 1, 4},
	}
	return m, m.Init(7), batch
}

// The analytic gradient of every parameter agrees with central differences.
func TestGradientAgreesWithDifferences(t *testing.T) {
	m, params, batch := small(t)
	grad := make([]float32, m.NumParams())
	m.Gradient(params, grad, batch)
	const step = 1e-2
	for i, before := range params {
		params[i] = before + step
		up := m.Loss(params, batch)
		params[i] = before - step
		down := m.Loss(params, batch)
		params[i] = before
		require.InDelta(t, (up-down)/(2*step), float64(grad[i]), 1e-3, "parameter %d", i)
	}
}

func TestKernelsAgreeWithTextbook(t *testing.T) {
	for _, size := range [][3]int{{1, 1, 1}, {3, 5, 2}, {4, 8, 4}, {6, 7, 9}} {
		n, in, out := size[0], size[1], size[2]
		x, w, y := ramp(n*in, 0.5), ramp(in*out, -0.25), ramp(n*out, 1)
		product, outer, back := make([]float32, n*out), make([]float32, in*out), make([]float32, n*in)
		addProduct(product, x, w, n, in, out)
		addOuter(outer, x, y, n, in, out)
		backProduct(back, y, w, n, in, out)
		wantProduct, wantOuter, wantBack := make([]float32, n*out), make([]float32, in*out), make([]float32, n*in)
		for b := range n {
			for i := range in {
				for j := range out {
					wantProduct[b*out+j] += x[b*in+i] * w[i*out+j]
					wantOuter[i*out+j] += x[b*in+i] * y[b*out+j]
					wantBack[b*in+i] += y[b*out+j] * w[i*out+j]
				}
			}
		}
		require.InDeltaSlice(t, wantProduct, product, 1e-4)
		require.InDeltaSlice(t, wantOuter, outer, 1e-4)
		require.InDeltaSlice(t, wantBack, back, 1e-4)
	}
}

func ramp(n int, from float32) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = from + float32(i%11)*0.125
	}
	return s
}

// Views cover the parameter vector without gap or overlap, in its order.
func TestViewsCoverTheVector(t *testing.T) {
	m, params, _ := small(t)
	at := 0
	for _, v := range m.Views(params) {
		require.Same(t, &params[at], &v.Data[0], v.Name)
		at += len(v.Data)
	}
	require.Equal(t, m.NumParams(), at)
	require.Panics(t, func() { m.Views(params[1:]) })
}

func TestCorpusIsTheBook(t *testing.T) {
	c, err := Opticks()
	require.NoError(t, err)
	text := make([]byte, 0, len(c.Train)+len(c.Valid))
	for _, s := range append(append([]uint8{}, c.Train...), c.Valid...) {
		text = append(text, c.Vocab[s])
	}
	sum := sha256.Sum256(text)
	require.Equal(t, "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd", hex.EncodeToString(sum[:]))
	m, err := New(DefaultShape(len(c.Vocab)))
	require.NoError(t, err)
	require.GreaterOrEqual(t, m.NumParams(), 100_000)
	require.LessOrEqual(t, m.NumParams(), 500_000)
	require.GreaterOrEqual(t, m.Shape().Context, 16)
}

func TestCorpusRefusesWhatIsNoText(t *testing.T) {
	_, err := NewCorpus(make([]byte, 10))
	require.ErrorContains(t, err, "too short")
	all := make([]byte, 4096)
	for i := range all {
		all[i] = byte(i)
	}
	_, err = NewCorpus(all)
	require.ErrorContains(t, err, "not text")
}

// The same seed gives the same examples, another shard others, and no example
// of a shard lies outside of it.
func TestSamplersAreDeterministicAndSharded(t *testing.T) {
	c, err := Opticks()
	require.NoError(t, err)
	a, b := c.Sampler(16, 1, 4, 9).Next(64), c.Sampler(16, 1, 4, 9).Next(64)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c.Sampler(16, 2, 4, 9).Next(64))
	require.NotEqual(t, a, c.Sampler(16, 1, 4, 10).Next(64))
	require.Len(t, a.Past, 64*16)
	size := len(c.Train) / 4
	require.Same(t, &c.Train[size], &c.Sampler(16, 1, 4, 9).text[0])
	require.Len(t, c.Validation(16, 33).Next, 33)
	require.Equal(t, c.Valid[:16], c.Validation(16, 33).Past[:16])
}

func TestLossFalls(t *testing.T) {
	c, err := Opticks()
	require.NoError(t, err)
	m, err := New(Shape{Context: 16, Embed: 8, Hidden: 32, Vocab: len(c.Vocab)})
	require.NoError(t, err)
	params, grad := m.Init(1), make([]float32, m.NumParams())
	opt, data, valid := NewAdamW(len(params), 5e-3), c.Sampler(16, 0, 1, 1), c.Validation(16, 500)
	before := m.Loss(params, valid)
	require.InDelta(t, math.Log(float64(len(c.Vocab))), before, 1, "an untrained model guesses")
	for range 400 {
		m.Gradient(params, grad, data.Next(32))
		opt.Step(params, grad)
	}
	require.Less(t, m.Loss(params, valid), before-1.5)
}

func TestInitDependsOnTheSeedAlone(t *testing.T) {
	m, params, _ := small(t)
	require.Equal(t, params, m.Init(7))
	require.NotEqual(t, params, m.Init(8))
}

// Two steps by hand: v = mu*v + g, p -= rate*(g + mu*v).
func TestNesterovByHand(t *testing.T) {
	o := NewNesterov(1, 0.5, 0.5)
	p := []float32{1}
	o.Step(p, []float32{2})
	require.Equal(t, float32(1-0.5*(2+0.5*2)), p[0])
	o.Step(p, []float32{4})
	require.Equal(t, float32(-0.5-0.5*(4+0.5*5)), p[0])
	plain := NewNesterov(1, 1, 0)
	p = []float32{3}
	plain.Step(p, []float32{1})
	require.Equal(t, float32(2), p[0], "without momentum it is gradient descent")
}

// The first step of Adam moves every parameter by the rate, against its sign.
func TestAdamWFirstStep(t *testing.T) {
	o := NewAdamW(2, 0.1)
	o.Decay = 0
	p := []float32{1, 1}
	o.Step(p, []float32{1e-3, -50})
	require.InDeltaSlice(t, []float32{0.9, 1.1}, p, 1e-4)
	o = NewAdamW(1, 0.1)
	o.Decay = 0.5
	p = []float32{2}
	o.Step(p, []float32{0})
	require.InDelta(t, 2*(1-0.1*0.5), p[0], 1e-6, "decay alone")
}

func BenchmarkGradient(b *testing.B) {
	c, err := Opticks()
	require.NoError(b, err)
	m, err := New(DefaultShape(len(c.Vocab)))
	require.NoError(b, err)
	params, grad := m.Init(1), make([]float32, m.NumParams())
	data := c.Sampler(16, 0, 1, 1)
	b.SetBytes(int64(6 * m.NumParams() * 32))
	for b.Loop() {
		m.Gradient(params, grad, data.Next(32))
	}
}
