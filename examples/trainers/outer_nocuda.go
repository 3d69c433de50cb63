//go:build nocuda || !(linux || windows) || !(amd64 || arm64)

package trainers

import "errors"

// openOuter says what is missing.
func openOuter(int) (Outer, error) {
	return nil, errors.New("outer step on a device: this program was built without CUDA: build it for Linux or Windows without the tag nocuda")
}
