package pace

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// The fluid model: connections with windows of cubic's law share a queue before a
// line, in steps of a millisecond. What the line takes is acknowledged one round
// trip after it was sent. It has foreign traffic, random losses, lost
// acknowledgements, samples that come late, and changes of the rate. What Line says bounds
// them all together.
type fluid struct {
	up     Line
	bound  float64 // bytes per ms; 0: none
	credit float64
	came   map[uint64]float64 // by pair
	told   map[uint64]Shown
	queues map[uint64]time.Duration // that were seen last, by pair
	rng    *rand.Rand
	now    int     // ms
	rate   float64 // bytes per ms
	buffer float64 // bytes
	queue  float64
	line   []parcel // in the queue
	flows  []*flow
	lag    int // ms by which a sample may be late
	next   int // the next sample
	// foreign is what others send, in bytes per ms; elastic others fill the queue
	// and halve at losses.
	foreign float64
	elastic *flow
	unbound bool
}

type parcel struct {
	of    *flow // nil: foreign
	bytes float64
	sent  int
}

type answer struct {
	at, sent int
	bytes    float64
	lost     bool
}

// flow is a connection and the law of its window.
type flow struct {
	id      uint64
	pair    uint64
	base    int // round trip, ms
	loss    float64
	ackLoss float64
	idle    bool
	share   float64 // of what the application has to send; 0: always enough
	bursts  bool    // it has left to send, and then nothing
	left    float64
	window  float64
	thresh  float64
	peak    float64
	since   int // the last loss
	flying  float64
	answers []answer
	srtt    float64
	arrived float64
	sent    float64
	resent  float64
	untold  float64 // arrived, and the acknowledgements were lost
	blocked bool
	heard   float64 // of arrived, at the last sample: what says nothing has an old round trip
}

const segment = 1448

func newFlow(id, pair uint64, base int) *flow {
	return &flow{id: id, pair: pair, base: base, window: 10 * segment, thresh: math.Inf(1), srtt: float64(base)}
}

func newFluid(seed uint64, mbit float64, buffer time.Duration, flows ...*flow) *fluid {
	f := &fluid{came: map[uint64]float64{}, told: map[uint64]Shown{}, queues: map[uint64]time.Duration{}, rng: rand.New(rand.NewPCG(seed, 7)), flows: flows}
	f.rate = mbit * 1e6 / 8 / 1000
	f.buffer = f.rate * float64(buffer.Milliseconds())
	return f
}

// delay returns how long the queue is, in ms.
func (f *fluid) delay() float64 { return f.queue / f.rate }

// lose takes the window back, once a round trip.
func (w *flow) lose(now int) {
	if w.since > 0 && now-w.since < w.base {
		return
	}
	w.since = now
	w.peak = w.window
	w.window = max(2*segment, 0.7*w.window)
	w.thresh = w.window
}

// grow opens the window by what was acknowledged: slow start, then cubic.
// A window that is not used stays.
func (w *flow) grow(now int, bytes float64) {
	if w.window < w.thresh {
		if w.window > 2*w.flying+20*segment {
			return
		}
		w.window += bytes
		return
	}
	if w.flying+bytes+2*segment < w.window {
		w.since += 1
		return
	}
	t := float64(now-w.since) / 1000
	k := math.Cbrt(w.peak / segment * 0.3 / 0.4)
	target := (0.4*math.Pow(t-k, 3) + w.peak/segment) * segment
	reno := bytes / w.window * segment * 0.5
	w.window += min(max(reno, (target-w.window)*bytes/w.window), bytes)
}

// tick is a millisecond.
func (f *fluid) tick() {
	f.now++
	f.credit = min(f.credit+f.bound, max(5*f.bound, 64<<10))
	all := f.flows
	if f.elastic != nil {
		all = append(append([]*flow(nil), f.flows...), f.elastic)
	}
	var offered float64
	var wants []parcel
	for i := range all {
		w := all[(i+f.now)%len(all)]
		f.hear(w)
		if n := f.want(w); n > 0 {
			wants = append(wants, parcel{of: w, bytes: n, sent: f.now})
			offered += n
		}
	}
	if f.foreign > 0 {
		wants = append(wants, parcel{bytes: f.foreign, sent: f.now})
		offered += f.foreign
	}
	space := f.buffer + f.rate - f.queue
	over := max(0, offered-space)
	for _, p := range wants {
		drop := 0.0
		if over > 0 {
			drop = p.bytes * over / offered
		}
		if w := p.of; w != nil {
			w.flying += p.bytes
			w.sent += p.bytes
			random := 0.0
			if segments := p.bytes / segment; w.loss > 0 && f.rng.Float64() < segments*w.loss {
				random = min(segment, p.bytes-drop)
			}
			if lost := drop + random; lost > 0 {
				w.answers = append(w.answers, answer{at: f.now + w.base + int(f.delay()) + 1, sent: f.now, bytes: lost, lost: true})
			}
			p.bytes -= random
		}
		p.bytes -= drop
		if p.bytes > 0 {
			f.line = append(f.line, p)
			f.queue += p.bytes
		}
	}
	f.serve()
	if f.now >= f.next && !f.unbound {
		f.sample()
		f.next = f.now + 10
		if f.lag > 0 {
			f.next += f.rng.IntN(f.lag)
		}
	}
}

