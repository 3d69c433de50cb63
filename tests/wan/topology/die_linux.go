package main

import "syscall"

// dieWithParent ends a child with the thread that started it.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
