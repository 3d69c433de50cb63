//go:build nocuda || !(linux || windows) || !(amd64 || arm64)

package main

import (
	"errors"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// cudaDriver says what is missing; tests have another one.
var cudaDriver = func() (driver.Driver, error) {
	return nil, errs.New(errs.InvalidUsage, "open CUDA driver", errors.New("this program was built without CUDA")).
		WithHint("build it for Linux or Windows without the tag nocuda")
}
