// Package shm carries tensors between a host and a quantizer or backend plugin.
// Elements lie in memory that both map; a call is one frame of fixed size over a
// socket pair, answered by one of the same form. Nothing is allocated per call.
//
// The plugin inherits its descriptors: number 3 is the memory, the following
// ones the sockets, one per lane. A lane is one call at a time, with an area of
// the memory of its own; GOPCCL_PLUGIN_LANES and GOPCCL_PLUGIN_AREA tell their
// number and size in bytes.
package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Environment variables of the plugin.
const (
	EnvLanes = "GOPCCL_PLUGIN_LANES"
	EnvArea  = "GOPCCL_PLUGIN_AREA"
)

// FirstFile is the number of the descriptor of the memory in the plugin.
const FirstFile = 3

// Operands is how many operands an area has room for: dst, a and b.
const Operands = 3

// Call is what a plugin is asked to do.
type Call uint8

// Calls. Operands: Dst, A and B are offsets in the memory.
const (
	Reduce     Call = 1 // Dst := A op B, backend.Backend.Reduce
	Finalize   Call = 2 // Dst := Dst / World
	Params     Call = 3 // Meta := parameters of A
	Quantize   Call = 4 // Dst := wire form of A under Meta
	Dequantize Call = 5 // Dst := Dst op value of A under Meta
)

// FrameBytes is the size of a frame.
const FrameBytes = 256

// Frame is a request, or its answer: the answer repeats the request with Meta
// set if it was asked for, and Failed if the plugin could not do it.
type Frame struct {
	Call      Call
	Type      dtype.Type // of tensors
	Wire      dtype.Type // of quantized elements
	Op        dtype.Op
	Count     uint64 // elements
	World     uint64
	Dst, A, B uint64
	Meta      quant.Meta
	Form      quant.Form // of quantized elements
	Failed    bool
	Text      [40]byte // why, padded with 0
}

const version = 2

// Frames that are not read.
var (
	ErrFrame = errors.New("not a frame of a plugin call")
	errSpace = fmt.Errorf("%w: operands outside the area", ErrFrame)
)

// Put writes f to b, of FrameBytes.
func (f *Frame) Put(b []byte) {
	clear(b[:FrameBytes])
	le := binary.LittleEndian
	le.PutUint32(b, version)
	b[4], b[5], b[6], b[7] = byte(f.Call), byte(f.Type), byte(f.Wire), byte(f.Op)
	le.PutUint64(b[8:], f.Count)
	le.PutUint64(b[16:], f.World)
	le.PutUint64(b[24:], f.Dst)
	le.PutUint64(b[32:], f.A)
	le.PutUint64(b[40:], f.B)
	b[48], b[49] = byte(f.Meta.Kind), byte(f.Meta.DType)
	if f.Failed {
		b[50] = 1
	}
	le.PutUint64(b[56:], math.Float64bits(f.Meta.Min))
	le.PutUint64(b[64:], math.Float64bits(f.Meta.Max))
	le.PutUint64(b[72:], uint64(f.Meta.ZeroPoint))
	le.PutUint32(b[80:], math.Float32bits(f.Meta.Scale))
	copy(b[88:128], f.Text[:])
	b[51] = f.Meta.Size
	copy(b[128:192], f.Meta.Bytes[:])
	le.PutUint16(b[192:], uint16(f.Form.Elements))
	le.PutUint16(b[194:], uint16(f.Form.Bytes))
}

// Get reads b, of FrameBytes, which may hold anything.
func (f *Frame) Get(b []byte) error {
	le := binary.LittleEndian
	if len(b) != FrameBytes || le.Uint32(b) != version || b[50] > 1 {
		return ErrFrame
	}
	*f = Frame{
		Call: Call(b[4]), Type: dtype.Type(b[5]), Wire: dtype.Type(b[6]), Op: dtype.Op(b[7]),
		Count: le.Uint64(b[8:]), World: le.Uint64(b[16:]), Dst: le.Uint64(b[24:]), A: le.Uint64(b[32:]), B: le.Uint64(b[40:]),
		Failed: b[50] == 1,
		Form:   quant.Form{Elements: int(le.Uint16(b[192:])), Bytes: int(le.Uint16(b[194:]))},
		Meta: quant.Meta{
			Kind: quant.Kind(b[48]), DType: dtype.Type(b[49]), Min: math.Float64frombits(le.Uint64(b[56:])),
			Max: math.Float64frombits(le.Uint64(b[64:])), ZeroPoint: int64(le.Uint64(b[72:])), Scale: math.Float32frombits(le.Uint32(b[80:])),
		},
	}
	copy(f.Text[:], b[88:128])
	copy(f.Meta.Bytes[:], b[128:192])
	if f.Meta.Size = b[51]; f.Meta.Size > quant.MaxOwn {
		return ErrFrame
	}
	return nil
}

// operand cuts count elements of t at offset out of mem.
func operand(mem []byte, offset, count uint64, t dtype.Type) ([]byte, error) {
	if !t.Valid() || count > uint64(len(mem)) || offset > uint64(len(mem)) || count*uint64(t.Size()) > uint64(len(mem))-offset {
		return nil, errSpace
	}
	return mem[offset:][:count*uint64(t.Size())], nil
}

// encoded cuts the groups that hold count elements at offset out of mem.
func (f *Frame) encoded(mem []byte, offset uint64) ([]byte, error) {
	if f.Form.Elements < 1 || f.Form.Bytes < 1 || f.Count > uint64(len(mem)) || offset > uint64(len(mem)) {
		return nil, errSpace
	}
	size := uint64(f.Form.Size(int(f.Count))) // both factors are small
	if size > uint64(len(mem))-offset {
		return nil, errSpace
	}
	return mem[offset:][:size], nil
}

// Slices returns the operands of a request in mem, nil where the call has none.
// It refuses what no plugin may be asked.
func (f *Frame) Slices(mem []byte) (dst, a, b []byte, err error) {
	get := func(offset uint64, t dtype.Type) (s []byte) {
		if err == nil {
			s, err = operand(mem, offset, f.Count, t)
		}
		return s
	}
	switch f.Call {
	case Reduce:
		dst, a, b = get(f.Dst, f.Type), get(f.A, f.Type), get(f.B, f.Type)
	case Finalize:
		dst = get(f.Dst, f.Type)
		if f.World == 0 || f.World > math.MaxInt32 {
			err = ErrFrame
		}
	case Params:
		a = get(f.A, f.Type)
		if !f.Wire.Valid() && !f.Wire.Packed() {
			err = ErrFrame
		}
	case Quantize:
		a = get(f.A, f.Type)
		if err == nil {
			dst, err = f.encoded(mem, f.Dst)
		}
	case Dequantize:
		dst = get(f.Dst, f.Type)
		if err == nil {
			a, err = f.encoded(mem, f.A)
		}
	default:
		err = ErrFrame
	}
	if err == nil && f.Op >= dtype.NumOps {
		err = ErrFrame
	}
	return dst, a, b, err
}
