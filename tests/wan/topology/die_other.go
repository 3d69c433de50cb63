//go:build !linux

package main

import "syscall"

// dieWithParent does nothing: there are no network namespaces here.
func dieWithParent(*syscall.SysProcAttr) {}
