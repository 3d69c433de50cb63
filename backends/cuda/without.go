//go:build nocuda || !(linux || windows) || !(amd64 || arm64)

package cuda

import (
	"errors"

	"github.com/gopccl/gopccl/core/errs"
)

// Probe says why no device can be used: the program was built without CUDA.
// Errors: errs.DeviceFailed.
func Probe() error {
	return errs.New(errs.DeviceFailed, "open cuda", errors.New("this program was built without CUDA")).
		WithHint("use host tensors, or build it for Linux or Windows without the tag nocuda")
}
