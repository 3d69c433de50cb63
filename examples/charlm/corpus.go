package charlm

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
)

//go:embed opticks.txt.gz
var opticks []byte

// validationShare is the part of a corpus, at its end, that is never trained on.
const validationShare = 0.1

// Corpus is a text as symbol numbers, split into a training and a validation part.
type Corpus struct {
	// Vocab holds the distinct bytes of the text in ascending order; the index
	// of a byte is its symbol number.
	Vocab []byte
	// Train and Valid hold symbol numbers below len(Vocab).
	Train, Valid []uint8
}

// Opticks returns Newton's "Opticks" (see SOURCE.md), about 567,000 characters
// of 93 kinds: always the same corpus, which nobody may change.
func Opticks() (*Corpus, error) { return unpacked() }

var unpacked = sync.OnceValues(func() (*Corpus, error) {
	zr, err := gzip.NewReader(bytes.NewReader(opticks))
	if err != nil {
		return nil, fmt.Errorf("charlm: the embedded text: %w", err)
	}
	text, err := io.ReadAll(zr)
	if err != nil {
		return nil, fmt.Errorf("charlm: the embedded text: %w", err)
	}
	return NewCorpus(text)
})

// NewCorpus makes a corpus of text, which must hold at least 1000 bytes and
// not all 256 byte values.
func NewCorpus(text []byte) (*Corpus, error) {
	if len(text) < 1000 {
		return nil, fmt.Errorf("charlm: a text of %d bytes is too short (1000 at least)", len(text))
	}
	var seen [256]bool
	for _, b := range text {
		seen[b] = true
	}
	var number [256]uint8
	c := &Corpus{}
	for b, s := range seen {
		if s {
			number[b] = uint8(len(c.Vocab))
			c.Vocab = append(c.Vocab, byte(b))
		}
	}
	if len(c.Vocab) == 256 {
		return nil, fmt.Errorf("charlm: this is not text: all 256 byte values occur")
	}
	symbols := make([]uint8, len(text))
	for i, b := range text {
		symbols[i] = number[b]
	}
	cut := len(symbols) - int(validationShare*float64(len(symbols)))
	c.Train, c.Valid = symbols[:cut:cut], symbols[cut:]
	return c, nil
}

// Batch is a set of examples: Next[i] follows Past[i*context : (i+1)*context].
type Batch struct {
	Past, Next []uint8
}

// Sampler draws training examples from one shard of a corpus.
type Sampler struct {
	text    []uint8
	context int
	rng     *rand.Rand
}

// Sampler returns a source of examples with the given context length from the
// shard'th of shards equal pieces of the training text. The same arguments give
// the same examples.
func (c *Corpus) Sampler(context, shard, shards int, seed uint64) *Sampler {
	size := len(c.Train) / shards
	return &Sampler{
		text:    c.Train[shard*size : (shard+1)*size],
		context: context,
		rng:     rand.New(rand.NewPCG(seed, uint64(shard))),
	}
}

// Next returns n examples at random places.
func (s *Sampler) Next(n int) Batch {
	b := Batch{Past: make([]uint8, 0, n*s.context), Next: make([]uint8, 0, n)}
	for range n {
		at := s.rng.IntN(len(s.text) - s.context)
		b.Past = append(b.Past, s.text[at:at+s.context]...)
		b.Next = append(b.Next, s.text[at+s.context])
	}
	return b
}

// Validation returns n examples spread evenly over the validation text, always
// the same ones.
func (c *Corpus) Validation(context, n int) Batch {
	b := Batch{Past: make([]uint8, 0, n*context), Next: make([]uint8, 0, n)}
	last := len(c.Valid) - context - 1
	for i := range n {
		at := i * last / max(n-1, 1)
		b.Past = append(b.Past, c.Valid[at:at+context]...)
		b.Next = append(b.Next, c.Valid[at+context])
	}
	return b
}
