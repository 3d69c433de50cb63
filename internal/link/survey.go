package link

import (
	"maps"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

const (
	// sampling is how often connections that have data are asked.
	sampling = 10 * time.Millisecond
	// Of more than perTick of them a part is asked in each tick, so that each is in one of mostTicks.
	perTick, mostTicks = 48, 4
	// Those on which all that was written has arrived are asked in one tick of calmTicks.
	calmTicks = 5
	// listening is how often connections on which data comes are asked.
	listening = 5 * sampling
	// active is how long after a write a connection counts as one that has data, and
	// the survey goes on after the last of them.
	active = 250 * time.Millisecond
)

// flow is a connection to a peer that is not near, as the survey sees it.
type flow struct {
	keeps  bool         // the system keeps its window at rest, without pulses
	near   atomic.Bool  // it is near after all
	writes atomic.Int32 // under way
	began  atomic.Int64 // when the last one began, as last
	last   atomic.Int64 // when one ended, in nanoseconds since the hub was made
	moved  atomic.Int64 // bytes since the last rest
	worth  atomic.Bool  // it moved enough to be worth pulses
	pulsed atomic.Int64 // when the last pulse was sent, as last
	every  atomic.Int64 // how far apart pulses may be, in nanoseconds, at the last look; 0: not known
	window atomic.Int64 // what leaves at once, in bytes, at the last look; 0: not known
	own    atomic.Int64 // the same, as far as this end's system bounds it
	unsent atomic.Int64 // bytes that leave before what is written next: at the last sample, and written since
	word   word         // the last one that was told
	timer  *time.Timer  // of await, who holds Sender.busy; nil: it never had to

	// Of the survey.
	asked    bool // to tell what comes
	spread   bool // its windows do not leave at once
	timedOut bool // what counts as lost does so because of a timeout
	sample   func(*platform.Info) bool
	looked   time.Duration // at the last sample
	pending  bool          // data was on its way then
	end      uint64        // where data ends, in bytes of the connection; behind it are pulses
	arrived  uint64        // bytes at the other end, also behind a gap
	before   platform.Info
	tail     pace.Tail
}

// newFlow returns nil for a connection to a peer that is near.
func newFlow(conn net.Conn) *flow {
	if !Distant(conn) {
		return nil
	}
	return &flow{keeps: pace.Keeps(platform.Congestion(conn)), sample: platform.Sampler(conn)}
}

// Distance returns the shortest round trip of a connection so far, and whether that leads so far
// that it is surveyed: it is TCP, leaves this host, and the round trip is known and not that of a
// near way.
func Distance(conn net.Conn) (rtt time.Duration, distant bool) {
	info, ok := platform.TCPInfo(conn)
	return leastRTT(&info), ok && !platform.SameHost(conn) && info.Known.Has(platform.HasRTT) && !isNear(&info)
}

// Distant reports whether a connection is surveyed.
func Distant(conn net.Conn) bool {
	_, distant := Distance(conn)
	return distant
}

// Distant reports whether the peer is one whose connections are surveyed.
func (s *Sender) Distant() bool { return s.gauge.flow != nil && !s.gauge.flow.near.Load() }

const (
	// firstWindow is that of a connection of which nothing is known (RFC 6928).
	firstWindow = 10 * segment
	// firstPeerWindow is what peers take at once, as long as nothing else is known: half of
	// what Linux has for a receiver at first.
	firstPeerWindow = 64 << 10
	// awake, and flow.period, is how long after data or a pulse a window may still stand. Systems
	// take it back after a retransmission timeout.
	awake = time.Second
)

// Window returns how many bytes the system sends at once on a connection to a distant peer
// on which nothing is under way, or within a round trip if it spreads them. On other ones no window counts.
func (s *Sender) Window() int {
	f := s.gauge.flow
	if f == nil || f.near.Load() {
		return math.MaxInt32
	}
	w := int(f.window.Load())
	last := time.Duration(max(f.last.Load(), f.pulsed.Load()))
	switch {
	case w == 0:
		return firstWindow
	case !f.keeps && time.Since(s.h.survey.made)-last > awake+f.period():
		return min(int(f.own.Load()), firstWindow)
	}
	return w
}

// look notes how many bytes the system sends at once, and how far apart the pulses may be that keep
// it so: a round trip, if the system takes it back so much later that the next one is in time.
func (f *flow) look(info *platform.Info) {
	if info.Known.Has(platform.HasRTT | platform.HasTimeout) {
		f.every.Store(int64(min(leastRTT(info), info.Timeout-2*breath)))
	}
	if !info.Known.Has(platform.HasWindow) {
		return
	}
	f.own.Store(int64(info.Window))
	most := firstPeerWindow
	if info.Known.Has(platform.HasPeerWindow) {
		most = info.PeerWindow
	}
	f.window.Store(int64(min(info.Window, most)))
}

// LeastFar is the least of a stream to a distant peer, in bytes, that is worth a connection
// of its own: what a piece costs this host is nothing beside a round trip.
const LeastFar = 4 << 10

// Needed returns over how many connections of a pool, from the first on, so many bytes have
// to go for all of them to leave at once; if there are not enough for that, all. Each has
// LeastFar bytes or more; 0: there are fewer. Packets that are not full are allowed for: one in
// nine.
func Needed(pool []*Sender, bytes int) int {
	most := bytes / LeastFar
	bytes += min(bytes/8, math.MaxInt-bytes)
	for i, s := range pool {
		if bytes -= max(s.Window()-LeastFar, 0); bytes <= 0 {
			return min(i+1, most)
		}
	}
	return min(len(pool), most)
}

// Turn returns which connection of a pool a stream of so many bytes takes that goes over one:
// each in turn, of those that can send all of it at once if there are any.
func Turn(pool []*Sender, turn uint64, bytes int) int {
	can := func(s *Sender) bool { return s.Window() >= bytes }
	n := uint64(0)
	for _, s := range pool {
		if can(s) {
			n++
		}
	}
	if n == 0 {
		return int(turn % uint64(len(pool)))
	}
	turn %= n
	for i, s := range pool {
		if can(s) {
			if turn == 0 {
				return i
			}
			turn--
		}
	}
	return 0 // a window has become smaller meanwhile
}

// blocked is how long a write may take that only hands its bytes to the system.
const blocked = 3 * time.Millisecond

// Returns reports whether the connection will look for work in a moment: no write has to wait.
func (s *Sender) Returns() bool {
	f := s.gauge.flow
	return f == nil || f.writes.Load() == 0 || time.Since(s.h.survey.made)-time.Duration(f.began.Load()) < blocked
}

// Writing reports whether a write is under way. On connections to near peers nobody knows.
func (s *Sender) Writing() bool { return s.gauge.flow != nil && s.gauge.flow.writes.Load() > 0 }

// RoundTrip returns the shortest round trip to a peer so far, over the connections to
// it; false: the system does not tell it, or there is none.
func (h *Hub) RoundTrip(peer wire.UUID) (least time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.tx[peer] {
		info, known := platform.TCPInfo(s.conn)
		if s.Broken() || !known || !info.Known.Has(platform.HasRTT) {
			continue
		}
		if rtt := leastRTT(&info); !ok || rtt < least {
			least, ok = rtt, true
		}
	}
	return least, ok
}

// NearBy reports whether a peer with this round trip is near.
func NearBy(rtt time.Duration) bool { return pace.Near(rtt) }

// isNear reports whether the shortest round trip so far is that of a near way.
func isNear(info *platform.Info) bool { return pace.Near(leastRTT(info)) }

func leastRTT(info *platform.Info) time.Duration {
	if info.Known.Has(platform.HasMinRTT) {
		return info.MinRTT
	}
	return info.RTT
}

// writing notes that a write begins, and lets the survey begin if it rests.
func (f *flow) writing(h *Hub) {
	f.began.Store(int64(time.Since(h.survey.made)))
	f.writes.Add(1)
	if v := h.survey; !v.on.Load() && !f.near.Load() && v.on.CompareAndSwap(false, true) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.closed {
			v.rest.End(time.Since(v.made))
			h.spawn("survey", wire.UUID{}, v.run, v.gaveUp)
		}
	}
}

