//go:build !amd64 || noasm

package cpuavx

import (
	"fmt"

	"github.com/gopccl/gopccl/core/dtype"
)

func levels() ([]*level, error) {
	return nil, fmt.Errorf("not an amd64 processor, or built without assembly")
}

// divide has no callers without a level.
func divide(dtype.Type, *byte, int, int) {}
