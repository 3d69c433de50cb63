package process

import (
	"os/exec"
	"syscall"
)

// DieWithParent has the system kill the process of cmd, which is not started
// yet, when the thread that starts it ends, at the latest when this process
// does. It holds for the program that the child becomes (exec), not for what
// the child starts.
func DieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
