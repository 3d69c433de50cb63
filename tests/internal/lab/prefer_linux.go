package lab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// prefer gives the calling thread a processor, and there precedence over all others, as
// far as it is allowed to: a packet that waits for a processor is late. The thread must
// be locked to its goroutine, and ends with it.
func prefer(processor int) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -15)
	if processor < 0 {
		return
	}
	attr := unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}
	attr.Size = uint32(unsafe.Sizeof(attr))
	if unix.SchedSetAttr(0, &attr, 0) != nil {
		return // without precedence any processor may be the one that is free
	}
	_ = bind([]int{processor})
}

// bind has the calling thread, and the programs that it starts, run on these processors; none: on those
// that it has.
func bind(processors []int) error {
	if len(processors) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range processors {
		set.Set(c)
	}
	return unix.SchedSetaffinity(0, &set)
}

// divide says which processor carries packets, and which others there are for the
// hosts that get them. With one there is nothing to divide: carrier is -1.
func divide() (carrier int, hosts []int) {
	all := allowed()
	if len(all) < 2 {
		return -1, nil
	}
	return all[len(all)-1], all[:len(all)-1]
}

// stayAwake has every processor do something when there is nothing to do: a virtual one
// that sleeps is given to others, and back late. Whatever else runs goes first. What is
// started ends with the calling thread, or with stop.
func stayAwake(processors []int) (stop func()) {
	if runtime.GOMAXPROCS(0) < len(processors) {
		return func() {} // it may not use all of them all the time
	}
	var all []*exec.Cmd
	for _, c := range processors {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		// Where the system divides a processor between sessions, what goes last in its own is no less than
		// another one: it gets a session, which goes last.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
		if cmd.Start() != nil {
			continue
		}
		all = append(all, cmd)
		var set unix.CPUSet
		set.Set(c)
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid), []byte("19"), 0)
		attr := unix.SchedAttr{Policy: unix.SCHED_IDLE}
		attr.Size = uint32(unsafe.Sizeof(attr))
		if unix.SchedSetAttr(cmd.Process.Pid, &attr, 0) != nil || unix.SchedSetaffinity(cmd.Process.Pid, &set) != nil {
			_ = cmd.Process.Kill() // it would take time from others
		}
	}
	return func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
}

// rank is the nice value of programs that Precede has started again.
const rank = -12

// Precede starts this program again, with precedence over others on the machine, once, as
// far as it is allowed to. Its children inherit that. What else the machine does then
// makes fewer packets late.
func Precede() {
	if now, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || 20-now <= rank {
		return // the system call returns 20 less the nice value
	}
	self, err := os.Executable()
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, 0, rank) != nil {
		return
	}
	_ = unix.Exec(self, os.Args, os.Environ())
}
