// Package netem decides what happens to the packets of a wide-area network: when
// each of them arrives, or that it is lost. It is pure: time comes from outside,
// and chance is a function of the seed, the pair of hosts and the number of the
// packet in this pair, so that what one pair loses does not depend on the others.
//
// A packet passes the uplink of its host, the limit of its flow, the way out of its
// site, the path of the pair (loss, then rate), the way into the other site and the
// downlink of the other host, each a queue, and is then delayed. What stays inside of a
// site passes neither of its ways. Without Path.Reorder a pair keeps its order.
package netem

import (
	"math"
	"slices"
	"time"
)

// Queue is a link with a buffer in front of it.
type Queue struct {
	Rate   float64       // in bits per second of the wire; 0: no limit
	Buffer time.Duration // how long a packet waits at most before it is dropped; 0: DefaultBuffer
}

// DefaultBuffer is that of a router with a short queue.
const DefaultBuffer = 50 * time.Millisecond

// Path is what a directed pair of hosts has between its links.
type Path struct {
	Queue
	Delay   time.Duration // one way
	Jitter  time.Duration // added to Delay, uniformly from 0 to Jitter
	Loss    float64       // share of packets, 0 to 1
	Burst   float64       // mean number of packets lost in a row; up to 1: each by itself
	Reorder bool          // jitter may change the order
	Down    bool          // everything is lost
}

// Host is the access of a host to the network.
type Host struct{ Up, Down Queue }

// Site is what hosts at one place have in common: one way out, and one in.
type Site struct {
	Hosts   []int
	Out, In Queue
}

// Config of a network.
type Config struct {
	Hosts []Host
	Sites []Site // no host is in two of them; a host in none has all to itself
	Path  func(from, to int) Path
	Flow  Queue // of every flow by itself
	// Overhead is what a packet takes on the wire beside its own bytes.
	Overhead int
	Seed     uint64
}

// Packet is what passes. Data is the caller's.
type Packet struct {
	From, To int
	Bytes    int
	Flow     uint64 // packets with the same one share the limit of a flow
	Data     []byte

	number uint64 // in its pair
}

// Stats counts packets.
type Stats struct{ Sent, Delivered, Lost, Dropped uint64 } // Lost by chance, Dropped by queues

type stage uint8

const (
	atFlow stage = iota
	atOut
	atPath
	atIn
	atDown
	atDelay
	delivered
)

