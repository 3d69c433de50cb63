//go:build unix

package main

import (
	"os"
	"syscall"
)

// interrupts ask the program to end in good order.
var interrupts = []os.Signal{os.Interrupt, syscall.SIGTERM}

// dumpSignals ask for a dump of the state.
var dumpSignals = []os.Signal{syscall.SIGUSR1}

// reloadSignals ask for the configuration to be read again.
var reloadSignals = []os.Signal{syscall.SIGHUP}
