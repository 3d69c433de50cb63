package host

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// group is a process group of its own, killed by the kernel when the thread
// that started it ends, however that happens.
type group struct{}

const limitsMemory = true

func (group) start(cmd *exec.Cmd, _ int64) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	// Where memory runs out, the plugin goes first and the run never.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("1000"), 0)
	return nil
}

// wait waits for the end of the program and calls sweep while it is a zombie,
// so that its number cannot be somebody else's yet.
func (group) wait(cmd *exec.Cmd, sweep func()) error {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	sweep()
	return cmd.Wait()
}

func (group) kill(cmd *exec.Cmd) { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }

// memory returns the bytes that the program and its descendants hold for
// themselves. Pages of shared, the host's memory that they map, are not theirs;
// shared may be nil.
func (group) memory(cmd *exec.Cmd, shared *os.File) int64 {
	u := usageOf(cmd.Process.Pid, 0)
	if shared != nil {
		var st unix.Stat_t
		if unix.Fstat(int(shared.Fd()), &st) == nil {
			u.shared -= min(u.shared, int64(u.processes)*st.Blocks*512)
		}
	}
	return u.own + u.shared
}

// cpu returns the processor time that the program and its descendants have used.
func (group) cpu(cmd *exec.Cmd) (time.Duration, bool) {
	return usageOf(cmd.Process.Pid, 0).cpu, true
}

// usage is what a tree of processes takes.
type usage struct {
	processes   int
	own, shared int64 // resident bytes: anonymous ones, and of memory that can be shared
	cpu         time.Duration
}

// jiffy is the unit of times in /proc, the same on every architecture.
const jiffy = time.Second / 100

func usageOf(pid, depth int) usage {
	var u usage
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || depth > 16 {
		return u
	}
	u.processes = 1
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "RssAnon:":
			u.own = kib << 10
		case "RssShmem:":
			u.shared = kib << 10
		}
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name, in parentheses, may hold anything.
	if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(f) > 12 {
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		u.cpu = time.Duration(user+system) * jiffy
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range threads {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		for c := range bytes.FieldsSeq(children) {
			if child, err := strconv.Atoi(string(c)); err == nil {
				of := usageOf(child, depth+1)
				u.processes += of.processes
				u.own += of.own
				u.shared += of.shared
				u.cpu += of.cpu
			}
		}
	}
	return u
}
