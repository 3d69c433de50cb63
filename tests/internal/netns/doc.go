// Package netns builds small networks for measurements: hosts that are Linux
// network namespaces, on one switch, with rates per host, per directed pair and
// per TCP flow. It needs the right to make namespaces (root) and the programs
// ip and tc.
//
// Namespaces have no names and are held by this process alone, and what runs in
// them dies with it: nothing stays behind, however the process ends.
package netns

import "net/netip"

// Rate is a rate in bits per second on the wire; 0: no limit.
type Rate int64

// Useful units.
const (
	Kbit Rate = 1000
	Mbit      = 1000 * Kbit
	Gbit      = 1000 * Mbit
)

// Buckets is the number of rates that PerFlow tells apart: the low byte of the
// source port picks one, so that flows need source ports that differ there.
// Dialer takes FirstPort .. FirstPort+Buckets-1. Where nobody chooses, a host
// draws from as many ports from drawnPort on, so that a connection to somewhere
// else never holds a port that a Dialer wants.
const (
	Buckets   = 256
	FirstPort = 40960
	drawnPort = FirstPort + 16*Buckets
)

// Shape is what a host may send and receive.
type Shape struct {
	Total   Rate         // sent by the host
	To      map[int]Rate // sent to the host with this index
	PerFlow Rate         // sent in one TCP flow; not together with To
	Flows   map[int]Rate // sent in the flow whose source port is FirstPort + key, in place of PerFlow
	Ingress Rate         // received by the host: a queue at the switch, which drops
	// IngressQueue is the length of that queue in bytes, 0: what 50 ms bring.
	IngressQueue int
}

// AddrOf returns the address of the host with index i (0 to 253).
func AddrOf(i int) netip.Addr { return AddrIn(0, i) }

// AddrIn returns the address in network k of the host with index i; networks
// above 0 are those that Join makes.
func AddrIn(k, i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(99 + k), 0, byte(i + 1)}) }
