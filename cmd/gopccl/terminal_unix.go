//go:build unix

package main

import "os"

// ansi reports whether f is a terminal that understands escape sequences.
func ansi(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == ""
}
