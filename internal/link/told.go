package link

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// The end that sends does not see what arrives: acknowledgements wait in the uplink of the
// other end, and while the queue there becomes longer or shorter they come slower or faster
// than data arrives. So it asks the other end to tell: a word of eight bytes on the
// connection, in the other direction, with the time by the clock there and the bytes that
// have come (docs/spec/extensions.md, "Frames of our own").
const (
	// toldBit marks such a word: the answer to a ping does not have it.
	toldBit   = uint64(1) << 63
	toldBytes = 64                    // unit of the bytes, of which there are 32 bits
	toldTime  = 16 * time.Microsecond // ... and of the time, of which there are 31
	tellEvery = 40 * time.Millisecond
	tellTime  = 100 * time.Millisecond // that it may take
	// What two clocks are taken to drift apart by: one part in so many.
	mostDrift = 5000
	// The way back takes no longer than the way there and back, which is told a moment later.
	mostApart = 200 * time.Millisecond
	// A word says nothing of now any more when nothing has come behind it for that long, and its
	// numbers nothing of those that come when they may have wrapped around.
	staleWord, staleAccount = 300 * time.Millisecond, time.Hour
)

// tells is what a receiver knows of telling.
type tells struct {
	on  bool      // the other end wants it, on this connection; the reader's
	due time.Time // when to look again; the reader's

	// Guarded by Hub.telling.
	sample func(*platform.Info) bool
	came   arrivals
}

// teller tells one peer what has come from it, over all connections. Hub.telling guards it.
type teller struct {
	last  time.Time
	bytes uint64
	info  platform.Info
}

// tell tells the other end what has come, if it is time. The caller is the reader, between
// reads. A word that cannot be written within tellTime is not: the next one says more. Half
// a word ends the connection, which nobody could read behind it.
func (r *Receiver) tell() {
	now := time.Now()
	if now.Before(r.tells.due) {
		return
	}
	r.tells.due = now.Add(tellEvery / 4)
	if !r.h.telling.TryLock() { // another reader is about to
		return
	}
	word, due := r.h.toTell(r.peer, now)
	r.h.telling.Unlock()
	if !due {
		return
	}
	r.tells.due = now.Add(tellEvery)
	var p [echoBytes]byte
	binary.BigEndian.PutUint64(p[:], word)
	r.conn.SetWriteDeadline(time.Now().Add(tellTime))
	n, err := r.conn.Write(p[:])
	r.conn.SetWriteDeadline(time.Time{})
	later := transport.IsTimeout(err) && transport.Resumable(r.conn) // in TLS all of it may be taken, and go then
	switch {
	case err == nil || later && (n == 0 || n == len(p)):
	case n > 0:
		r.Close(err)
	default:
		r.tells.on = false
	}
}

// toTell returns what a peer is to be told now, if anything. A stranger is told nothing.
// h.telling is held.
func (h *Hub) toTell(peer wire.UUID, now time.Time) (word uint64, due bool) {
	h.mu.Lock()
	t, pool := h.tellers[peer], h.rx[peer]
	if t == nil && h.known[peer] {
		t = &teller{}
		h.tellers[peer] = t
	}
	h.mu.Unlock()
	if t == nil || now.Sub(t.last) < tellEvery {
		return 0, false
	}
	t.last = now
	for _, r := range pool {
		k := &r.tells
		if k.sample == nil {
			k.sample = platform.Sampler(r.conn)
		}
		if !k.sample(&t.info) || !t.info.Known.Has(platform.HasCame) {
			continue
		}
		due = true
		t.bytes += k.came.since(&t.info, now.Sub(h.survey.made))
	}
	return toldBit | uint64(now.Sub(h.survey.made)/toldTime)<<32&^toldBit | t.bytes/toldBytes&(1<<32-1), due
}

// account is what a peer has told. It is the survey's.
type account struct {
	word  uint64        // the last one that counts
	at    time.Duration // by its clock; 0: nothing was told
	bytes uint64        // that came since the first word
	sent  uint64        // bytes to it, counted from any beginning
	again uint64        // ... those that were sent again
	heard time.Duration // when the last word came
	// By how much later than their time words have come, at least; it contains how the clocks
	// differ. back is by how much longer than that the last one took.
	least, back time.Duration
	queue       time.Duration // on the way there and back, of the connection that has the shortest
	fresh       bool          // in this tick
	known       bool          // queue is, since there was data last
}

