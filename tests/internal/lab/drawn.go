package lab

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

const (
	// drawn precedes the seed in the name of a profile that is drawn from it.
	drawn = "drawn"
	// mostDrawn is what hosts of a drawn network send at most, together, in Mbit/s: the packets of
	// more are late on two cores.
	mostDrawn = 400
)

// Drawn returns a network that nobody has thought of: hosts at random places of a plane, with access of
// some kind, buffers, losses and jitter, all drawn from a seed. The last host is the master's. What is
// tuned to the profiles that come along shows here.
func Drawn(seed uint64) (*Profile, error) {
	text := draw(rand.New(rand.NewPCG(seed, 0)))
	return Parse(drawn+strconv.FormatUint(seed, 10), strings.NewReader(text))
}

// draw writes the statements of a network.
func draw(rng *rand.Rand) string {
	var b strings.Builder
	chance := func(part float64) bool { return rng.Float64() < part }
	between := func(low, high float64) float64 { return low * math.Pow(high/low, rng.Float64()) } // evenly by factors
	peers := 3 + rng.IntN(6)
	reach := between(5, 120) // ms one way, across the plane
	type place struct{ x, y float64 }
	at := make([]place, peers+1)
	limit := ""
	if chance(0.12) {
		limit = fmt.Sprintf("flow limit %.1f\n", between(5, 20))
	}
	for i := range at {
		at[i] = place{rng.Float64(), rng.Float64()}
		if i > 0 && i < peers && limit == "" && chance(0.15) { // a neighbour, to whom no flow is limited
			at[i] = place{at[i-1].x + 0.01, at[i-1].y}
		}
	}
	loss, burst := 0.0, 0.0
	if chance(0.6) {
		loss = between(0.002, 1)
		if chance(0.3) {
			burst = between(1, 4)
		}
	}
	jitter := 0.0
	if chance(0.4) {
		jitter = between(0.01, 0.15)
	}
	queue := between(15, 500)
	up := between(15, 200)
	down, unequal := up, 1.0
	switch rng.IntN(3) {
	case 0:
		down = up * between(2, 8)
	case 1:
		unequal = between(1.5, 6)
	}

	rates := make([]float64, peers)
	sum := 0.0
	for i := range rates {
		rates[i] = between(up/unequal, up)
		sum += rates[i]
	}
	fmt.Fprintf(&b, "# Drawn: %d peers, %.0f Mbit/s up at most, %.0f ms one way at most, %.3f %% loss, buffers of %.0f ms.\nhosts %d\n",
		peers, up, reach*math.Sqrt2, loss, queue, peers+1)
	fmt.Fprintf(&b, "host %d up 1000 down 1000\n%s", peers, limit)
	for i, r := range rates {
		r *= min(1, mostDrawn/sum)
		fmt.Fprintf(&b, "host %d up %.1f down %.1f queue %v\n", i, r, r*down/up, time.Duration(queue*float64(time.Millisecond)).Round(time.Millisecond))
	}
	for i := range at {
		for j := range i {
			delay := 0.3 + reach*math.Hypot(at[i].x-at[j].x, at[i].y-at[j].y)
			fmt.Fprintf(&b, "between %d %d delay %.1fms", i, j, delay)
			if jitter > 0 {
				fmt.Fprintf(&b, " jitter %.2fms", jitter*delay)
			}
			if loss > 0 {
				fmt.Fprintf(&b, " loss %.4f", loss*between(0.3, 1.5))
			}
			if burst > 0 {
				fmt.Fprintf(&b, " burst %.1f", burst)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
