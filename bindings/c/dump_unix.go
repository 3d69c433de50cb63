//go:build cgo && unix

package main

// dumpSignals says whether this system has signals for dumps.
const dumpSignals = true
