package process

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// starter is a thread that never ends: the system ties a child to the life of the
// thread that starts it. One on which a goroutine of the engine locks itself later
// ends with that goroutine.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go start(work)
	return work
})

func start(work <-chan func()) {
	runtime.LockOSThread()
	for f := range work {
		f()
	}
}

// Begin starts cmd, and has the system kill its process when this one ends. It holds
// for the program that the child becomes (exec), not for what the child starts.
func Begin(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error, 1)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}
