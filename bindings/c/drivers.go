//go:build cgo

package main

// #cgo CFLAGS: -DGOPCCL_BUILD
import "C"

import (
	_ "github.com/gopccl/gopccl/backends/defaults"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)
