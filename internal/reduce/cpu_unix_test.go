//go:build unix

package reduce

import "golang.org/x/sys/unix"

// cpuSeconds is what the process used so far, user and system: it says more
// than the wall clock on a machine that has other work to do.
func cpuSeconds() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
