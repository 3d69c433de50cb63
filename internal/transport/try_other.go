//go:build !unix

package transport

import "net"

// Elsewhere a write may wait, so that the sender's own goroutine makes them all.
func nonBlocking(net.Conn) TryWriter { return nil }

// Overlapped writes of the system that a deadline interrupted do not say how much
// they sent.
func resumable(c net.Conn) bool { return tcpOf(c) == nil }
