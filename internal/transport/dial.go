package transport

import (
	"context"
	"net"
	"net/netip"
	"time"
)

const (
	// dialAgain is how long a connection is waited for before another one is begun beside it, and
	// mostDials how many of them there are. A system sends the first packet again after a second,
	// and after two more (RFC 6298, section 2): where packets are lost, that is too late for who
	// waits for all members of a group.
	dialAgain = 700 * time.Millisecond
	mostDials = 5
)

// Dial opens a TCP connection, which is the caller's. Where none is there in time it begins others beside
// it. The first that is there, or that fails, counts; the rest are closed, and a listener may see some
// of them come and go without a word. It ends with ctx. Errors are those of net.Dialer.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return DialFrom(ctx, network, addr, netip.Addr{})
}

// DialFrom is Dial from a local address, if that is valid.
func DialFrom(ctx context.Context, network, addr string, from netip.Addr) (net.Conn, error) {
	d := &net.Dialer{}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	return first(ctx, func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, network, addr) })
}

// first returns what comes first of several calls of dial, which are begun one after the other. None
// runs any longer when it returns.
func first(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	came := make(chan result)
	begun := 0
	begin := func() {
		begun++
		go func() {
			conn, err := dial(ctx)
			came <- result{conn, err}
		}()
	}
	begin()
	again := time.NewTicker(dialAgain)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if begun < mostDials {
				begin()
			}
		case r := <-came:
			cancel()
			for range begun - 1 {
				if other := <-came; other.err == nil {
					other.conn.Close()
				}
			}
			return r.conn, r.err
		}
	}
}