// gaveUp is for a survey that has panicked: nothing stays bounded, and the next data starts
// another one.
func (v *survey) gaveUp(error) {
	v.h.allowance.set(0)
	v.on.Store(false)
}

func (f *flow) wrote(h *Hub, n int, now time.Time) {
	f.writes.Add(-1)
	if f.moved.Add(int64(n)) >= pace.Worth {
		f.worth.Store(true)
	}
	f.unsent.Add(int64(max(n, 0)))
	f.last.Store(int64(now.Sub(h.survey.made)))
}

// written reports whether the connection is being written to, or was of late.
func (f *flow) written(now time.Duration) bool {
	return !f.near.Load() && (f.writes.Load() > 0 || f.last.Load() > 0 && now-time.Duration(f.last.Load()) < active)
}

// rests reports whether it is time for a pulse.
func (f *flow) rests(now time.Duration) bool {
	last := max(f.last.Load(), f.pulsed.Load())
	return f.worth.Load() && !f.keeps && !f.near.Load() && f.writes.Load() == 0 && f.wide() && now-time.Duration(last) >= f.period()-sampling
}

// period returns the time between two pulses.
func (f *flow) period() time.Duration { return max(pace.Pulse, time.Duration(f.every.Load())) }

// wide reports whether the window is one that pulses keep. One that is no larger than the first one
// stands by itself, and a pulse that is lost makes it smaller.
func (f *flow) wide() bool {
	w := f.own.Load()
	return w == 0 || w > firstWindow+segment
}

