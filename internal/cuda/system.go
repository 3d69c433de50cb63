//go:build cuda

package cuda

import "github.com/gopccl/gopccl/internal/cuda/libcuda"

// System is the platform on the driver of the system.
var System = New(Config{Open: libcuda.Open})
