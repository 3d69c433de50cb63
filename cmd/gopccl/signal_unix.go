//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// interrupts ask the program to end in good order.
var interrupts = []os.Signal{os.Interrupt, syscall.SIGTERM}

// dumpSignals ask for a dump of the state.
var dumpSignals = []os.Signal{syscall.SIGUSR1}

// reloadSignals ask for the configuration to be read again.
var reloadSignals = []os.Signal{syscall.SIGHUP}

// surviveBrokenPipes makes writing to standard output or error whose reader is
// gone an error instead of the end of the process, until stop is called. Programs
// that are started meanwhile get the signal's default back.
func surviveBrokenPipes() (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGPIPE)
	return func() { signal.Stop(c) }
}
