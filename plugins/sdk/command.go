package sdk

import (
	"os/exec"
	"runtime"
)

// Run runs a program that a plugin needs, as cmd.Run does. On Linux the program
// ends with the plugin, however the plugin ends; elsewhere the host kills what
// is left of the plugin's process group.
func Run(cmd *exec.Cmd) error {
	// The kernel ties the program to the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tie(cmd)
	return cmd.Run()
}
