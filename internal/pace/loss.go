package pace

import "math"

const (
	// lossSpan is of how many packets the last ones are that Loss tells of, half or more of it.
	lossSpan = 1 << 16
	// lossDoubt is how many packets without a loss are taken to have been before the first, for what
	// is certain: chance may have had as many more losses as it usually has.
	lossDoubt = 500
	// usualLosses of usualPackets is what ways lose that are not known. Those between continents often do.
	usualLosses, usualPackets = 2, 20_000
)

// Loss is the part of packets that ways lose by chance, as far as the last ones show it. Packets
// that were lost together count once, as they hold a connection up once. The zero value has
// seen none.
type Loss struct{ packets, losses float64 }

// Add takes what one connection has sent in a tick, in packets, and whether some of them or of
// earlier ones were found to be lost. Where there is a queue, what is lost is its overflow, which
// says nothing.
func (l *Loss) Add(packets int, lost bool, s Span) {
	if s.RTT-s.Base > queueOf(s.Base) {
		return
	}
	l.packets += float64(packets)
	if lost {
		l.losses++
	}
	if l.packets > lossSpan {
		l.packets /= 2
		l.losses /= 2
	}
}

// Part returns the part of packets that is lost, as far as is known: at first what is usual, and with
// each packet more what was seen. Where more is lost than usual, that is told as soon as it is certain.
func (l *Loss) Part() float64 {
	certain := (l.losses - math.Sqrt(l.losses)) / (l.packets + lossDoubt)
	return max(certain, (l.losses+usualLosses)/(l.packets+usualPackets))
}
