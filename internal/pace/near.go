package pace

import "time"

const (
	// A way with a shorter round trip is near: there is no queue there that anybody could feel.
	near = 2 * time.Millisecond
	// A queue is one beyond a part of the empty way's round trip, within bounds.
	queuePart          = 0.25
	queueMin, queueMax = 8 * time.Millisecond, 25 * time.Millisecond
)

// Near reports whether a way with this round trip is too short to be sampled.
func Near(rtt time.Duration) bool { return rtt < near }

// queueOf returns from which delay on there is a queue on a way with that round trip.
func queueOf(base time.Duration) time.Duration {
	return min(max(time.Duration(float64(base)*queuePart), queueMin), queueMax)
}
