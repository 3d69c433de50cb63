package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Nothing on this host, and nothing that is no TCP connection, costs more than a look.
func TestNearConnectionsAreNotSurveyed(t *testing.T) {
	require.Nil(t, newFlow(dialled(t)))
	x, y := transporttest.Pair(transporttest.Options{})
	defer x.Close()
	defer y.Close()
	require.Nil(t, newFlow(x))
}

// Connections whose losses bound them become more: the pool is asked to grow, and
// operations use fewer again when that brought nothing.
func TestSurveyAsksForConnections(t *testing.T) {
	grown := map[wire.UUID]int{}
	p := newPair(t, Config{Grow: func(peer wire.UUID, n int) { grown[peer] = n }}, pace.FirstCount+1, transporttest.Options{}, Features{Flows: true})
	h := p.a.h
	peer := p.sender(0).peer
	at, acked, resent := time.Second, uint64(0), uint64(0)
	sample := func(i *platform.Info) bool {
		*i = platform.Info{
			Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked, MSS: 1448, Unsent: 1,
			RTT: 50 * time.Millisecond, MinRTT: 50 * time.Millisecond, Acked: acked, Sent: acked, Resent: resent,
		}
		return true
	}
	near := p.far(pace.FirstCount, func(i *platform.Info) bool { sample(i); i.MinRTT = time.Millisecond; return true })
	near.gauge.flow.pending = true
	for k := range pace.FirstCount {
		p.far(k, sample).gauge.flow.pending = true
	}
	run := func(d time.Duration) {
		for end := at + d; at < end; at += sampling {
			acked += 2000 // 0.2 MB/s
			if at%(100*sampling) == 0 {
				resent += 2 * 1448
			}
			require.True(t, h.survey.step(at))
		}
	}
	require.Len(t, h.InUse(peer), pace.FirstCount+1)
	run(2 * time.Second)
	require.True(t, near.gauge.flow.near.Load())
	require.Greater(t, h.Wanted(peer), pace.FirstCount+1)
	require.Equal(t, h.Wanted(peer), grown[peer])
	require.Zero(t, p.a.regroups.Load(), "none has been opened yet")
	x, y := transporttest.Pair(transporttest.Options{})
	defer y.Close()
	h.AddSender(peer, pace.FirstCount+1, x, Features{Flows: true})
	run(sampling)
	require.EqualValues(t, 1, p.a.regroups.Load(), "operations that run take it")

	// The peer takes no more: what there is stays in use.
	h.Refused(peer, pace.FirstCount)
	run(sampling)
	require.Equal(t, pace.FirstCount, h.Wanted(peer))
	require.Len(t, h.InUse(peer), pace.FirstCount)
	require.EqualValues(t, 2, p.a.regroups.Load(), "and leave others")

	// Without data nothing is asked.
	for k := range pace.FirstCount {
		p.sender(k).gauge.flow.pending = false
	}
	require.False(t, h.survey.step(at))
}

