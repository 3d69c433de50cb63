package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// Distant peers: in some worlds peers are far from each other, and say so. Small
// all-reduces then go directly from each member to each other one, and large ones
// along the ring, or over trees where rates are known.

// largeCount is what a vector that stands for a large one says of itself.
const largeCount = 1 << 22

// middleCount is what one says that is too large to begin whole before its commence.
const middleCount = 1 << 18

// way returns the round trip between two peers: short within a site, of which there
// are three; false: nobody can tell it.
func (w *world) way(a, b *peer) (rtt time.Duration, told bool) {
	if !w.plan.apart || a == b || b == nil {
		return 0, false
	}
	if w.plan.oneWay > 0 {
		return 2 * w.plan.oneWay, true
	}
	r := rng(w.seed*0x9e3779b97f4a7c15 ^ uint64(min(a.id, b.id))<<8 ^ uint64(max(a.id, b.id)))
	if a.id%3 == b.id%3 {
		return r.between(100*time.Microsecond, time.Millisecond), true
	}
	return r.between(5*time.Millisecond, 100*time.Millisecond), !r.chance(40)
}

// travels returns how long a frame is under way.
func (w *world) travels(from, to *peer) time.Duration {
	rtt, _ := w.way(from, to)
	return rtt/2 + w.rng.between(50*time.Microsecond, 3*time.Millisecond)
}

// far reports whether one of peers is distant.
func (p *peer) far(peers []wire.PeerEndpoint) bool {
	return slices.ContainsFunc(peers, func(e wire.PeerEndpoint) bool {
		rtt, told := p.w.way(p, p.w.byAddr(e.Addr))
		return told && rtt >= 2*time.Millisecond
	})
}

// ways are the round trips to peers, as far as they can be told.
func (p *peer) ways(peers []wire.UUID) (out []wire.Way) {
	for _, u := range peers {
		if rtt, told := p.w.way(p, p.w.byUUID(u)); told {
			out = append(out, wire.Way{To: u, RTT: uint32(rtt.Microseconds())})
		}
	}
	return out
}

// counted returns the elements that the vote for a vector names.
func (p *peer) counted(tag uint64, v []int64) uint64 {
	if (p.w.plan.apart || p.w.plan.remote) && (p.memory.revision+tag)%3 == 2 {
		return largeCount
	}
	if (p.w.plan.apart || p.w.plan.remote) && p.w.seed%2 == 0 && (p.memory.revision+tag)%3 == 1 {
		return middleCount
	}
	return uint64(len(v))
}

// goesDirectly reports whether p takes count elements for few enough now.
func (p *peer) goesDirectly(count uint64) bool { return 8*count <= p.m.View().Direct.Most }

// Messages of a direct exchange in the place of the steps of a ring.
const (
	partStep = -1 - iota // of the receiver's block, to be added
	sumStep              // the sender's own block
)

// direct is the data phase of an all-reduce over the mesh: each member sends each
// other one its part of that one's block, and then the sum of its own. Two send each other
// all that they have, and nothing else.
type direct struct {
	members     []*peer
	self        int
	out, in     []int // generations of the links to and from each
	running     bool
	parts, sums uint64 // by member, a bit each: what came
	summed      bool   // the own sum was sent
	scheme      *scheme
}

// startDirect begins the data phase.
func (op *op) startDirect(e pfsm.StartData) {
	p, w := op.p, op.p.w
	d := &direct{self: slices.Index(e.Members, e.Self)}
	planned := e.Large != nil && e.Large.From >= plan.LeastLarge
	if d.self < 0 || op.large && !planned || op.count < middleCount && planned {
		w.failf("peer %d: tag %d goes directly, at place %d, large %v", p.id, op.tag, d.self, op.large)
		return
	}
	for _, u := range e.Members {
		o := w.byUUID(u)
		if !o.native {
			w.failf("peer %d: tag %d goes directly with a PCCL peer in the group", p.id, op.tag)
			return
		}
		d.members = append(d.members, o)
		d.out, d.in = append(d.out, w.link(p, o).gen), append(d.in, w.link(o, p).gen)
	}
	d.parts, d.sums = 1<<d.self, 1<<d.self
	if e.Large != nil {
		op.startScheme(d, e.Large, len(d.members))
	}
	if d.pair() {
		d.sums = 1<<len(d.members) - 1
	}
	op.direct = d
	if w.collector.directs++; w.collector.firstDirect == 0 {
		w.collector.firstDirect = w.count
	}
	w.after(w.rng.between(0, time.Millisecond), p, func() {
		if op.direct != d {
			return
		}
		for i, o := range d.members {
			if l := w.link(o, p); i != d.self && d.hears(i) && (!l.alive || l.gen != d.in[i]) {
				op.end(lost(o))
				return
			}
		}
		d.running = true
		if d.scheme == nil {
			op.toAll(partStep)
		}
		op.exchange()
	})
}

