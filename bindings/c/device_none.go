//go:build cgo && (nocuda || !(linux || windows) || !(amd64 || arm64))

package main

// devices says whether addresses may be those of devices: here none is asked about.
const devices = false
