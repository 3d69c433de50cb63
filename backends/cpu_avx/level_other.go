//go:build !amd64 || noasm

package cpuavx

import (
	"fmt"

	"github.com/gopccl/gopccl/backends/internal/vectors"
)

func levelAVX2() (*vectors.Level, error) {
	return nil, fmt.Errorf("not an amd64 processor, or built without assembly")
}

func levelAVX512() (*vectors.Level, error) { return levelAVX2() }
