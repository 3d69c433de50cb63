// Package quant is the extension point for quantizers: the interface, the
// registry and the table of legal combinations (data spec, section 4).
package quant

import (
	"fmt"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/registry"
)

// Quantizer encodes chunks of T = data type as Q = wire type plus metadata.
// All slices are little-endian, any alignment; src and dst have n elements of T,
// q has n elements of Q, or as many groups as hold them (see Formed). Implementations
// are safe for concurrent use, keep no slice and allocate nothing.
//
// The determinism rule: Dequantize with op Set must give the same bits
// everywhere; how parameters are chosen and values rounded is the sender's business.
type Quantizer interface {
	// Name is the registered name: "minmax", "zeropoint".
	Name() string
	// Check returns nil if data type, wire type, op and the smallest chunk
	// length (elements, over the ring) may be combined; native says that no
	// PCCL peer takes part. The error tells what is allowed.
	Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error
	// Params computes the metadata of one chunk.
	Params(t, q dtype.Type, src []byte) Meta
	// Quantize writes the wire form of src to dst under m.
	Quantize(t, q dtype.Type, m *Meta, dst, src []byte)
	// Dequantize sets dst := dst op value(q) ; op Set overwrites, Sum and Avg add.
	// The arithmetic of op is the data spec's, section 3.
	Dequantize(t, qt dtype.Type, m *Meta, op dtype.Op, dst, q []byte)
	// CheckMeta refuses received metadata that does not belong to (t, q).
	CheckMeta(t, q dtype.Type, m *Meta) error
}

// Fused is a Quantizer that adds to values at another place without a copy.
type Fused interface {
	// DequantizeFrom sets dst := acc op value(q), with the bits that
	// Dequantize gives after a copy of acc to dst. dst may be acc, never a
	// shifted view of it; with Set acc is of no effect.
	DequantizeFrom(t, qt dtype.Type, m *Meta, op dtype.Op, dst, acc, q []byte)
}

// DequantizeFrom sets dst := acc op value(q), by z itself if it is Fused. All
// slices are as those of Dequantize, acc like dst.
func DequantizeFrom(z Quantizer, t, qt dtype.Type, m *Meta, op dtype.Op, dst, acc, q []byte) {
	if f, ok := z.(Fused); ok {
		f.DequantizeFrom(t, qt, m, op, dst, acc, q)
		return
	}
	copy(dst, acc)
	z.Dequantize(t, qt, m, op, dst, q)
}

// GatherElements: a chunk is gathered in multiples of so many elements, but for
// its end.
const GatherElements = 2048

// Gathered is what a Gatherer knows of the first Elements elements of a chunk;
// the other fields are its own. The zero value is that of no element.
type Gathered struct {
	Elements int
	A, B     float64
	Useless  bool // Params has to look at the whole chunk
}

// Gatherer is a Quantizer that computes the parameters of a chunk from parts,
// so that each can be looked at while a cache holds it.
type Gatherer interface {
	// Gather adds the elements that follow those in g, a multiple of
	// GatherElements unless the chunk ends with them.
	Gather(t, q dtype.Type, g *Gathered, part []byte)
	// Gathering returns what Params returns of the whole chunk; false: ask Params.
	Gathering(t, q dtype.Type, g *Gathered) (Meta, bool)
}

// Bounded is a Quantizer whose parameters are those of the smallest and the largest
// element, so that a device can find them.
type Bounded interface {
	// FromBounds returns what Params returns of a chunk with these bounds, which are
	// found as data spec, section 4.4 has it.
	FromBounds(t, q dtype.Type, low, high float64) Meta
}

// Summed is a Quantizer whose parameters follow from sums of parts of a chunk, so
// that a device can find them.
type Summed interface {
	// FromMoments returns what Params returns of a chunk of n elements: sums holds,
	// for each GatherElements elements in turn, their sum and the sum of their
	// squared distances from its mean. false: ask Params.
	FromMoments(t, q dtype.Type, n int, sums []float64) (Meta, bool)
}

var quantizers = registry.New[Quantizer]("quantizer", "none")

// Register makes a quantizer available under its name; duplicates panic.
func Register(q Quantizer) { quantizers.Register(q.Name(), q) }

// Names returns the registered names in alphabetical order, "none" first.
func Names() []string { return append([]string{"none"}, quantizers.Names()...) }

// Lookup returns the quantizer called name; nil for "none" and "".
func Lookup(name string) (Quantizer, error) {
	if name == "none" || name == "" {
		return nil, nil
	}
	q, ok := quantizers.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("unknown quantizer %q: is its package imported (quantizers/defaults)?", name)
	}
	return q, nil
}