// A connection is asked in each tick while data is on its way, and seldom when all of it has arrived.
// Of many with data a part is asked in each tick, and nothing that they moved is missed.
func TestWhoIsAsked(t *testing.T) {
	for name, c := range map[string]struct{ conns, ticks int }{
		"one": {1, 1}, "a tick's": {perTick, 1}, "one more": {perTick + 1, 2}, "many": {5 * perTick, mostTicks},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Config{}, c.conns, transporttest.Options{}, Features{})
			h := p.a.h
			h.survey.on.Store(true) // the test is the survey
			at, acked, moves, asked := time.Second, uint64(0), 1000, 0
			by := make([]int, c.conns)
			for k := range c.conns {
				p.far(k, func(i *platform.Info) bool {
					by[k]++
					asked++
					*i = platform.Info{
						Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked | platform.HasSent | platform.HasResent | platform.HasUnsent | platform.HasWindow, MSS: 1448, Unsent: moves, Window: 14480,
						RTT: 50 * time.Millisecond, MinRTT: 50 * time.Millisecond, Acked: acked, Sent: acked,
					}
					return true
				}).gauge.flow.pending = true
			}
			arrived := uint64(0)
			run := func(ticks int) (most int) {
				clear(by)
				for range ticks {
					asked = 0
					acked += uint64(moves)
					require.True(t, h.survey.step(at))
					at += sampling
					for _, n := range h.survey.counts {
						arrived += n.span.Arrived
						require.Equal(t, c.conns, n.span.Used)
					}
					most = max(most, asked)
				}
				return most
			}
			written := func() {
				for k := range c.conns {
					p.sender(k).gauge.flow.last.Store(int64(at - 1))
				}
			}
			require.Equal(t, c.conns, run(1), "nothing is known of any")
			from := acked
			require.Equal(t, (c.conns+c.ticks-1)/c.ticks, run(4*c.ticks))
			for k := range c.conns {
				f := p.sender(k).gauge.flow
				f.unsent.Store(7777) // some was written since
				f.window.Store(7777) // a pulse has looked since
			}
			run(1)
			for k := range c.conns {
				f := p.sender(k).gauge.flow
				require.Equal(t, by[k] == 0, f.unsent.Load() == 7777)
				require.Equal(t, by[k] == 0, f.window.Load() == 7777)
			}
			run(4 * c.ticks)
			for k := range c.conns {
				require.Equal(t, 4, by[k])
			}
			written()
			moves = 0
			run(c.ticks)
			require.Equal(t, uint64(c.conns)*(acked-from), arrived)
			require.LessOrEqual(t, run(2*calmTicks), (c.conns+calmTicks-1)/calmTicks)
			for k := range c.conns {
				require.Equal(t, 2, by[k])
			}
			moves = 1000
			written()
			run(c.ticks)
			for k := range c.conns {
				require.GreaterOrEqual(t, by[k], 1, "there may be data again")
			}
		})
	}
}

// hears gives the hub a receiver for what comes from a peer, whose system says what sample does. It has
// no connection, and is gone when the test ends.
func hears(t *testing.T, h *Hub, from int, sample func(*platform.Info) bool) *Receiver {
	r := &Receiver{h: h}
	r.heard.sample = sample
	peer := uuid(from)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rx[peer] = []*Receiver{r}
	t.Cleanup(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.rx, peer)
	})
	return r
}

// Where data comes receivers are asked every now and then.
func TestListening(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Flows: true})
	h := p.a.h
	asked := 0
	at, sent := time.Second, uint64(1)
	p.far(0, func(i *platform.Info) bool {
		sent++
		*i = platform.Info{
			Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked, MSS: 1448, Unsent: 1,
			RTT: 50 * time.Millisecond, MinRTT: 50 * time.Millisecond, Acked: sent, Sent: sent,
		}
		return true
	}).gauge.flow.pending = true
	from := hears(t, h, 9, func(i *platform.Info) bool {
		asked++
		*i = platform.Info{Known: platform.HasRTT | platform.HasCame, RTT: 50 * time.Millisecond, CameMSS: 1448, Received: uint64(asked) * 1000}
		return true
	})
	from.got.Add(1)
	for range 101 {
		require.True(t, h.survey.step(at))
		at += sampling
	}
	require.Equal(t, 1+100/int(listening/sampling), asked)
}

