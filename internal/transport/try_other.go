//go:build !unix

package transport

import "net"

// Elsewhere a write may wait, so that the sender's own goroutine makes them all.
func nonBlocking(net.Conn) TryWriter { return nil }

// Resumable reports whether a write on c that a deadline interrupted says
// exactly how much it sent. Overlapped writes of the system do not.
func Resumable(c net.Conn) bool {
	return tcpOf(c) == nil
}
