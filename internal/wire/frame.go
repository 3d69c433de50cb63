package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
)

// FrameHeaderSize is the size of a multiplexed frame's header (data spec, section 1.3).
const FrameHeaderSize = 24

// MaxFramePayload is the largest payload of a multiplexed frame in bytes (PCCL exits above it).
const MaxFramePayload = 1<<30 - frameOverhead

// frameOverhead is what the length field of a frame counts besides the payload: tag and stream.
const frameOverhead = 16

// PutFrameHeader writes the header of a frame with payload bytes (1 to
// MaxFramePayload) of the collective tag; stream is the operation's sequence
// number (data spec, section 1.3).
func PutFrameHeader(b *[FrameHeaderSize]byte, payload int, tag, stream uint64) {
	binary.BigEndian.PutUint64(b[0:], uint64(payload)+frameOverhead)
	binary.BigEndian.PutUint64(b[8:], tag)
	binary.BigEndian.PutUint64(b[16:], stream)
}

// ParseFrameHeader reads what PutFrameHeader wrote. A payload of 0 bytes or
// above MaxFramePayload is an *errs.Error with code Protocol (quirk Q24); the
// connection cannot be used any further.
func ParseFrameHeader(b *[FrameHeaderSize]byte) (payload int, tag, stream uint64, err error) {
	n := binary.BigEndian.Uint64(b[0:])
	if n <= frameOverhead || n > MaxFramePayload+frameOverhead {
		return 0, 0, 0, errs.New(errs.Protocol, "read frame",
			fmt.Errorf("length field %d is outside %d to %d", n, frameOverhead+1, MaxFramePayload+frameOverhead))
	}
	return int(n - frameOverhead), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:]), nil
}

// MaxMetaSize is the size of the largest metadata frame payload in bytes.
const MaxMetaSize = 2 + 8 + 1 + 1 + MaxOwnMeta

// metaID is the packet id in front of the metadata of a frame.
const metaID = 3

// AppendMeta appends the payload of a metadata frame (data spec, section 4.2:
// id and body, no length field) and returns the extended slice. Without
// growing dst (MaxMetaSize bytes) it does not allocate.
func AppendMeta(dst []byte, m *DequantizationMeta) []byte {
	return appendMetaBody(appendU16(dst, metaID), m)
}

// appendMetaBody writes the values as little-endian IEEE bits (host order of
// every PCCL platform) and the zero point big-endian, as PCCL does.
func appendMetaBody(dst []byte, m *DequantizationMeta) []byte {
	dst = append(appendU64(dst, m.Tag), byte(m.Kind))
	switch {
	case m.Kind >= MetaOwn:
		n := min(m.Size, MaxOwnMeta)
		return append(append(dst, n), m.Bytes[:n]...)
	case m.Kind == MetaZeroPoint:
		dst = appendU64(append(dst, byte(dtype.Int64)), uint64(m.ZeroPoint))
		return binary.LittleEndian.AppendUint32(append(dst, byte(dtype.Float32)), math.Float32bits(m.Scale))
	case m.DType == dtype.Float64:
		dst = append(dst, byte(dtype.Float64))
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(m.Min))
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(m.Max))
	default:
		dst = append(dst, byte(dtype.Float32))
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(m.Min)))
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(m.Max)))
	}
}

// Errors of DecodeMeta, made once because metadata is read in the data path.
var (
	errMetaID    = errs.New(errs.Protocol, "read metadata", errors.New("the frame does not hold dequantization metadata"))
	errMetaShort = errs.New(errs.Protocol, "read metadata", errors.New("the frame is too short for its metadata"))
	errMetaLong  = errs.New(errs.Protocol, "read metadata", fmt.Errorf("more than %d bytes of metadata of a quantizer's own", MaxOwnMeta))
	errMetaKind  = errs.New(errs.Protocol, "read metadata", errors.New("unknown kind of metadata"))
	errMetaType  = errs.New(errs.Protocol, "read metadata", errors.New("values are of a type that the kind does not allow"))
)

// DecodeMeta reads the payload of a metadata frame. Bytes behind it are
// ignored; it does not allocate. Everything that AppendMeta cannot have
// written, the form that PCCL sends for an empty chunk included (quirk Q28),
// is an *errs.Error with code Protocol.
func DecodeMeta(b []byte) (DequantizationMeta, error) {
	r := reader{b: b}
	if id := r.u16(); !r.short && id != metaID {
		return DequantizationMeta{}, errMetaID
	}
	return r.metaBody()
}

func (r *reader) metaBody() (m DequantizationMeta, err error) {
	m.Tag = r.u64()
	m.Kind = MetaKind(r.u8())
	t := dtype.Type(r.u8())
	switch {
	case r.short:
		return DequantizationMeta{}, errMetaShort
	case m.Kind >= MetaOwn:
		m.Size = uint8(t) // the place is that of a type
		if m.Size > MaxOwnMeta {
			return DequantizationMeta{}, errMetaLong
		}
		copy(m.Bytes[:], r.take(int(m.Size)))
	case m.Kind == MetaMinMax && t == dtype.Float32:
		m.DType = t
		m.Min, m.Max = float64(r.f32le()), float64(r.f32le())
	case m.Kind == MetaMinMax && t == dtype.Float64:
		m.DType = t
		m.Min, m.Max = r.f64le(), r.f64le()
	case m.Kind == MetaZeroPoint && t == dtype.Int64:
		m.ZeroPoint = int64(r.u64())
		if st := dtype.Type(r.u8()); !r.short && st != dtype.Float32 {
			return DequantizationMeta{}, errMetaType
		}
		m.Scale = r.f32le()
	case m.Kind == MetaMinMax, m.Kind == MetaZeroPoint:
		return DequantizationMeta{}, errMetaType
	default:
		return DequantizationMeta{}, errMetaKind
	}
	if r.short {
		return DequantizationMeta{}, errMetaShort
	}
	return m, nil
}

func (r *reader) f32le() float32 {
	if v := r.take(4); v != nil {
		return math.Float32frombits(binary.LittleEndian.Uint32(v))
	}
	return 0
}

func (r *reader) f64le() float64 {
	if v := r.take(8); v != nil {
		return math.Float64frombits(binary.LittleEndian.Uint64(v))
	}
	return 0
}