// carries reports whether data is on its way. Over a long way a pulse nearly always is.
func (f *flow) carries(info *platform.Info) bool {
	if info.InFlight == 0 && info.Unsent == 0 && info.Buffered == 0 {
		return false
	}
	if !info.Known.Has(platform.HasAcked | platform.HasSent | platform.HasResent) {
		return true
	}
	if f.pulsed.Load() <= f.last.Load() {
		f.end = info.Sent - info.Resent + uint64(info.Unsent)
	}
	return info.Acked < f.end
}

// isDue reports whether the connection, the i-th with data, is asked in this tick, if those with data
// are in one of so many. It is the survey's goroutine's.
func (f *flow) isDue(now time.Duration, tick, i, ticks int) bool {
	if !f.pending && f.writes.Load() == 0 && time.Duration(max(f.began.Load(), f.last.Load())) < f.looked {
		ticks = calmTicks
	}
	return (tick+i)%ticks == 0 || now-f.looked >= time.Duration(ticks)*sampling || !f.before.Known.Has(platform.HasRTT)
}

// busy reports whether the connection has data. It is the survey's goroutine's.
func (f *flow) busy(now time.Duration) bool { return f.written(now) || f.pending && !f.near.Load() }

// survey asks connections that have data how they fare, and the count of each peer
// how many of them to use. It runs while there are any.
type survey struct {
	h    *Hub
	made time.Time
	on   atomic.Bool
	stop chan struct{} // closed when the hub is

	// Hub.mu guards these.
	far    []*Sender // that are not near, also some that have ended
	rest   pace.Rest
	wanted map[wire.UUID]int // connections that an operation uses; none: all
	most   map[wire.UUID]int // more could not be had
	asked  map[wire.UUID]ask // what Ask was told

	yield yield
	lost  atomic.Uint64 // loss.Part(), as bits

	// Of the goroutine.
	loss     pace.Loss
	line     line
	tick     int       // its number
	conns    []*Sender // of the tick: those with data
	from     []*Receiver
	listened time.Duration // when receivers were asked last
	counts   map[wire.UUID]*count
	info     platform.Info
}

// count is what is known of a peer.
type count struct {
	*pace.Count
	span   pace.Span
	came   uint64  // bytes that arrived at the peer in this tick, also behind a gap
	seen   bool    // in this tick
	used   int     // connections that operations were told of
	before float64 // the bound before more were tried, in bytes per second; 0: there was none
	heard  account
}

