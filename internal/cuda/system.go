//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package cuda

import "github.com/gopccl/gopccl/internal/cuda/libcuda"

// System is the platform on the driver of the system.
var System = New(Config{Open: libcuda.Open, Present: libcuda.Present})
