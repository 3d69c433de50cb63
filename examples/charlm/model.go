// Package charlm is a character-level language model in plain Go, small enough
// to train on a laptop's spare cores and real enough that its loss means
// something: embedding, one hidden layer with tanh, softmax over the next
// character, forward and backward written by hand.
//
// All parameters lie in one flat []float32, so that a trainer can hand them to
// gopccl as they are: as one buffer to reduce, or as named tensors of a shared
// state (Model.Views).
package charlm

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Shape is the size of a model.
type Shape struct {
	Context int // characters that the model sees, at least 1
	Embed   int // numbers per character
	Hidden  int // units of the hidden layer
	Vocab   int // kinds of characters
}

// DefaultShape returns the shape that the example trainers use: about 125,000
// parameters for the 93 characters of the "Opticks".
func DefaultShape(vocab int) Shape {
	return Shape{Context: 16, Embed: 24, Hidden: 256, Vocab: vocab}
}

// View is a named part of a parameter vector; Data aliases the vector.
type View struct {
	Name string
	Data []float32
}

// Model computes loss and gradient for parameter vectors of one shape. It holds
// work space, no parameters, and is used by one goroutine at a time.
type Model struct {
	shape Shape
	parts parts // of the current parameters
	grads parts // of the current gradient

	x, h, dh, logits, dx []float32 // rows of a batch
}

// parts are the tensors inside a parameter vector, row-major:
// embed[vocab][embed], w1[context*embed][hidden], b1[hidden],
// w2[hidden][vocab], b2[vocab].
type parts struct{ embed, w1, b1, w2, b2 []float32 }

// New returns a model; all numbers of the shape must be positive, Vocab at most 256.
func New(s Shape) (*Model, error) {
	if s.Context < 1 || s.Embed < 1 || s.Hidden < 1 || s.Vocab < 2 || s.Vocab > 256 {
		return nil, fmt.Errorf("charlm: impossible shape %+v", s)
	}
	return &Model{shape: s}, nil
}

// Shape returns the shape of the model.
func (m *Model) Shape() Shape { return m.shape }

// NumParams returns the length of a parameter vector.
func (m *Model) NumParams() int {
	s := m.shape
	return s.Vocab*s.Embed + s.Context*s.Embed*s.Hidden + s.Hidden + s.Hidden*s.Vocab + s.Vocab
}

// Init returns fresh parameters that depend on seed alone.
func (m *Model) Init(seed uint64) []float32 {
	params := make([]float32, m.NumParams())
	rng := rand.New(rand.NewPCG(seed, 0x6f707469636b73))
	fill := func(w []float32, deviation float64) {
		for i := range w {
			w[i] = float32(rng.NormFloat64() * deviation)
		}
	}
	p := m.split(params)
	fill(p.embed, 1)
	fill(p.w1, 1/math.Sqrt(float64(m.shape.Context*m.shape.Embed)))
	fill(p.w2, 1/math.Sqrt(float64(m.shape.Hidden)))
	return params
}

// Views names the tensors inside a parameter vector of the model.
func (m *Model) Views(params []float32) []View {
	p := m.split(params)
	return []View{
		{"embed", p.embed},
		{"hidden.weight", p.w1},
		{"hidden.bias", p.b1},
		{"output.weight", p.w2},
		{"output.bias", p.b2},
	}
}

func (m *Model) split(v []float32) parts {
	if len(v) != m.NumParams() {
		panic(fmt.Sprintf("charlm: a vector of %d numbers for a model of %d parameters", len(v), m.NumParams()))
	}
	take := func(n int) []float32 {
		part := v[:n:n]
		v = v[n:]
		return part
	}
	s := m.shape
	return parts{
		embed: take(s.Vocab * s.Embed),
		w1:    take(s.Context * s.Embed * s.Hidden),
		b1:    take(s.Hidden),
		w2:    take(s.Hidden * s.Vocab),
		b2:    take(s.Vocab),
	}
}

// Loss returns the mean cross entropy of a batch in nats per character.
func (m *Model) Loss(params []float32, b Batch) float64 {
	m.parts = m.split(params)
	return m.forward(b)
}

// Gradient overwrites grad with the gradient of the mean cross entropy of a
// batch and returns that loss. Both vectors have NumParams elements.
func (m *Model) Gradient(params, grad []float32, b Batch) float64 {
	m.parts, m.grads = m.split(params), m.split(grad)
	clear(grad)
	loss := m.forward(b)
	m.backward(b)
	return loss
}

// forward leaves inputs in x, activations in h and probabilities in logits.
func (m *Model) forward(b Batch) float64 {
	s, n := m.shape, len(b.Next)
	width := s.Context * s.Embed
	m.x, m.h, m.logits = room(m.x, n*width), room(m.h, n*s.Hidden), room(m.logits, n*s.Vocab)

	for i, c := range b.Past {
		copy(m.x[i*s.Embed:(i+1)*s.Embed], m.parts.embed[int(c)*s.Embed:])
	}
	for i := range n {
		copy(m.h[i*s.Hidden:], m.parts.b1)
		copy(m.logits[i*s.Vocab:], m.parts.b2)
	}
	addProduct(m.h, m.x, m.parts.w1, n, width, s.Hidden)
	for i, v := range m.h {
		m.h[i] = float32(math.Tanh(float64(v)))
	}
	addProduct(m.logits, m.h, m.parts.w2, n, s.Hidden, s.Vocab)

	var loss float64
	for i, next := range b.Next {
		row := m.logits[i*s.Vocab : (i+1)*s.Vocab]
		softmax(row)
		loss -= math.Log(math.Max(float64(row[next]), 1e-30))
	}
	return loss / float64(n)
}

// backward turns probabilities into the gradient of the logits and walks back.
func (m *Model) backward(b Batch) {
	s, n := m.shape, len(b.Next)
	width := s.Context * s.Embed
	m.dh, m.dx = room(m.dh, n*s.Hidden), room(m.dx, n*width)

	scale := 1 / float32(n)
	for i, next := range b.Next {
		row := m.logits[i*s.Vocab : (i+1)*s.Vocab]
		row[next]--
		for j := range row {
			row[j] *= scale
			m.grads.b2[j] += row[j]
		}
	}
	addOuter(m.grads.w2, m.h, m.logits, n, s.Hidden, s.Vocab)
	backProduct(m.dh, m.logits, m.parts.w2, n, s.Hidden, s.Vocab)
	for i, h := range m.h {
		m.dh[i] *= 1 - h*h
		m.grads.b1[i%s.Hidden] += m.dh[i]
	}
	addOuter(m.grads.w1, m.x, m.dh, n, width, s.Hidden)
	backProduct(m.dx, m.dh, m.parts.w1, n, width, s.Hidden)
	for i, c := range b.Past {
		row := m.grads.embed[int(c)*s.Embed : (int(c)+1)*s.Embed]
		for j, d := range m.dx[i*s.Embed : (i+1)*s.Embed] {
			row[j] += d
		}
	}
}

// softmax replaces logits by probabilities.
func softmax(row []float32) {
	top := row[0]
	for _, v := range row {
		top = max(top, v)
	}
	var sum float32
	for i, v := range row {
		row[i] = float32(math.Exp(float64(v - top)))
		sum += row[i]
	}
	for i := range row {
		row[i] /= sum
	}
}

// room returns a slice of length n, s itself where it is large enough.
func room(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}