// serve lets the line take a millisecond's bytes.
func (f *fluid) serve() {
	room := f.rate
	for room > 0 && len(f.line) > 0 {
		p := &f.line[0]
		n := min(room, p.bytes)
		room -= n
		p.bytes -= n
		f.queue -= n
		if w := p.of; w != nil {
			w.answers = append(w.answers, answer{at: f.now + w.base, sent: p.sent, bytes: n})
			f.came[w.pair] += n
		}
		if p.bytes > 1e-9 {
			break
		}
		f.line = f.line[1:]
	}
	if len(f.line) == 0 {
		f.queue = 0
	}
}

// hear takes the answers that have come. A lost acknowledgement is made good by
// the next one: its bytes count then, and it says nothing of the round trip.
func (f *fluid) hear(w *flow) {
	kept := w.answers[:0]
	for _, a := range w.answers {
		if a.at > f.now {
			kept = append(kept, a)
			continue
		}
		w.flying -= a.bytes
		if a.lost {
			w.resent += a.bytes
			if w.bursts {
				w.left += a.bytes
			}
			w.lose(f.now)
			continue
		}
		w.untold += a.bytes
		if w.ackLoss > 0 && f.rng.Float64() < w.ackLoss {
			continue
		}
		w.arrived += w.untold
		w.grow(f.now, w.untold)
		acks := max(1, w.untold/segment/2)
		w.untold = 0
		gain := 1 - math.Pow(7.0/8, acks)
		w.srtt += gain * (float64(f.now-a.sent) - w.srtt)
	}
	w.answers = kept
	w.flying = max(0, w.flying)
}

// want returns what the flow sends now.
func (f *fluid) want(w *flow) float64 {
	w.blocked = false
	if w.idle {
		return 0
	}
	n := max(0, w.window-w.flying)
	bounded := f.bound > 0 && w != f.elastic
	if bounded {
		n = min(n, f.credit)
	}
	if w.bursts {
		w.blocked = w.left > 0
		if n = min(n, w.left); n > 0 && n < segment && n < w.left && w.flying > 0 {
			return 0
		}
		w.left -= n
		if bounded {
			f.credit -= n
		}
		return n
	}
	if w.share > 0 && n > w.share {
		n = w.share
	} else {
		w.blocked = true
	}
	if n < segment && w.flying > 0 {
		return 0
	}
	if bounded {
		f.credit -= n
	}
	return n
}

// sample asks all connections and gives Line what they say.
func (f *fluid) sample() {
	var all []Shown
	for _, w := range f.flows {
		if w.idle || w.bursts && w.left == 0 && w.flying < 1 {
			continue
		}
		i := slices.IndexFunc(all, func(s Shown) bool { return s.Peer == w.pair })
		if i < 0 {
			i = len(all)
			all = append(all, Shown{Peer: w.pair, Base: time.Duration(w.base) * time.Millisecond, Queue: -1})
		}
		s := &all[i]
		s.Sent += uint64(w.sent - w.resent)
		s.Resent += uint64(w.resent)
		s.Waiting = s.Waiting || w.blocked
		if w.arrived == w.heard {
			continue // its round trip is an old one
		}
		w.heard = w.arrived
		if queue := time.Duration((w.srtt - float64(w.base)) * float64(time.Millisecond)); s.Queue < 0 || queue < s.Queue {
			s.Queue = queue
		}
	}
	if len(all) == 0 {
		return
	}
	now := time.Duration(f.now) * time.Millisecond
	for i := range all {
		s := &all[i]
		word := f.told[s.Peer]
		if now-word.Told >= 40*time.Millisecond {
			word.Told, word.Arrived = now, uint64(f.came[s.Peer])
			f.told[s.Peer] = word
		}
		s.Told, s.Arrived = word.Told, word.Arrived
		if s.Queue < 0 {
			s.Queue = f.queues[s.Peer] // nothing has come since
		}
		f.queues[s.Peer] = s.Queue
	}
	f.bound = f.up.Step(now, all) / 1000
}

// outcome is what a stretch of time has shown.
type outcome struct {
	part  float64 // of the rate that arrived
	long  float64 // part of the time with a queue above 100 ms, or above two of those that stand
	queue float64 // ms, the mean
	worst float64 // ms
	lost  float64 // part of what was sent
}

// run lets a stretch of time pass.
func (f *fluid) run(d time.Duration) (o outcome) {
	ms := int(d.Milliseconds())
	before, sent, resent := f.sums()
	long := 0
	for range ms {
		f.tick()
		q := f.delay()
		o.queue += q / float64(ms)
		o.worst = max(o.worst, q)
		if q > max(100, 2*burst/f.rate) {
			long++
		}
	}
	after, sentAfter, resentAfter := f.sums()
	o.part = (after - before) / (f.rate * float64(ms))
	o.long = float64(long) / float64(ms)
	o.lost = (resentAfter - resent) / max(1, sentAfter-sent)
	return o
}

func (f *fluid) sums() (arrived, sent, resent float64) {
	for _, w := range f.flows {
		arrived, sent, resent = arrived+w.arrived, sent+w.sent, resent+w.resent
	}
	return arrived, sent, resent
}