type event struct {
	at    time.Duration
	order uint64 // of equal times the first
	stage stage
	p     *Packet
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// events is a heap: the first is the next one. That of the standard library allocates for
// each event.
type events []event

func (e *events) push(x event) {
	q := append(*e, x)
	i := len(q) - 1
	for i > 0 && x.before(q[(i-1)/2]) {
		q[i] = q[(i-1)/2]
		i = (i - 1) / 2
	}
	q[i] = x
	*e = q
}

func (e *events) pop() event {
	q := *e
	first, x := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	*e = q
	for i := 0; len(q) > 0; {
		child := 2*i + 1
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if child >= len(q) || !q[child].before(x) {
			q[i] = x
			break
		}
		q[i] = q[child]
		i = child
	}
	return first
}

// link is a queue at work: free is when it has sent all that it has taken.
type link struct{ free time.Duration }

func (l *link) pass(q Queue, now time.Duration, bytes int) (leaves time.Duration, ok bool) {
	if q.Rate <= 0 {
		return now, true
	}
	buffer := q.Buffer
	if buffer <= 0 {
		buffer = DefaultBuffer
	}
	if l.free-now > buffer {
		return 0, false
	}
	l.free = max(l.free, now) + time.Duration(float64(bytes)*8/q.Rate*1e9)
	return l.free, true
}

type pair struct {
	Path
	link
	number uint64        // of packets so far
	losing bool          // in a burst
	last   time.Duration // when its last packet arrives
}

// Net is a network. It is for one goroutine.
type Net struct {
	cfg      Config
	up, down []link
	site     []int // of each host; -1: none
	out, in  []link
	pairs    []pair // from * hosts + to
	flows    map[uint64]*link
	queue    events
	order    uint64
	stats    Stats
}

// New returns a network without packets.
func New(cfg Config) *Net {
	n := &Net{cfg: cfg, up: make([]link, len(cfg.Hosts)), down: make([]link, len(cfg.Hosts)), flows: map[uint64]*link{}}
	n.out, n.in, n.site = make([]link, len(cfg.Sites)), make([]link, len(cfg.Sites)), make([]int, len(cfg.Hosts))
	for i := range n.site {
		n.site[i] = slices.IndexFunc(cfg.Sites, func(s Site) bool { return slices.Contains(s.Hosts, i) })
	}
	n.pairs = make([]pair, len(cfg.Hosts)*len(cfg.Hosts))
	for from := range cfg.Hosts {
		for to := range cfg.Hosts {
			if cfg.Path != nil {
				n.pairs[from*len(cfg.Hosts)+to].Path = cfg.Path(from, to)
			}
		}
	}
	return n
}

// Stats returns the counts so far.
func (n *Net) Stats() Stats { return n.stats }

func (n *Net) pair(from, to int) *pair { return &n.pairs[from*len(n.cfg.Hosts)+to] }

// Change replaces what a pair has; packets under way keep what they met.
func (n *Net) Change(from, to int, f func(*Path)) { f(&n.pair(from, to).Path) }

// ChangeHost replaces the access of a host.
func (n *Net) ChangeHost(host int, f func(*Host)) { f(&n.cfg.Hosts[host]) }

// Send takes a packet that leaves its host now. Times never go back.
func (n *Net) Send(now time.Duration, p *Packet) {
	n.stats.Sent++
	at, ok := n.up[p.From].pass(n.cfg.Hosts[p.From].Up, now, p.Bytes+n.cfg.Overhead)
	if !ok {
		n.stats.Dropped++
		return
	}
	n.push(at, atFlow, p)
}

func (n *Net) push(at time.Duration, s stage, p *Packet) {
	n.order++
	n.queue.push(event{at, n.order, s, p})
}

// Next returns when something is to be done, false if no packet is under way.
func (n *Net) Next() (at time.Duration, ok bool) {
	if len(n.queue) == 0 {
		return 0, false
	}
	return n.queue[0].at, true
}

// Run does what is due, and calls deliver with each packet that has arrived and
// the time at which it should have, in the order of these times.
func (n *Net) Run(now time.Duration, deliver func(p *Packet, at time.Duration)) {
	for len(n.queue) > 0 && n.queue[0].at <= now {
		e := n.queue.pop()
		// Most stages of most networks take no time, and need no place in the heap.
		for now, on := e.at, true; on; e, on = n.advance(e) {
			if e.at > now {
				n.push(e.at, e.stage, e.p)
				break
			}
			if e.stage == delivered {
				n.stats.Delivered++
				deliver(e.p, e.at)
				break
			}
		}
	}
}

// advance brings a packet to its next stage; false if it is lost.
func (n *Net) advance(e event) (event, bool) {
	p, bytes := e.p, e.p.Bytes+n.cfg.Overhead
	path := n.pair(p.From, p.To)
	at, ok := e.at, true
	switch e.stage {
	case atFlow:
		if n.cfg.Flow.Rate > 0 {
			at, ok = n.flow(p.Flow).pass(n.cfg.Flow, e.at, bytes)
		}
	case atOut:
		if s := n.site[p.From]; s >= 0 && s != n.site[p.To] {
			at, ok = n.out[s].pass(n.cfg.Sites[s].Out, e.at, bytes)
		}
	case atIn:
		if s := n.site[p.To]; s >= 0 && s != n.site[p.From] {
			at, ok = n.in[s].pass(n.cfg.Sites[s].In, e.at, bytes)
		}
	case atPath:
		p.number = path.number
		path.number++
		if path.Down || path.lose(n.cfg.Seed, p) {
			n.stats.Lost++
			return e, false
		}
		at, ok = path.pass(path.Queue, e.at, bytes)
	case atDown:
		at, ok = n.down[p.To].pass(n.cfg.Hosts[p.To].Down, e.at, bytes)
	case atDelay:
		at += path.Delay + time.Duration(chance(n.cfg.Seed, p, 1)*float64(path.Jitter))
		if !path.Reorder {
			at = max(at, path.last)
			path.last = at
		}
	}
	if !ok {
		n.stats.Dropped++
	}
	return event{at: at, stage: e.stage + 1, p: p}, ok
}

// flow returns the link of a flow. Flows are few, and stay.
func (n *Net) flow(id uint64) *link {
	l := n.flows[id]
	if l == nil {
		l = &link{}
		n.flows[id] = l
	}
	return l
}

// lose decides about p by two states (Gilbert): bursts of mean length Burst,
// begun as often as the share of lost packets asks for.
func (c *pair) lose(seed uint64, p *Packet) bool {
	if c.Loss <= 0 {
		return false
	}
	r := chance(seed, p, 0)
	if c.Burst <= 1 {
		return r < c.Loss
	}
	end := 1 / c.Burst
	begin := end * c.Loss / math.Max(1e-9, 1-c.Loss)
	if c.losing {
		c.losing = r >= end
	} else {
		c.losing = r < begin
	}
	return c.losing
}

// chance is a number from 0 to 1, by splitmix64.
func chance(seed uint64, p *Packet, use uint64) float64 {
	x := seed ^ uint64(p.From)<<48 ^ uint64(p.To)<<32 ^ use<<62
	for _, add := range []uint64{0, p.number} {
		x += add + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return float64(x>>11) / (1 << 53)
}
