package main

import "os"

// interrupts ask the program to end in good order.
var interrupts = []os.Signal{os.Interrupt}

// dumpSignals ask for a dump of the state; this system has none for it.
var dumpSignals []os.Signal

// reloadSignals ask for the configuration to be read again; this system has none
// for it.
var reloadSignals []os.Signal
