//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package defaults

import _ "github.com/gopccl/gopccl/backends/cuda" // NVIDIA devices; the driver is opened at run time
