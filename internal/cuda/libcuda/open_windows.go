//go:build cuda

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
