//go:build !linux

package process

import "os/exec"

// Begin starts cmd. On this system a child has to watch its input to end with its parent.
func Begin(cmd *exec.Cmd) error { return cmd.Start() }
