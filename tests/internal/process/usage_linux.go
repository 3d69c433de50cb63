package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Usage returns the resident memory of a process in bytes and how many
// descriptors it has open; ok is false if that cannot be known.
func Usage(pid int) (memory int64, descriptors int, ok bool) {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := bytes.Fields(statm)
	if err != nil || len(fields) < 2 {
		return 0, 0, false
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0, 0, false
	}
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, 0, false
	}
	return pages * int64(os.Getpagesize()), len(names), true
}
