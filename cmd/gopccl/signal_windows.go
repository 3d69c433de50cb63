package main

import "os"

// interrupts ask the program to end in good order.
var interrupts = []os.Signal{os.Interrupt}

// dumpSignals ask for a dump of the state; this system has none for it.
var dumpSignals []os.Signal

// reloadSignals ask for the configuration to be read again; this system has none
// for it.
var reloadSignals []os.Signal

// surviveBrokenPipes does nothing: on this system writing to a pipe whose reader
// is gone is an error anyway.
func surviveBrokenPipes() (stop func()) { return func() {} }
