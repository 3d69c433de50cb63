//go:build cgo && !cuda

package main

// devices says whether addresses may be those of devices: here none is asked about.
const devices = false
