//go:build cuda && !linux && !windows

package libcuda

import "errors"

const library = "the CUDA driver"

func openLibrary(string) (uintptr, error) {
	return 0, errors.New("NVIDIA has none for this system")
}

func symbol(uintptr, string) (uintptr, error) { return 0, errors.New("there is no library") }
