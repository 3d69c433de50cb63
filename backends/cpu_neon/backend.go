// Package cpuneon is the reduce backend for arm64 processors. Its kernels use
// the Advanced SIMD instructions that all of them have, FEAT_FP16 and SVE not
// among them. Every result has the bits of cpu_generic on the same processor,
// which does the ends that fill no vector and the division of integers.
//
// An operation without a NaN among its operands and results gives the bits
// that it gives on amd64. Where arithmetic makes a NaN (infinity less
// infinity), arm64 makes a positive one and amd64 a negative one, and where
// both operands are NaN arm64 prefers a signalling one; cpu_generic, which is
// compiled to the same instructions, does as well. Which NaN it is never
// matters for peers to agree, since a chunk is finished by its owner alone and
// copied, or every NaN in it is made the same one; max and min choose between the given patterns and have no freedom.
package cpuneon

import (
	"github.com/gopccl/gopccl/backends/internal/vectors"
	"github.com/gopccl/gopccl/core/backend"
)

// Name is the name under which the backend is registered.
const Name = "cpu_neon"

var driver = vectors.Driver{Name: Name, Order: 10, Level: level}

func init() { backend.Register(Name, driver) }
