package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// ansi reports whether f is a terminal that understands escape sequences; it
// switches them on.
func ansi(f *os.File) bool {
	var mode uint32
	handle := windows.Handle(f.Fd())
	if windows.GetConsoleMode(handle, &mode) != nil || os.Getenv("NO_COLOR") != "" {
		return false
	}
	return windows.SetConsoleMode(handle, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
