package pace

import "time"

const (
	// behind is how many words go behind the last data: a system takes a packet for lost as soon
	// as three that were sent after it have arrived (RFC 6675, RFC 8985 section 6.2).
	behind = 3
	// tails bounds how often they go behind the same data.
	tails = 4
	// leastTail is the shortest round trip for which they are worth their packets.
	leastTail = 20 * time.Millisecond
)

// Tail says when a word is worth sending that means nothing, behind data of which
// something may be lost. A system learns of a loss from what arrives that was sent
// later. Behind the last data of an operation nothing is sent: then it waits for two
// round trips before it tries (RFC 8985 section 7), and for a third if not the last
// packet was lost. With words behind them it knows after one. The zero value is ready.
type Tail struct {
	last   time.Duration // when the data behind which words go was written
	end    uint64        // where it ends, in bytes of the connection
	since  time.Duration // when the first word of the round was due
	words  int           // of the round
	rounds int
}

// Flight is what a system says of a connection, in bytes since it began.
type Flight struct {
	RTT      time.Duration
	Acked    uint64
	Sent     uint64 // without what was sent again
	Unsent   int    // written and not sent
	InFlight int
}

// Step takes the time, when data was written last, and what the system says; true: a
// word is to be sent now. Nothing is being written.
func (t *Tail) Step(now, last time.Duration, f Flight) bool {
	if last != t.last {
		*t = Tail{last: last}
	}
	if f.InFlight == 0 || f.Unsent > 0 || f.RTT < leastTail || t.rounds >= tails {
		return false
	}
	if t.words == 0 && t.rounds == 0 {
		t.since, t.end = now, f.Sent
	}
	if t.words == behind {
		// What is lost twice, or lost with the words behind it: the next ones go when these
		// must have been answered.
		if f.Acked >= t.end || now-t.since < f.RTT+f.RTT/4 {
			return false
		}
		t.rounds++
		t.words, t.since = 0, now
		if t.rounds == tails {
			return false
		}
	}
	t.words++
	return true
}
