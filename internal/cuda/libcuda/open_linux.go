//go:build cuda

package libcuda

import (
	"runtime"

	"github.com/ebitengine/purego"
)

const library = "libcuda.so.1"

// The loader keeps the reason of a failure for the thread that met it, and
// purego asks for it in another call.

func openLibrary(path string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func symbol(lib uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(lib, name)
}