// hears reports whether member i has something for this one.
func (d *direct) hears(i int) bool {
	return d.scheme == nil || slices.ContainsFunc(d.scheme.plan.In, func(l plan.Lane) bool { return l.Peer == i })
}

// pair reports whether two exchange in one hop.
func (d *direct) pair() bool { return d.scheme == nil && len(d.members) == 2 }

// toAll sends each other member the block of a step.
func (op *op) toAll(step int) {
	d := op.direct
	for i, o := range d.members {
		if i == d.self {
			continue
		}
		l := op.p.w.link(op.p, o)
		if !l.alive || l.gen != d.out[i] {
			op.end(lost(o))
			return
		}
		off, n := d.block(op, i, step == sumStep)
		op.send(l, o, step, op.buf[off:off+n])
	}
}

// block returns where the block is that member i owns, or with own this one.
func (d *direct) block(op *op, i int, own bool) (off, n int) {
	if d.pair() {
		return 0, len(op.buf)
	}
	if own {
		i = d.self
	}
	return plan.Chunk(len(op.buf), len(d.members), i)
}

// exchange takes in what has arrived.
func (op *op) exchange() {
	d := op.direct
	if d == nil || !d.running {
		return
	}
	if d.scheme != nil {
		op.flow()
		return
	}
	for i, o := range d.members {
		if d.parts>>i&1 == 0 && op.takeIn(o, partStep, i) {
			d.parts |= 1 << i
		}
		if op.direct != nil && d.sums>>i&1 == 0 && op.takeIn(o, sumStep, i) {
			d.sums |= 1 << i
		}
		if op.direct == nil {
			return
		}
	}
	all := uint64(1)<<len(d.members) - 1
	if d.parts == all && !d.summed {
		if d.summed = true; !d.pair() {
			op.toAll(sumStep)
		}
	}
	if d.summed && d.sums == all {
		op.end(nil)
	}
}

// takeIn adds, or copies, what member i has sent in a step, if it came.
func (op *op) takeIn(from *peer, step, i int) bool {
	chunk, ok := op.take(from, step)
	if !ok {
		return false
	}
	off, n := op.direct.block(op, i, step == partStep)
	if n != len(chunk) {
		op.end(errors.New("frame of the wrong size"))
		return false
	}
	for k, v := range chunk {
		if step == partStep && op.p.w.bug != chunkLost {
			op.buf[off+k] += v
		} else {
			op.buf[off+k] = v
		}
	}
	return true
}

// broke reports whether d still needs a link to other, or from it, that has ended.
func (d *direct) broke(other *peer, gen int, sending bool) bool {
	i := slices.Index(d.members, other)
	switch {
	case i < 0 || i == d.self:
		return false
	case d.scheme != nil && sending:
		return d.out[i] <= gen && d.scheme.broke(i, true)
	case d.scheme != nil:
		return d.in[i] <= gen && d.scheme.broke(i, false)
	case sending:
		return d.out[i] <= gen && !d.summed
	default:
		return d.in[i] <= gen && d.parts&d.sums>>i&1 == 0
	}
}

// distant is a world of gopccl peers far from each other that start together.
func distant(seed uint64, bug mutation, n, loops int) *world {
	w := emptyWorld(seed, bug)
	w.plan = scenario{groups: 1, natives: 2, loops: loops, apart: true}
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, loops) })
	}
	return w
}