func newSurvey(h *Hub) *survey {
	v := &survey{
		// Times count from here, and 0 is never: not now, while the clock of the system stands still.
		h: h, made: time.Now().Add(-1), stop: make(chan struct{}),
		wanted: map[wire.UUID]int{}, most: map[wire.UUID]int{}, asked: map[wire.UUID]ask{}, counts: map[wire.UUID]*count{},
	}
	v.keepLoss()
	return v
}

func (v *survey) run() {
	tick := time.NewTicker(sampling)
	defer tick.Stop()
	seen := time.Since(v.made)
	for {
		select {
		case <-v.stop:
			return
		case <-tick.C:
		}
		now := time.Since(v.made)
		if v.step(now) {
			seen = now
			continue
		}
		if now-seen < active {
			continue
		}
		clear(v.conns)
		v.on.Store(false)
		// From here on another survey may run, and what is the goroutine's is its. A
		// sender that began to write before that has not started one.
		if !v.written(now) || !v.on.CompareAndSwap(false, true) {
			v.restFrom(seen)
			return
		}
	}
}

// list takes the connections that are not near, without those that have ended, and
// forgets peers that have none.
func (v *survey) list() {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	v.far = slices.DeleteFunc(v.far, func(s *Sender) bool { return s.Broken() || s.gauge.flow.near.Load() })
	v.conns = append(v.conns[:0], v.far...)
	gone := func(peer wire.UUID) bool { return len(v.h.tx[peer]) == 0 }
	for peer, c := range v.counts {
		if gone(peer) {
			delete(v.counts, peer)
			if c.Trying() {
				v.fell(c)
			}
		}
	}
	maps.DeleteFunc(v.wanted, func(peer wire.UUID, _ int) bool { return gone(peer) })
	maps.DeleteFunc(v.most, func(peer wire.UUID, _ int) bool { return gone(peer) })
	maps.DeleteFunc(v.asked, func(peer wire.UUID, _ ask) bool { return gone(peer) })
}

// written reports whether a connection is being written to, or was of late.
func (v *survey) written(now time.Duration) bool {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	return slices.ContainsFunc(v.far, func(s *Sender) bool { return s.gauge.flow.written(now) })
}

// step is a tick; false: no connection has data.
func (v *survey) step(now time.Duration) bool {
	v.list()
	v.refresh(now, v.conns)
	v.conns = slices.DeleteFunc(v.conns, func(s *Sender) bool { return !s.gauge.flow.busy(now) })
	for _, c := range v.counts {
		c.seen, c.span, c.came = false, pace.Span{}, 0
	}
	v.tick++
	ticks := min((len(v.conns)+perTick-1)/perTick, mostTicks)
	for i, s := range v.conns {
		if !s.gauge.flow.isDue(now, v.tick, i, ticks) {
			v.info = s.gauge.flow.before
		} else if !v.ask(now, s) {
			continue
		}
		v.sample(s)
	}
	v.yields(now)
	v.bound(now)
	v.compare()
	for peer, c := range v.counts { // each by itself: their order decides nothing
		if !c.seen {
			c.Rest()
			continue
		}
		v.settle(now, peer, c)
		if used := len(v.h.InUse(peer)); used != c.used {
			if c.used > 0 {
				v.h.router.Regrouped(peer)
			}
			c.used = used
		}
	}
	return len(v.conns) > 0
}

// yields notes what connections gave in this tick.
func (v *survey) yields(now time.Duration) {
	if len(v.conns) == 0 {
		v.yield.rest()
		return
	}
	for peer, c := range v.counts { // sums: their order decides nothing
		if c.seen {
			v.yield.add(peer, c.came, c.span.RTT)
		}
	}
	if v.yield.began > 0 && now-v.listened < listening {
		return
	}
	v.listened = now
	v.yield.end(now, v.received(now))
}

