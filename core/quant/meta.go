package quant

import (
	"errors"
	"fmt"

	"github.com/gopccl/gopccl/core/dtype"
)

// Kind is the shape of a chunk's metadata.
type Kind uint8

// PCCL's two shapes, by their numbers on the wire, and the first of the kinds that
// a quantizer may give meanings of its own. Those travel among gopccl peers only.
const (
	MinMax    Kind = 0
	ZeroPoint Kind = 1
	Own       Kind = 128
)

// MaxOwn bounds the bytes of metadata of a quantizer's own kind. What there is
// much of, such as the scales of blocks, belongs in the groups (see Form).
const MaxOwn = 64

// Meta is what a receiver has to know of a chunk to decode it. Kind says which
// fields count.
type Meta struct {
	Kind Kind
	// DType, of MinMax, is the data type: Float32 or Float64.
	DType dtype.Type
	// Min and Max, of MinMax, hold float32 values exactly.
	Min, Max float64
	// ZeroPoint and Scale are those of ZeroPoint.
	ZeroPoint int64
	Scale     float32
	// The first Size bytes of Bytes are those of a kind from Own on.
	Size  uint8
	Bytes [MaxOwn]byte
}

// Form is how the elements of a wire type lie on the wire: in groups, each of
// which can be decoded without the others. A chunk begins with a group, and its
// last one may stand for fewer elements but has all its bytes. Frames and calls
// are cut between groups.
type Form struct {
	// Elements of a group, a power of two up to GatherElements, and the Bytes that
	// it takes, at most 8 for each element.
	Elements, Bytes int
	// Kind of the metadata.
	Kind Kind
}

// Size returns the bytes of n elements that begin with a group.
func (f Form) Size(n int) int { return (n + f.Elements - 1) / f.Elements * f.Bytes }

// Check refuses groups that no engine can carry.
func (f Form) Check() error {
	if f.Elements < 1 || f.Elements > GatherElements || f.Elements&(f.Elements-1) != 0 {
		return fmt.Errorf("groups of %d elements: their number is not a power of two up to %d", f.Elements, GatherElements)
	}
	if f.Bytes < 1 || f.Bytes > 8*f.Elements {
		return fmt.Errorf("groups of %d elements and %d bytes: a group has at least one byte, and at most 8 for each element", f.Elements, f.Bytes)
	}
	return nil
}

// Formed is a Quantizer with a wire form that PCCL does not have: groups of
// elements, such as values of less than a byte with a scale for each block, or
// metadata of its own kind. Only gopccl peers take it. Slices q of its methods hold
// whole groups, and dst and src begin with the first element of one.
type Formed interface {
	Quantizer
	// Form is that of a combination that Check accepts.
	Form(t, q dtype.Type) Form
}

// FormOf returns the form of what z writes as q. The Kind of what is not Formed is
// not known; 0 stands there.
func FormOf(z Quantizer, t, q dtype.Type) Form {
	if f, ok := z.(Formed); ok {
		return f.Form(t, q)
	}
	return Form{Elements: 1, Bytes: q.Size()}
}

// ErrNative says that a quantizer is for groups of gopccl peers only.
var ErrNative = errors.New("its wire form is one that PCCL peers do not have (use minmax or zeropoint while there are some in the group)")

// narrow are wire types, the fewest bits first.
var narrow = []dtype.Type{
	dtype.Uint4, dtype.Int4, dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32, dtype.Int32, dtype.Uint64, dtype.Int64,
}

// Narrowest returns the wire type of the fewest bits that z has for elements of
// type t and op among gopccl peers, for programs that let their users name a
// quantizer alone. false: it has none.
func Narrowest(z Quantizer, t dtype.Type, op dtype.Op) (dtype.Type, bool) {
	for _, q := range narrow {
		if Check(z, t, q, op, 1<<20, true) == nil {
			return q, true
		}
	}
	return 0, false
}

// Check is z.Check, and refuses forms that nobody can carry: those of Formed
// quantizers if a PCCL peer takes part (ErrNative), and impossible ones.
func Check(z Quantizer, t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	f, formed := z.(Formed)
	if formed && !native {
		return fmt.Errorf("quantizer %s: %w", z.Name(), ErrNative)
	}
	if err := z.Check(t, q, op, minChunk, native); err != nil {
		return err
	}
	if !formed {
		return nil
	}
	if err := f.Form(t, q).Check(); err != nil {
		return fmt.Errorf("quantizer %s: %w", z.Name(), err)
	}
	return nil
}