// TestDirectExchange: rings change meanwhile and newcomers join. Nothing fails because
// of it, and small all-reduces go directly as soon as the members were told.
func TestDirectExchange(t *testing.T) {
	t.Parallel()
	n := uint64(200)
	if raceEnabled {
		n = 20
	}
	directs, failures := 0, 0
	for seed := uint64(1); seed <= n; seed++ {
		w := distant(seed, noBug, 2+int(seed%5), 6)
		w.plan.eager, w.plan.overlap, w.plan.others, w.plan.remote = seed%2 == 0, seed%3 == 0, seed%5 == 0, seed%4 < 2
		w.after(w.rng.between(0, 500*time.Millisecond), nil, func() { w.spawn(0, true, 4) })
		require.Empty(t, w.run(), "seed %d", seed)
		directs += w.collector.directs
		failures += w.unprovoked
	}
	t.Logf("%d seeds: %d direct exchanges of one peer each, %d operations failed", n, directs, failures)
	require.Zero(t, failures)
	require.Greater(t, directs, 10*int(n))
}

// TestOnePCCLPeerKeepsTheRing: in a group with a member that knows no other plan, and
// once one has joined, all-reduces go along the ring.
func TestOnePCCLPeerKeepsTheRing(t *testing.T) {
	t.Parallel()
	before := 0
	for seed := uint64(1); seed <= 20; seed++ {
		w := distant(seed, noBug, 4, 6)
		w.spawn(0, false, 12) // it stays to the end
		require.Empty(t, w.run(), "seed %d", seed)
		require.Zero(t, w.collector.directs)
		require.Positive(t, w.collector.successes)

		w = distant(seed, noBug, 4, 6)
		w.after(300*time.Millisecond, nil, func() { w.spawn(0, false, 6) }) // startDirect looks at the members
		require.Empty(t, w.run(), "seed %d", seed)
		before += w.collector.directs
	}
	require.Positive(t, before)
}

// TestFaultsAtEveryStepOfAnExchange: a member dies after every single event of a
// run that uses the direct exchange; other faults, and newcomers, come all along it.
func TestFaultsAtEveryStepOfAnExchange(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{kill, powerLoss, cutMaster, cutPeers, block, stop, join, cancel, closeNow} {
		t.Run(fmt.Sprint("kind ", k), func(t *testing.T) {
			failures, after := 0, 0
			for seed := uint64(7); seed <= 8; seed++ { // with and without eager start
				whole := distant(seed, noBug, 4, 2)
				require.Empty(t, whole.run())
				require.Positive(t, whole.collector.directs)
				stride := 5
				if k == kill {
					stride = 1
				}
				if raceEnabled {
					stride = 30
				}
				for at := whole.collector.firstDirect - 20 + int(k)%stride; at < whole.count; at += stride {
					w := distant(seed, noBug, 4, 2)
					w.faults = []fault{{at: at, kind: k}}
					require.Empty(t, w.run(), "seed %d, at event %d", seed, at)
					failures += w.collector.directFailures
					after += w.collector.directs - w.collector.directFailures
				}
			}
			t.Logf("%d exchanges of one peer each failed, %d did not", failures, after)
			if k != join && k != stop {
				require.Positive(t, failures)
			}
			require.Positive(t, after)
		})
	}
}

// shows says what the connections of a distant peer gave in a large all-reduce: rates
// that stay the same for some time, and then are others.
func (p *peer) shows() {
	w := p.w
	if !w.plan.apart {
		return
	}
	rate := func(a, b int) float64 {
		r := rng(w.seed ^ uint64(a+1)<<40 ^ uint64(b+1)<<20 ^ uint64(w.now/(500*time.Millisecond)))
		return float64(int(10) << r.n(6))
	}
	s := wire.C2MRates{Up: rate(p.id, 0), Down: rate(p.id, 1)}
	for _, u := range p.m.View().Members {
		if o := w.byUUID(u); o != nil && o != p {
			s.Pairs = append(s.Pairs, wire.PathRate{To: u, Mbps: min(s.Up, rate(p.id, 2+o.id))})
		}
	}
	w.collector.shown++
	p.step(pfsm.RatesSeen{Rates: s})
}