// received returns what has come from distant peers since it was called last. Along a ring
// they are others than those that are sent to.
func (v *survey) received(now time.Duration) (sum uint64) {
	v.h.mu.Lock()
	v.from = v.from[:0]
	for _, pool := range v.h.rx {
		v.from = append(v.from, pool...)
	}
	v.h.mu.Unlock()
	for _, r := range v.from {
		sum += r.heard.since(r, now)
	}
	clear(v.from)
	return sum
}

// heard is what the survey knows of a receiver.
type heard struct {
	sample func(*platform.Info) bool
	info   platform.Info
	bytes  uint64 // that were read at the last call of since
	looks  int
	near   bool
	counts bool // the system counts what comes
	came   arrivals
}

// mostLooks bounds how often a receiver is asked whether it is near: a near one may have
// seemed distant on a busy machine.
const mostLooks = 32

// since returns the bytes that have come since the last call. Those that were read say
// less: what lies behind a gap is read at once when that is filled, as if it came then.
func (k *heard) since(r *Receiver, now time.Duration) uint64 {
	bytes := r.got.Load() - k.bytes
	if k.bytes += bytes; k.near || bytes == 0 && !k.counts {
		return 0
	}
	if k.sample == nil {
		k.sample, k.near = platform.Sampler(r.conn), platform.SameHost(r.conn)
	}
	if !k.near && (k.counts || k.looks < mostLooks) {
		known := k.sample(&k.info) && k.info.Known.Has(platform.HasRTT)
		if k.looks < mostLooks {
			k.looks++
			k.near = !known || isNear(&k.info)
		}
		if counts := known && k.info.Known.Has(platform.HasCame); counts {
			if came := k.came.since(&k.info, now); k.counts {
				bytes = came
			}
			k.counts = true
		}
	}
	if k.near {
		return 0
	}
	return bytes
}

// ask has the system say how a connection fares, and does what follows for it alone; false: it is not
// known, or the peer is near.
func (v *survey) ask(now time.Duration, s *Sender) bool {
	f, info := s.gauge.flow, &v.info
	f.looked = now
	if !f.sample(info) || !info.Known.Has(platform.HasRTT) {
		f.pending = false
		return false
	}
	if isNear(info) {
		f.near.Store(true)
		return false
	}
	f.look(info)
	f.spreadWindows(s.conn, info)
	if info.Known.Has(platform.HasUnsent) {
		unsent := info.Unsent
		if info.Lost > 0 || info.Retries > 0 { // it may be a timeout until anything leaves
			unsent += backlog
		}
		f.unsent.Store(int64(unsent))
	}
	f.pending = f.carries(info)
	v.follow(s, f)
	return true
}

// sample adds what a connection says, or has said last, to its peer's.
func (v *survey) sample(s *Sender) {
	f, info := s.gauge.flow, &v.info
	c := v.counts[s.peer]
	if c == nil {
		c = &count{Count: pace.NewCount(v.h.LiveSenders(s.peer))}
		v.counts[s.peer] = c
	}
	last := f.before
	f.before = *info
	if !last.Known.Has(platform.HasRTT) {
		last = *info
	}
	p := &c.span
	if base := leastRTT(info); !c.seen || base < p.Base {
		p.Base = base
	}
	if !c.seen || info.RTT < p.RTT {
		p.RTT = info.RTT
	}
	c.seen = true
	arrived := info.Acked + uint64(max(info.Sacked, 0))
	if f.arrived > 0 {
		c.came += since(arrived, f.arrived)
	}
	f.arrived = max(f.arrived, arrived)
	p.Arrived += since(info.Acked, last.Acked)
	p.Sent += since(info.Sent, last.Sent)
	p.Resent += since(info.Resent, last.Resent)
	v.noteLoss(info, &last)
	p.Segment = max(p.Segment, info.MSS)
	p.Waiting = p.Waiting || info.Unsent > 0 || f.writes.Load() > 0
	p.Bounded = v.h.allowance.get() > 0
	p.Used++
	v.note(s, c, info, info.Acked > last.Acked)
}

