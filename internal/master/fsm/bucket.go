package fsm

import (
	"fmt"
	"time"
)

// bucket lets events through as long as it holds tokens, and holds one more
// after every period, up to burst.
type bucket struct {
	used int           // tokens that are missing
	at   time.Duration // when the next one comes back, if any is missing
	more int           // events that were not let through since the last one that was
}

// rate is how a bucket fills.
type rate struct {
	burst int
	every time.Duration
}

// take lets one event through, or counts it.
func (b *bucket) take(now time.Duration, r rate) bool {
	if !b.ready(now, r) {
		b.more++
		return false
	}
	if b.used++; b.used == 1 {
		b.at = now + r.every
	}
	return true
}

// ready reports whether take would let an event through.
func (b *bucket) ready(now time.Duration, r rate) bool {
	if b.used > 0 && now >= b.at {
		n := min(b.used, 1+int((now-b.at)/r.every))
		b.used -= n
		b.at += time.Duration(n) * r.every
	}
	return b.used < r.burst
}

// Lines of the log that one connection, one group, all connections that
// were not let in, and rounds may cause, of each kind.
var (
	clientLines   = rate{8, 5 * time.Second}
	groupLines    = rate{64, 250 * time.Millisecond}
	strangerLines = rate{64, 250 * time.Millisecond}
	roundLines    = rate{64, 250 * time.Millisecond}
)

// lines are the buckets of a source of log lines, by kind.
type lines map[string]*bucket

// say appends to a text how many lines of its kind were left out, false if this
// one is to be left out as well.
func (l *lines) say(now time.Duration, r rate, kind string, text *string) bool {
	if *l == nil {
		*l = lines{}
	}
	b := (*l)[kind]
	if b == nil {
		b = &bucket{}
		(*l)[kind] = b
	}
	if !b.take(now, r) {
		return false
	}
	*text += leftOut(b.more)
	b.more = 0
	return true
}

// rest says how many lines of any kind were left out since the last one.
func (l lines) rest() string {
	n := 0
	for _, b := range l {
		n += b.more
	}
	return leftOut(n)
}

func leftOut(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}
