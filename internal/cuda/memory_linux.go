package cuda

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machineMemory returns the memory of the machine, or of the container if that
// has less, in bytes; 0: not known.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	all := uint64(info.Totalram) * uint64(info.Unit)
	if b, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if most, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			return min(all, most)
		}
	}
	return all
}