// noteLoss adds what a connection has sent and lost since the last tick.
func (v *survey) noteLoss(info, last *platform.Info) {
	if info.MSS <= 0 || !info.Known.Has(platform.HasSent|platform.HasResent) {
		return
	}
	packets := (since(info.Sent, last.Sent) + uint64(info.MSS) - 1) / uint64(info.MSS)
	v.loss.Add(int(packets), info.Resent > last.Resent, pace.Span{RTT: info.RTT, Base: leastRTT(info)})
	v.keepLoss()
}

func (v *survey) keepLoss() { v.lost.Store(math.Float64bits(v.loss.Part())) }

// Lost returns how many packets are lost by chance of so many bytes that go to distant peers, as far
// as that is known.
func (h *Hub) Lost(bytes float64) float64 {
	return math.Float64frombits(h.survey.lost.Load()) * bytes / segment
}

// follow sends a word behind data of which something may be lost.
func (v *survey) follow(s *Sender, f *flow) {
	info := &v.info
	if !s.features.Flows || f.writes.Load() > 0 || !s.rested() || !info.Known.Has(platform.HasInFlight|platform.HasUnsent|platform.HasAcked|platform.HasSent|platform.HasResent) {
		return
	}
	now := time.Since(v.made)
	if f.tail.Step(now, time.Duration(f.last.Load()), pace.Flight{
		RTT: info.RTT, Acked: info.Acked, Sent: info.Sent - info.Resent, Unsent: info.Unsent, InFlight: info.InFlight,
	}) {
		f.pulsed.Store(int64(now))
		s.follow()
	}
}

// since is what a counter has moved; one that went back has not.
func since(now, before uint64) uint64 { return now - min(now, before) }

// settle asks the count of a peer, and has connections opened if more are wanted
// than there are.
func (v *survey) settle(now time.Duration, peer wire.UUID, c *count) {
	v.h.mu.Lock()
	most, refused := v.most[peer]
	delete(v.most, peer)
	pool := len(v.h.tx[peer])
	_, decided := v.wanted[peer]
	asked := v.asked[peer]
	if asked.due {
		v.asked[peer] = ask{n: asked.n}
	}
	v.h.mu.Unlock()
	if asked.due && asked.n > pool && v.h.cfg.Grow != nil {
		v.h.cfg.Grow(peer, asked.n)
	}
	if !decided { // some may have come since the first was seen
		c.Follow(pool)
	}
	before, trying := c.N(), c.Trying()
	if refused {
		c.Refused(now, most)
	}
	if !c.Step(now, c.span) && !refused {
		return
	}
	n := c.N()
	v.tried(c, before, trying && (refused || n < before))
	v.h.mu.Lock()
	v.wanted[peer] = n
	v.h.mu.Unlock()
	v.h.cfg.Logger.Debug("connections", "peer", peer.Short(), "wanted", n, "open", pool)
	if n > pool && v.h.cfg.Grow != nil {
		v.h.cfg.Grow(peer, n)
	}
}

// ask is what Hub.Ask was told last; due: nobody has been asked to open them since.
type ask struct {
	n   int
	due bool
}

// Ask says that operations would use n connections to a distant peer if there were as many. They
// are opened while there is data.
func (h *Hub) Ask(peer wire.UUID, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n > len(h.tx[peer]) && n > h.survey.asked[peer].n { // once: it may have been refused
		h.survey.asked[peer] = ask{n, true}
	}
}

// Wanted returns how many connections to peer operations want; 0: nothing is known.
func (h *Hub) Wanted(peer wire.UUID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.survey.wanted[peer], h.survey.asked[peer].n)
}

// InUse returns the connections to peer that an operation which begins now is to use,
// by number. It is not to be changed.
func (h *Hub) InUse(peer wire.UUID) []*Sender {
	h.mu.Lock()
	defer h.mu.Unlock()
	pool := h.tx[peer]
	if n := h.survey.wanted[peer]; n > 0 && n < len(pool) {
		return pool[:n:n]
	}
	return pool
}

// Refused says that no more than n connections to peer can be had for now.
func (h *Hub) Refused(peer wire.UUID, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.survey.most[peer] = n
}
