package host

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

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

// memory returns the bytes that the program and its descendants hold in memory.
func (group) memory(cmd *exec.Cmd) int64 { return residentTree(cmd.Process.Pid, 0) }

func residentTree(pid, depth int) int64 {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil || depth > 16 {
		return 0
	}
	var total int64
	if f := strings.Fields(string(statm)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		total = pages * int64(os.Getpagesize())
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range threads {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		for c := range bytes.FieldsSeq(children) {
			if child, err := strconv.Atoi(string(c)); err == nil {
				total += residentTree(child, depth+1)
			}
		}
	}
	return total
}
