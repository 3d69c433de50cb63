package mesh

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/gopccl/gopccl/platform"
)

// listenSlots is how far the first P2P port is moved at random, so that a peer
// that rejoins rarely gets the port of its predecessor (quirk Q7).
const listenSlots = 16

// listenTries is how many ports are tried from each base on.
const listenTries = 8192

// Listeners are the three listen sockets of a peer (control spec, section 1.1).
type Listeners struct{ P2P, State, Bench net.Listener }

// Close closes those that there are.
func (l *Listeners) Close() {
	for _, x := range []net.Listener{l.P2P, l.State, l.Bench} {
		if x != nil {
			x.Close()
		}
	}
}

// Listen listens on addr, or on all addresses of the network's family if it
// is the zero Addr; on the exact ports (state, P2P, benchmark) if there are
// any, else from base on.
func Listen(ctx context.Context, network string, addr netip.Addr, base int, exact []int) (l Listeners, err error) {
	if !addr.IsValid() {
		addr = netip.IPv4Unspecified()
		if network != "tcp4" {
			addr = netip.IPv6Unspecified()
		}
	}
	ports, tries := []int{base, base + 1 + 3*rand.IntN(listenSlots), base + 2}, listenTries
	if exact != nil {
		ports, tries = exact, 1
	} else if base < 0 {
		ports = []int{0, 0, 0}
	}
	listen := func(i int) (net.Listener, error) {
		return platform.ListenFrom(ctx, network, netip.AddrPortFrom(addr, uint16(ports[i])), tries)
	}
	if l.P2P, err = listen(1); err == nil {
		if l.State, err = listen(0); err == nil {
			l.Bench, err = listen(2)
		}
	}
	if err != nil {
		l.Close()
	}
	return l, err
}

// Announced returns the ports that others are told: of state, P2P, benchmark.
func (l *Listeners) Announced(ports []int) (state, p2p, bench uint16) {
	if ports != nil {
		return uint16(ports[0]), uint16(ports[1]), uint16(ports[2])
	}
	return portOf(l.State), portOf(l.P2P), portOf(l.Bench)
}

func portOf(ln net.Listener) uint16 { return uint16(ln.Addr().(*net.TCPAddr).Port) }
