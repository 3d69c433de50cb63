//go:build !nocuda && (amd64 || arm64)

package libcuda

import (
	"runtime"
	"sync"
	"unsafe"

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

// loaded returns the library if the process has loaded it, 0 if not.
func loaded(path string) uintptr {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL|noLoad)
	if err != nil {
		return 0
	}
	return lib
}

// noLoad is RTLD_NOLOAD. With it, too, the loader searches the file system, for
// some hundred microseconds if the library is not there.
const noLoad = 4

// phdrInfo is the beginning of struct dl_phdr_info.
type phdrInfo struct {
	_    [3]uintptr // address, name, headers
	_    uint16     // their number
	adds uint64     // libraries that were ever loaded
}

// iterate has dl_iterate_phdr and what it is to call; zero if there is none.
var iterate = sync.OnceValue(func() (it struct{ fn, callback uintptr }) {
	fn, err := symbol(purego.RTLD_DEFAULT, "dl_iterate_phdr")
	if err == nil {
		it.fn, it.callback = fn, purego.NewCallback(func(info *phdrInfo, size uintptr, adds *uint64) uintptr {
			if size >= unsafe.Sizeof(*info) {
				*adds = info.adds
			}
			return 1 // one is enough
		})
	}
	return it
})

// loads is how many libraries the process has loaded so far, 0 if the loader
// does not say.
func loads() uint64 {
	it := iterate()
	if it.fn == 0 {
		return 0
	}
	adds := new(uint64)
	purego.SyscallN(it.fn, it.callback, uintptr(unsafe.Pointer(adds)))
	return *adds
}
