package mesh

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// LocalAddresses returns the addresses of this machine that names (addresses or
// interfaces) stand for. network is tcp4 or tcp.
func LocalAddresses(ctx context.Context, network string, names []string) (out []netip.Addr, err error) {
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil {
			if a, err = addressOf(name, network == "tcp4"); err != nil {
				return nil, err
			}
		}
		a = a.Unmap()
		if a.IsUnspecified() || network == "tcp4" && !a.Is4() {
			return nil, fmt.Errorf("address %s is not one of a single network of the family that the master is reached by", a)
		}
		// An address that can be listened on is one of this machine.
		ln, err := platform.ListenFrom(ctx, "tcp", netip.AddrPortFrom(a, 0), 1)
		if err != nil {
			return nil, err
		}
		ln.Close()
		out = append(out, a)
	}
	return out, nil
}

// addressOf returns the first address of an interface, of IPv4 or, if any will
// do, of either family.
func addressOf(name string, four bool) (netip.Addr, error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is neither an IP address nor an interface: %w", name, err)
	}
	list, err := dev.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("addresses of interface %s: %w", name, err)
	}
	for _, x := range list {
		if p, ok := x.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(p.IP); ok && !a.IsLinkLocalUnicast() && (a.Unmap().Is4() || !four) {
				return a, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("interface %s has no address of the family that the master is reached by", name)
}

// announcedAddresses are where neighbours find this peer besides the address
// that the master tells them.
func (m *Mesh) announcedAddresses() (out []netip.AddrPort) {
	port := portOf(m.cfg.Listener)
	for _, a := range m.cfg.Addresses {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

// way is what a connection of a pool takes to a neighbour.
type way struct {
	from netip.Addr // local address, not valid: the system's choice
	to   netip.AddrPort
	// session is the number that the neighbour has to say there, 0: none.
	session uint64
	dead    atomic.Bool // it leads nowhere
}

// ways are those that the connections of a pool share out among themselves: the
// first is what the master told, for connection 0, and the rest, if there are
// any, are for the others in turns.
func (m *Mesh) ways(p wire.PeerEndpoint, ack wire.P2PHelloAck) []*way {
	out := []*way{{to: p.Addr}}
	theirs := Dialable(ack.Ext.Addresses)
	if ack.Ext.Session == 0 {
		theirs = nil // nobody could tell whether it is the same peer there
	}
	switch {
	case len(theirs) == 0:
		for _, a := range m.cfg.Addresses {
			out = append(out, &way{from: a, to: p.Addr})
		}
	case len(theirs) == len(m.cfg.Addresses):
		for i, a := range theirs {
			out = append(out, &way{from: m.cfg.Addresses[i], to: a, session: ack.Ext.Session})
		}
	default:
		for _, a := range theirs {
			out = append(out, &way{to: a, session: ack.Ext.Session})
		}
	}
	return out
}

// wayOf returns what connection number takes.
func wayOf(ways []*way, number uint32) *way {
	if number > 0 && len(ways) > 1 {
		if w := ways[1+int(number)%(len(ways)-1)]; !w.dead.Load() {
			return w
		}
	}
	return ways[0]
}

// Dialable drops the addresses that cannot be dialled.
func Dialable(in []netip.AddrPort) (out []netip.AddrPort) {
	for _, a := range in {
		if a.IsValid() && a.Port() != 0 && !a.Addr().IsUnspecified() {
			out = append(out, a)
		}
	}
	return out
}
