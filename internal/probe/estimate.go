package probe

import (
	"math"
	"time"
)

// Estimate is what a measurement found out about a link.
type Estimate struct {
	// Mbps is the rate in 10^6 bits per second, once it was steady.
	Mbps float64
	// Deviation is the standard error of Mbps, in Mbit/s.
	Deviation float64
	// Took is how long was sent, the warm-up included.
	Took time.Duration
	// Late is by how much the sending began after the instant asked for.
	Late time.Duration
}

// A rate is steady when the standard error of its mean is below tolerance and
// its first half does not differ from the second by more than that, over at
// least minSamples samples.
const (
	sampleEvery = 25 * time.Millisecond
	tolerance   = 0.04
	minSamples  = 8
)

// Warm-up that is left out: TCP finds its window and buffers fill. The sender
// alone sees bytes vanish into its own buffers for longer than the receiver
// sees a rise.
const (
	warmUpCounted = 75 * time.Millisecond
	warmUpSent    = 400 * time.Millisecond
	minSent       = 600 * time.Millisecond
)

// sample is the rate over one interval of seconds.
type sample struct {
	mbps, seconds float64
}

// steady looks for the longest end of samples that is steady, and returns its
// mean and the standard error of that. Without one it returns the second half
// of the samples and false.
func steady(samples []sample, least int) (Estimate, bool) {
	for from := 0; len(samples)-from >= max(least, minSamples); from = from + max(1, (len(samples)-from)/4) {
		tail := samples[from:]
		e := mean(tail)
		a, b := mean(tail[:len(tail)/2]), mean(tail[len(tail)/2:])
		if e.Mbps > 0 && e.Deviation <= tolerance*e.Mbps && math.Abs(a.Mbps-b.Mbps) <= 2*tolerance*e.Mbps {
			return e, true
		}
	}
	return mean(samples[len(samples)/2:]), false
}

// mean weighs the samples by their length.
func mean(samples []sample) Estimate {
	var bits, seconds, square float64
	for _, s := range samples {
		bits += s.mbps * s.seconds
		seconds += s.seconds
	}
	if seconds == 0 {
		return Estimate{}
	}
	m := bits / seconds
	for _, s := range samples {
		square += (s.mbps - m) * (s.mbps - m) * s.seconds
	}
	e := Estimate{Mbps: m}
	if n := float64(len(samples)); n > 1 {
		e.Deviation = math.Sqrt(square / seconds / (n - 1))
	}
	return e
}
