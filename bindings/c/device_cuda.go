//go:build cgo && cuda

package main

// devices says whether addresses may be those of devices.
const devices = true
