//go:build cgo

package main

// dumpSignals says whether this system has signals for dumps.
const dumpSignals = false
