//go:build unix && !linux

package host

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// group is a process group of its own. These systems do not tie a process to
// its parent: a plugin sees the end of its input when the host is gone.
type group struct{}

const limitsMemory = false

func (group) start(cmd *exec.Cmd, _ int64) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

// wait waits for the end of the program. When it calls sweep the number of the
// group is free if the group is empty, and could in theory be taken again.
func (group) wait(cmd *exec.Cmd, sweep func()) error {
	defer sweep()
	return cmd.Wait()
}

func (group) kill(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

func (group) memory(*exec.Cmd, *os.File) int64 { return 0 }

func (group) cpu(*exec.Cmd) (time.Duration, bool) { return 0, false }
