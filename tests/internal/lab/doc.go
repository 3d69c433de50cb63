// Package lab is a wide-area network in one process, for measurements and tests:
// hosts are Linux network namespaces with a TUN device each, and the packets
// between them are carried with the rates, queues, delays, jitter and losses of a
// profile, by a seed. It needs root and /dev/net/tun, and no module of the kernel.
//
// One processor carries the packets, before anything else that it has to do. While a network is open, threads
// of the kernel and of the process that has opened it leave that processor if they can. The other
// processors work on what hosts receive. Packets that were delivered to a host's device more than a millisecond late are
// counted: they say whether the machine was fast enough for what was asked of it. While a
// network stands on several processors, programs of the lowest class keep them busy, as a
// virtual one that sleeps is back late.
package lab

import (
	"errors"
	"time"
)

// ErrUnavailable says that this system, or the rights of this process, do not
// allow such networks.
var ErrUnavailable = errors.New("only on Linux, as root and with /dev/net/tun")

// MTU is that of the hosts' interfaces.
const MTU = 1500

// lateness is how late a packet may be delivered without being counted as late.
const lateness = time.Millisecond

// MaxLate is the share of late packets up to which a measurement counts.
const MaxLate = 0.01

// Stats says how the network has fared.
type Stats struct {
	Delivered, Lost, Dropped uint64 // packets; Lost by chance, Dropped by full queues
	Late                     uint64 // delivered more than a millisecond late
	Latest                   time.Duration
}

// Share returns the share of packets that came late.
func (s Stats) Share() float64 { return float64(s.Late) / float64(max(1, s.Delivered)) }

// Since returns what has happened since an earlier reading; Latest is that of
// both.
func (s Stats) Since(t Stats) Stats {
	return Stats{
		Delivered: s.Delivered - t.Delivered, Lost: s.Lost - t.Lost, Dropped: s.Dropped - t.Dropped,
		Late: s.Late - t.Late, Latest: s.Latest,
	}
}
