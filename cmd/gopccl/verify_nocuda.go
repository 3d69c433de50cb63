//go:build !cuda

package main

import (
	"errors"

	"github.com/gopccl/gopccl/cmd/gopccl/determinism"
	"github.com/gopccl/gopccl/core/errs"
)

// openDevice says what is missing.
func openDevice(int) (determinism.Machine, func(), error) {
	return nil, nil, errs.New(errs.InvalidUsage, "open CUDA device", errors.New("this program was built without CUDA")).
		Do("build it with go build -tags cuda ./cmd/gopccl")
}
