//go:build !cuda

package cuda

import (
	"errors"

	"github.com/gopccl/gopccl/core/errs"
)

// Probe says why no device can be used: the program was built without the tag
// cuda. Errors: errs.DeviceFailed.
func Probe() error {
	return errs.New(errs.DeviceFailed, "open cuda", errors.New("this program was built without the tag cuda")).
		WithHint("use host tensors, or build it with -tags cuda")
}
