//go:build !arm64 || noasm

package cpuneon

import (
	"fmt"

	"github.com/gopccl/gopccl/backends/internal/vectors"
)

func level() (*vectors.Level, error) {
	return nil, fmt.Errorf("not an arm64 processor, or built without assembly")
}
