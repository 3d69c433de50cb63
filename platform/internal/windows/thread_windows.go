package windows

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	kernel32                   = windows.NewLazySystemDLL("kernel32.dll")
	procGetThreadGroupAffinity = kernel32.NewProc("GetThreadGroupAffinity")
	procSetThreadGroupAffinity = kernel32.NewProc("SetThreadGroupAffinity")
	procSetThreadDescription   = kernel32.NewProc("SetThreadDescription")
	procGetThreadDescription   = kernel32.NewProc("GetThreadDescription")
)

// perGroup is how many processors a processor group has; processor number
// 64g+i is the i-th of group g.
const perGroup = 64

// groupAffinity is GROUP_AFFINITY.
type groupAffinity struct {
	mask     uint64
	group    uint16
	reserved [3]uint16
}

// SetAffinity binds the calling thread to processors, all of one group of 64.
func SetAffinity(cpus []int) error {
	var a groupAffinity
	for i, c := range cpus {
		if c < 0 || c >= 1<<16 || i > 0 && c/perGroup != int(a.group) {
			return os.NewSyscallError("SetThreadGroupAffinity", windows.ERROR_INVALID_PARAMETER)
		}
		a.group = uint16(c / perGroup)
		a.mask |= 1 << (c % perGroup)
	}
	if err := procSetThreadGroupAffinity.Find(); err != nil {
		return err
	}
	ok, _, err := procSetThreadGroupAffinity.Call(uintptr(windows.CurrentThread()), uintptr(unsafe.Pointer(&a)), 0)
	if ok == 0 {
		return os.NewSyscallError("SetThreadGroupAffinity", err)
	}
	return nil
}

// Affinity returns the processors that the calling thread may use, ascending.
func Affinity() ([]int, error) {
	if err := procGetThreadGroupAffinity.Find(); err != nil {
		return nil, err
	}
	var a groupAffinity
	ok, _, err := procGetThreadGroupAffinity.Call(uintptr(windows.CurrentThread()), uintptr(unsafe.Pointer(&a)))
	if ok == 0 {
		return nil, os.NewSyscallError("GetThreadGroupAffinity", err)
	}
	var cpus []int
	for i := range perGroup {
		if a.mask>>i&1 != 0 {
			cpus = append(cpus, int(a.group)*perGroup+i)
		}
	}
	return cpus, nil
}

// SetThreadName names the calling thread for debuggers.
func SetThreadName(name string) error {
	if err := procSetThreadDescription.Find(); err != nil { // before Windows 10
		return err
	}
	p, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return err
	}
	if hr, _, _ := procSetThreadDescription.Call(uintptr(windows.CurrentThread()), uintptr(unsafe.Pointer(p))); int32(hr) < 0 {
		return os.NewSyscallError("SetThreadDescription", windows.Errno(hr))
	}
	return nil
}

// ThreadName returns the calling thread's name.
func ThreadName() (string, error) {
	if err := procGetThreadDescription.Find(); err != nil {
		return "", err
	}
	var p *uint16
	if hr, _, _ := procGetThreadDescription.Call(uintptr(windows.CurrentThread()), uintptr(unsafe.Pointer(&p))); int32(hr) < 0 {
		return "", os.NewSyscallError("GetThreadDescription", windows.Errno(hr))
	}
	defer windows.LocalFree(windows.Handle(unsafe.Pointer(p)))
	return windows.UTF16PtrToString(p), nil
}

// ThreadID returns the number of the calling thread.
func ThreadID() int { return int(windows.GetCurrentThreadId()) }
