package main

import "os"

// interrupts ask the program to end in good order.
var interrupts = []os.Signal{os.Interrupt}

// dumpSignals ask for a dump of the state; this system has none for it.
var dumpSignals []os.Signal
