package kernels

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"

	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

const (
	minMaxScan   = "minmax_scan_"
	minMaxBounds = "minmax_bounds"
	moments      = "zeropoint_moments_"
)

func paramsNames() []string {
	names := []string{minMaxBounds}
	for _, t := range []dtype.Type{dtype.Float32, dtype.Float64} {
		names = append(names, minMaxScan+t.String(), moments+t.String())
	}
	return names
}

const (
	// BoundsBytes is how long the result of MinMaxBounds is.
	BoundsBytes = 24
	// BoundsScratch is how many bytes of device memory it needs beside its input.
	BoundsScratch = BoundsBytes * groups
)

func quantizable(op string, t dtype.Type, pointers ...driver.Ptr) error {
	if t != dtype.Float32 && t != dtype.Float64 {
		return errs.New(errs.InvalidArgument, op, fmt.Errorf("%v is not quantized", t))
	}
	return aligned(op, t, pointers...)
}

// MinMaxBounds queues the search for the smallest and the largest of n elements
// of t at src. The result is BoundsBytes long, at dst, and is for MinMaxParams;
// scratch points to BoundsScratch bytes that are in use until it is there. Both
// are multiples of 8, src of the element's size.
func (k *Set) MinMaxBounds(t dtype.Type, dst, scratch, src driver.Ptr, n uint64, s driver.Stream) error {
	if err := quantizable("device bounds", t, src); err != nil {
		return err
	}
	blocks := min(k.grid((n+3)/4), groups)
	if err := k.launch(minMaxScan+t.String(), blocks, s, args().ptr(scratch, src).u64(n)); err != nil {
		return err
	}
	return k.launch(minMaxBounds, 1, s, args().ptr(dst, scratch).u32(blocks))
}

// MinMaxParams returns the metadata of minmax that result, BoundsBytes long,
// stands for: what the quantizer computes from the same elements, bit for bit.
func MinMaxParams(t dtype.Type, result []byte) quant.Meta {
	m := quant.Meta{
		Kind: quant.MinMax, DType: t,
		Min: math.Float64frombits(binary.LittleEndian.Uint64(result)),
		Max: math.Float64frombits(binary.LittleEndian.Uint64(result[8:])),
	}
	if first := binary.LittleEndian.Uint64(result[16:]); m.Min == 0 {
		m.Min = 0
		if first&1 == 1 {
			m.Min = math.Copysign(0, -1)
		}
	}
	return m
}

// SegmentElements is how many elements ZeroPointMoments takes at a time, as
// package zeropoint does.
const SegmentElements = 2048

// MomentsBytes is how long the result of ZeroPointMoments for n elements is.
func MomentsBytes(n uint64) uint64 { return 16 * ((n + SegmentElements - 1) / SegmentElements) }

// ZeroPointMoments queues, for each segment of SegmentElements of the n elements
// of t at src, two float64: their sum, and the sum of their squared distances
// from its mean. They go to dst, a multiple of 8, and are for package zeropoint (FromMoments).
func (k *Set) ZeroPointMoments(t dtype.Type, dst, src driver.Ptr, n uint64, s driver.Stream) error {
	if err := quantizable("device moments", t, src); err != nil || n == 0 {
		return err
	}
	segments := (n + SegmentElements - 1) / SegmentElements
	return k.launch(moments+t.String(), k.grid(16*segments), s, args().ptr(dst, src).u64(n))
}
