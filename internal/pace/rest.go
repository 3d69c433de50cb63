package pace

import (
	"strings"
	"time"
)

const (
	// Pulse is how often a connection at rest sends something, if a round trip takes no longer.
	// Systems take a window back that rested for a retransmission timeout, which is 200 ms and a
	// round trip.
	Pulse = 150 * time.Millisecond
	// Worth is how many bytes make a connection worth pulses: what it sends beyond
	// the first two flights of a window that was taken back.
	Worth = 28 << 10

	// What rests is kept awake for leastRest: an outer step every few minutes is not to
	// begin cold. It may be made of many operations with short pauses between them, which
	// say nothing about the long one.
	shortRest, leastRest, mostRest = time.Minute, 5 * time.Minute, 15 * time.Minute
	rests                          = 8
)

// Keeps reports whether a congestion control of this name keeps its window at rest without
// pulses. BBR does: systems take back the windows of others only, and what BBR knows of the way
// it takes from the last ten round trips in which something was sent
// (draft-cardwell-iccrg-bbr-congestion-control-00). A pulse is such a round trip, so that some
// seconds of them make it forget how much the way carries, and it finds that out again by a
// quarter more every eight round trips.
func Keeps(congestion string) bool { return strings.HasPrefix(congestion, "bbr") }

// Rest says for how long connections that rest are worth pulses, which keep their
// windows: for one and a half times the longest of the last long pauses. It belongs to
// one goroutine at a time. The zero value knows no pause.
type Rest struct {
	last  [rests]time.Duration
	n     int
	since time.Duration // when the pause under way began; 0: there is none
}

// Begin takes the time at which the last data left, and returns until when pulses
// are worth sending. What passes mostRest is none of it: one more slow start costs
// less.
func (r *Rest) Begin(now time.Duration) (until time.Duration) {
	r.since = now
	longest := time.Duration(0)
	for _, d := range r.last {
		longest = max(longest, d)
	}
	return now + min(max(longest+longest/2, leastRest), mostRest)
}

// End takes the time at which data leaves again.
func (r *Rest) End(now time.Duration) {
	if d := now - r.since; r.since > 0 && d >= shortRest {
		r.last[r.n%rests] = d
		r.n++
	}
	r.since = 0
}
