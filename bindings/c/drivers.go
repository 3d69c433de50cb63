//go:build cgo

package main

import (
	_ "github.com/gopccl/gopccl/backends/defaults"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)
