//go:build !nocuda && (amd64 || arm64)

package libcuda

import "golang.org/x/sys/windows"

const library = "nvcuda.dll"

// openLibrary looks for the driver in the system's directory alone, so that no
// other file of that name is taken for it.
func openLibrary(path string) (uintptr, error) {
	h, err := windows.LoadLibraryEx(path, 0, windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	return uintptr(h), err
}

func symbol(lib uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(lib), name)
}

// loaded returns the library if the process has loaded it, 0 if not.
func loaded(path string) uintptr {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0
	}
	var h windows.Handle
	if windows.GetModuleHandleEx(0, name, &h) != nil {
		return 0
	}
	return uintptr(h)
}

// loads is unknown: loaded takes no time here.
func loads() uint64 { return 0 }
