//go:build cgo && !nocuda && (linux || windows) && (amd64 || arm64)

package main

// devices says whether addresses may be those of devices.
const devices = true
