//go:build !linux

package process

import "os/exec"

// DieWithParent does nothing on this system: a child has to watch its input.
func DieWithParent(*exec.Cmd) {}
