package reduce

import (
	"fmt"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plan"
)

// On the wire a chunk is a row of groups of op.group elements, each of op.unit
// bytes. But for quantizers with groups of their own (quant.Formed) a group is one
// element. The last group of a chunk may stand for fewer elements.

// setForm takes over how elements lie on the wire, and gets the memory for them.
func (op *Op) setForm() {
	op.unit, op.group = op.elem, 1
	if op.quantized() {
		f := quant.FormOf(op.spec.Quantizer, op.spec.DType, op.spec.WireType)
		op.unit, op.group = f.Bytes, f.Elements
		// Now, on the caller's time: the goroutine that calls Start has others to serve.
		op.code.wire = op.e.cfg.Link.Pool.Get(op.room(usualRing))
	}
}

// usualRing is the size of a ring for which there is room from the start.
const usualRing = 256

// room returns the wire bytes of all chunks of a ring of n, each at its place.
func (op *Op) room(n int) int {
	if op.group == 1 {
		return op.spec.Count * op.unit
	}
	return (op.spec.Count/op.group + 1 + min(n, op.spec.Count)) * op.unit
}

// place returns where in code.wire the chunk begins whose first element is first.
// A chunk may need one group more than its share of all elements.
func (op *Op) place(first int) int {
	if op.group == 1 {
		return first * op.unit
	}
	return (first/op.group + plan.ChunkAt(op.spec.Count, op.n, first)) * op.unit
}

// encoded returns the wire bytes of the first count elements of a chunk.
func (op *Op) encoded(count int) int { return (count + op.group - 1) / op.group * op.unit }

// decoded returns how many of the count elements of a chunk are whole within its
// first n wire bytes.
func (op *Op) decoded(n, count int) int { return min(n/op.unit*op.group, count) }

// whole cuts n wire bytes to whole groups, at least one, and to a multiple of 64
// that n had.
func (op *Op) whole(n int) int {
	if op.group == 1 {
		return n
	}
	return max(n-n%op.unit, op.unit)
}

// align is what the sizes of pieces are multiples of.
func (op *Op) align() int {
	a, b := 64, op.unit
	for b != 0 {
		a, b = b, a%b
	}
	return 64 / a * op.unit
}

// checkForm refuses what the quantizer, or a ring of such peers, cannot do.
func (op *Op) checkForm() error {
	s := &op.spec
	if err := quant.Check(s.Quantizer, s.DType, s.WireType, s.Op, plan.MinChunk(s.Count, op.n), op.native); err != nil {
		return errs.New(errs.InvalidArgument, opName, err)
	}
	if s.Count < op.n {
		return errs.New(errs.InvalidArgument, opName, fmt.Errorf("%d elements cannot be quantized over %d peers", s.Count, op.n))
	}
	if room := op.room(op.n); room > len(op.code.wire) {
		op.e.cfg.Link.Pool.Put(op.code.wire)
		op.code.wire = op.e.cfg.Link.Pool.Get(room)
	}
	return nil
}

// metaCost is what PCCL counts for a metadata frame (data spec, section 5), and
// the bytes of those that it does not have.
func metaCost(m *quant.Meta) uint64 {
	switch {
	case m.Kind >= quant.Own:
		return 12 + uint64(m.Size)
	case m.Kind == quant.ZeroPoint:
		return 27
	case m.DType == dtype.Float64:
		return 43
	default:
		return 35
	}
}
