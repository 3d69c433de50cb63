//go:build cuda

package defaults

import _ "github.com/gopccl/gopccl/backends/cuda" // NVIDIA devices; the driver is opened at run time
