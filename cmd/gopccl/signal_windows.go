package main

import "os"

// interrupts ask the program to end in good order.
var interrupts = []os.Signal{os.Interrupt}
