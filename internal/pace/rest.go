package pace

import "time"

const (
	// Pulse is how often a connection at rest sends something. Systems take a window
	// back that rested for a retransmission timeout, which is 200 ms and a round trip.
	Pulse = 150 * time.Millisecond
	// Worth is how many bytes make a connection worth pulses: what it sends beyond
	// the first two flights of a window that was taken back.
	Worth = 28 << 10

	// The first rest is that of who has an outer step every few minutes, whose second one
	// is not to begin cold.
	firstRest, leastRest, mostRest = 5 * time.Minute, 10 * time.Second, 15 * time.Minute
	rests                          = 8
)

// Rest says for how long connections that rest are worth pulses, which keep their
// windows: for one and a half times the longest of the last pauses. It belongs to
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
	length := firstRest
	if r.n > 0 {
		length = 0
		for _, d := range r.last {
			length = max(length, d)
		}
		length = max(length+length/2, leastRest)
	}
	return now + min(length, mostRest)
}

// End takes the time at which data leaves again.
func (r *Rest) End(now time.Duration) {
	if r.since == 0 {
		return
	}
	r.last[r.n%rests] = now - r.since
	r.n, r.since = r.n+1, 0
}
