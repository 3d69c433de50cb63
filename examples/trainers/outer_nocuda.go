//go:build !cuda

package trainers

import "errors"

// openOuter says what is missing.
func openOuter(int) (Outer, error) {
	return nil, errors.New("outer step on a device: this program was built without CUDA: go run -tags cuda ./examples/diloco")
}