// What connections gave at most over a moment is told once, and not before enough went.
func TestYieldOfConnections(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Flows: true})
	h := p.a.h
	at, acked, rate := time.Second, uint64(0), uint64(10_000)
	f := p.far(0, func(i *platform.Info) bool {
		*i = platform.Info{
			Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked, MSS: 1448, Unsent: 1,
			RTT: 50 * time.Millisecond, MinRTT: 50 * time.Millisecond, Acked: acked, Sent: acked,
		}
		return true
	}).gauge.flow
	// As along a ring others send than those that are sent to. Of a near peer as much
	// comes as the machine can copy; it says nothing.
	far := func(rtt time.Duration) func(i *platform.Info) bool {
		return func(i *platform.Info) bool {
			*i = platform.Info{Known: platform.HasRTT, RTT: rtt}
			return true
		}
	}
	from, near := hears(t, h, 9, far(50*time.Millisecond)), hears(t, h, 7, far(time.Millisecond))
	from.got.Store(1 << 40) // in its life
	run := func(d time.Duration) {
		f.pending = true
		near.got.Add(1 << 40)
		for end := at + d; at < end; at += sampling {
			acked += rate
			from.got.Add(2 * rate)
			require.True(t, h.survey.step(at))
		}
	}
	run(300 * time.Millisecond)
	_, ok := h.TakeYield(1 << 20)
	require.False(t, ok, "200,000 bytes say little")
	rate = 50_000 // 40 Mbit/s
	run(600 * time.Millisecond)
	rate = 1_000
	run(300 * time.Millisecond)
	best, ok := h.TakeYield(1 << 20)
	require.True(t, ok)
	require.InDelta(t, 40, best.Up, 1)
	require.InDelta(t, 80, best.Down, 2)
	require.Len(t, best.Pairs, 1)
	require.Equal(t, p.sender(0).peer, best.Pairs[0].To)
	require.InDelta(t, best.Up, best.Pairs[0].Mbps, 1e-9)
	_, ok = h.TakeYield(1)
	require.False(t, ok, "it was taken")

	// What lies before and behind a rest does not count as one moment.
	rate = 100_000
	for range 2 {
		f.pending = false
		at += time.Second
		require.False(t, h.survey.step(at))
		run(50 * time.Millisecond)
	}
	_, ok = h.TakeYield(1)
	require.False(t, ok)
}

// What lies behind a gap has arrived: when the gap is filled, it does not count as if all
// of it came then, neither at the end that sends nor at the one that receives.
func TestYieldAcrossGaps(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Flows: true})
	h := p.a.h
	const segment, rate = 1000, 50_000 // a tick: 40 Mbit/s
	at, acked, sacked, came := time.Second, uint64(segment), 0, uint32(0)
	f := p.far(0, func(i *platform.Info) bool {
		*i = platform.Info{
			Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked, MSS: segment, Unsent: 1,
			RTT: 50 * time.Millisecond, MinRTT: 50 * time.Millisecond, Acked: acked, Sacked: sacked, Sent: acked,
		}
		return true
	}).gauge.flow
	from := hears(t, h, 9, func(i *platform.Info) bool {
		*i = platform.Info{Known: platform.HasRTT | platform.HasCame, RTT: 50 * time.Millisecond, Came: came, CameMSS: segment}
		return true
	})
	f.pending = true
	unread := uint64(0)
	for tick := range 200 {
		came += rate / segment
		if gap := tick%50 > 20; gap { // 300 ms of each 500
			sacked += rate
			unread += rate
		} else {
			acked += rate + uint64(sacked)
			from.got.Add(rate + unread)
			sacked, unread = 0, 0
		}
		require.True(t, h.survey.step(at))
		at += sampling
	}
	best, ok := h.TakeYield(1 << 20)
	require.True(t, ok)
	require.InDelta(t, 40, best.Up, 2)
	require.InDelta(t, 40, best.Down, 2)
}

// Acknowledgements that stood in a queue with the data of their end come faster while the
// queue becomes shorter: a window is long beside the round trip with its queues.
func TestYieldWhileAQueueShrinks(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Flows: true})
	h := p.a.h
	at, acked, rtt := time.Second, uint64(1), 30*time.Millisecond
	f := p.far(0, func(i *platform.Info) bool {
		*i = platform.Info{
			Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked, MSS: 1448, Unsent: 1,
			RTT: rtt, MinRTT: 30 * time.Millisecond, Acked: acked, Sent: acked,
		}
		return true
	}).gauge.flow
	f.pending = true
	for tick := range 300 { // the queue grows to 200 ms within a second, and is gone in 100 ms
		before := rtt
		if tick%110 < 100 {
			rtt += 2 * time.Millisecond
		} else {
			rtt -= 20 * time.Millisecond
		}
		acked += uint64(5000 * (sampling - (rtt - before)) / time.Millisecond) // 40 Mbit/s
		require.True(t, h.survey.step(at))
		at += sampling
	}
	best, ok := h.TakeYield(1 << 20)
	require.True(t, ok)
	require.Less(t, best.Up, 1.25*40)
	require.Greater(t, best.Up, 0.75*40)
}
