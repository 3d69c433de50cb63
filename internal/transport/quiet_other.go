//go:build !unix

package transport

import "net"

// There is no such signal.
func quiet(t *net.TCPConn) net.Conn { return t }
