// Package metadata is how the metadata of a quantized chunk travel: what a quantizer knows them
// as, to their bytes on the wire and back. Every collective that is quantized has them.
package metadata

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/wire"
)

// Append appends the payload of a metadata frame. With room for wire.MaxMetaSize bytes it
// does not allocate.
func Append(b []byte, tag uint64, m *quant.Meta) []byte {
	return wire.AppendMeta(b, &wire.DequantizationMeta{
		Tag: tag, Kind: wire.MetaKind(m.Kind), DType: m.DType, Min: m.Min, Max: m.Max,
		ZeroPoint: m.ZeroPoint, Scale: m.Scale, Size: m.Size, Bytes: m.Bytes,
	})
}

// Read reads what Append wrote, and has z look at it: a receiver decodes elements of type t
// from wire type q by it, and it came from another process.
func Read(b []byte, z quant.Quantizer, t, q dtype.Type) (quant.Meta, error) {
	w, err := wire.DecodeMeta(b)
	if err != nil {
		return quant.Meta{}, err
	}
	m := quant.Meta{
		Kind: quant.Kind(w.Kind), DType: w.DType, Min: w.Min, Max: w.Max,
		ZeroPoint: w.ZeroPoint, Scale: w.Scale, Size: w.Size, Bytes: w.Bytes,
	}
	return m, z.CheckMeta(t, q, &m)
}
