//go:build nocuda || !(linux || windows) || !(amd64 || arm64)

package main

import (
	"errors"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

func systemDriver() (driver.Driver, error) {
	return nil, errors.New("this program was built without CUDA: build it without the tag nocuda, or use -driver interpreter -small")
}
