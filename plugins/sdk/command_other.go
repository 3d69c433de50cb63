//go:build !linux

package sdk

import "os/exec"

func tie(*exec.Cmd) {}