// word is the last one, and when it came.
type word struct {
	mu   sync.Mutex
	word uint64 // 0: none
	at   time.Duration
}

func (w *word) set(word uint64, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.word, w.at = word, at
}

func (w *word) get() (word uint64, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.word, w.at
}

// told notes a word of the other end.
func (s *Sender) told(word uint64) {
	if f := s.gauge.flow; f != nil {
		f.word.set(word, time.Since(s.h.survey.made))
	}
}

// take brings the account up to date with a word that came then, unless it knows a later one.
func (a *account) take(word uint64, came time.Duration) {
	if came-a.heard > staleAccount {
		a.at = 0
	}
	later := (word>>32 - a.word>>32) & (1<<31 - 1)
	if word == 0 || a.at > 0 && (later == 0 || later >= 1<<30) {
		return
	}
	if a.at == 0 {
		a.at = max(time.Duration(word&^toldBit>>32)*toldTime, 1)
		a.least = came - a.at
	} else {
		took := time.Duration(later) * toldTime
		a.at += took
		// A count that went back has begun again, and the difference says nothing.
		if more := (word - a.word) & (1<<32 - 1); more < 1<<31 {
			a.bytes += more * toldBytes
		}
		a.least += took / mostDrift
	}
	a.word, a.heard = word, came
	a.least = min(a.least, came-a.at)
	a.back = came - a.at - a.least
}

// line is what bounds connections to distant peers. It is the survey's.
type line struct {
	pace.Line
	shown []pace.Shown
}

// note takes what a connection with data has said. Its round trip is an old one unless it is
// fresh: something was acknowledged since the last tick.
func (v *survey) note(s *Sender, c *count, info *platform.Info, fresh bool) {
	f, queue := s.gauge.flow, info.RTT-leastRTT(info)
	if a := &c.heard; fresh && (!a.fresh || queue < a.queue) {
		a.queue, a.fresh, a.known = queue, true, true
	}
	if !s.features.Flows || !info.Known.Has(platform.HasMinRTT|platform.HasAcked|platform.HasSent|platform.HasResent) {
		return
	}
	if !f.asked && fresh { // a connection that is dead must not seem to live because of it
		f.asked = true
		s.mu.Lock()
		s.openers = append(s.openers, Opener{tellTag, pingStream})
		s.mu.Unlock()
		s.Kick(false, true)
	}
	c.heard.take(f.word.get())
}

// bound bounds what distant peers are sent, by what was noted in this tick.
func (v *survey) bound(now time.Duration) {
	l := &v.line
	l.shown = l.shown[:0]
	for peer, c := range v.counts {
		a := &c.heard
		if !c.seen {
			a.known = false
			continue
		}
		a.sent += since(c.span.Sent, c.span.Resent)
		a.again += c.span.Resent
		if a.fresh && a.back > a.queue+mostApart { // the clock there has stood still
			a.least, a.back = a.least+a.back, 0
		}
		a.fresh = false
		shown := pace.Shown{
			Peer: binary.BigEndian.Uint64(peer[:8]), Base: c.span.Base, Queue: -1, Waiting: c.span.Waiting, Sent: a.sent, Resent: a.again,
		}
		if a.known {
			shown.Queue = max(a.queue-a.back, 0)
		}
		if now-a.heard < staleWord {
			shown.Arrived, shown.Told = a.bytes, a.at
		}
		l.shown = append(l.shown, shown)
	}
	if len(l.shown) > 0 {
		v.h.allowance.set(l.Step(now, l.shown))
	}
}

// tried says how many connections to a peer were wanted before, and whether more were being tried that
// brought nothing or could not be had. More of them are to show what they bring.
func (v *survey) tried(c *count, before int, fell bool) {
	switch {
	case fell:
		v.fell(c)
	case c.N() > before:
		c.before = v.line.Try()
	}
}

// fell takes back what the line was raised by for a trial, when those of other peers are over as well:
// they are judged under the bound with which they began.
func (v *survey) fell(c *count) {
	last := true
	for _, o := range v.counts { // each by itself: their order decides nothing
		if o != c && o.Trying() {
			if last = false; c.before > 0 && (o.before == 0 || c.before < o.before) { // the least that there was
				o.before = c.before
			}
		}
	}
	if last {
		v.line.Fell(c.before)
	}
}
