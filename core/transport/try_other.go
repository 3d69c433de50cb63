//go:build !unix

package transport

import "net"

// Elsewhere a write may wait, so that the sender's own goroutine makes them all.
func nonBlocking(net.Conn) TryWriter { return nil }
