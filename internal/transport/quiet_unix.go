//go:build unix && !linux && !darwin

package transport

import "net"

const noSignal = 0

// What Go's runtime does about the signal has to do here.
func quiet(t *net.TCPConn) net.Conn { return t }
