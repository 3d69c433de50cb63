package transport

import "net"

// tcpOf returns the TCP connection that c is, or that Quiet has made c of; nil:
// none.
func tcpOf(c net.Conn) *net.TCPConn {
	switch c := c.(type) {
	case *net.TCPConn:
		return c
	case interface{ TCP() *net.TCPConn }:
		return c.TCP()
	}
	return nil
}

// Quiet returns c with writes that raise no SIGPIPE when the other end is gone:
// they only fail. In a Go program the runtime swallows the signal; but where the
// engine is a library, what the signal does is the host's to say, and the
// default is the end of the process. So nobody touches the disposition, and
// every socket of the engine goes through here, right behind connect or accept.
// A conn that is not a TCP connection is returned as it is. The result has a method
// TCP that returns c, for options of the socket.
func Quiet(c net.Conn) net.Conn {
	if t, ok := c.(*net.TCPConn); ok {
		return quiet(t)
	}
	return c
}
