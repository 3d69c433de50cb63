package mesh

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/platform"
)

// listenSlots is how far the port is moved at random, so that a peer that rejoins
// rarely gets the port of its predecessor (quirk Q7).
const listenSlots = 16

// listenTries is how many ports are tried from the first one on.
const listenTries = 8192

// Listeners are the listen sockets of a peer, each of which takes connections of all
// purposes. There is one, or, where three ports are named, those that others are told for
// shared state, P2P connections and benchmarks (control spec, section 1.1).
type Listeners []net.Listener

// Close closes those that there are.
func (l Listeners) Close() {
	for _, x := range l {
		x.Close()
	}
}

// ValidPorts reports whether there is one port, or three different ones.
func ValidPorts(ports []int) bool {
	different := slices.Compact(slices.Sorted(slices.Values(ports)))
	return (len(ports) == 1 || len(ports) == 3) && len(different) == len(ports) && different[0] > 0 && different[len(different)-1] <= 65535
}

// Listen listens on addr, or on all addresses of the network's family if it is the zero
// Addr; on the exact ports if there are any (ValidPorts), else on one from base on.
func Listen(ctx context.Context, network string, addr netip.Addr, base int, exact []int) (l Listeners, err error) {
	if !addr.IsValid() {
		addr = netip.IPv4Unspecified()
		if network != "tcp4" {
			addr = netip.IPv6Unspecified()
		}
	}
	ports, tries := exact, 1
	switch {
	case exact != nil:
	case base < 0:
		ports = []int{0}
	default:
		ports, tries = []int{base + rand.IntN(min(listenSlots, 65536-base))}, listenTries
	}
	for _, port := range ports {
		ln, err := platform.ListenFrom(ctx, network, netip.AddrPortFrom(addr, uint16(port)), tries)
		if err != nil {
			l.Close()
			return nil, err
		}
		l = append(l, ln)
	}
	return l, nil
}

// Data returns the address that others are told for P2P connections.
func (l Listeners) Data() net.Addr { return l[len(l)/2].Addr() }

// Announced returns the ports that others are told: of state, P2P, benchmark. They are
// the same if there is one listener.
func (l Listeners) Announced(ports []int) (state, p2p, bench uint16) {
	if ports == nil {
		for _, ln := range l {
			ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
		}
	}
	return uint16(ports[0]), uint16(ports[len(ports)/2]), uint16(ports[len(ports)-1])
}

func portOf(ln net.Listener) uint16 { return uint16(ln.Addr().(*net.TCPAddr).Port) }
