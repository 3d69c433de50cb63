package linux

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetAffinity binds the calling thread to processors.
func SetAffinity(cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if set.Count() != len(cpus) { // numbers beyond the set are ignored by it
		return os.NewSyscallError("sched_setaffinity", unix.EINVAL)
	}
	return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &set))
}

// Affinity returns the processors that the calling thread may use, ascending.
func Affinity() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	left := set.Count()
	cpus := make([]int, 0, left)
	for c := 0; left > 0; c++ {
		if set.IsSet(c) {
			cpus = append(cpus, c)
			left--
		}
	}
	return cpus, nil
}

// nameBytes is what the system keeps of a thread's name.
const nameBytes = 15

// SetThreadName names the calling thread for debuggers, top and /proc.
func SetThreadName(name string) error {
	var b [nameBytes + 1]byte
	copy(b[:nameBytes], name)
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&b[0])), 0, 0, 0))
}

// ThreadName returns the calling thread's name.
func ThreadName() (string, error) {
	var b [nameBytes + 1]byte
	if err := unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&b[0])), 0, 0, 0); err != nil {
		return "", os.NewSyscallError("prctl", err)
	}
	return unix.ByteSliceToString(b[:]), nil
}

// ThreadID returns the number of the calling thread.
func ThreadID() int { return unix.Gettid() }

// Node returns the number of the memory node that processor cpu belongs to.
func Node(cpu int) (int, error) {
	names, err := filepath.Glob("/sys/devices/system/cpu/cpu" + strconv.Itoa(cpu) + "/node[0-9]*")
	if err != nil {
		return 0, err
	}
	if len(names) != 1 {
		return 0, os.ErrNotExist
	}
	return strconv.Atoi(strings.TrimPrefix(filepath.Base(names[0]), "node"))
}
