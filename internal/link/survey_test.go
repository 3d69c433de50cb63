package link

import (
	"net"
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
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.Nil(t, newFlow(c))
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

	// The peer takes no more: what there is stays in use.
	h.Refused(peer, pace.FirstCount)
	run(sampling)
	require.Equal(t, pace.FirstCount, h.Wanted(peer))
	require.Len(t, h.InUse(peer), pace.FirstCount)

	// Without data nothing is asked.
	for k := range pace.FirstCount {
		p.sender(k).gauge.flow.pending = false
	}
	require.False(t, h.survey.step(at))
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
	from, near := &Receiver{h: h}, &Receiver{h: h}
	far := func(rtt time.Duration) func(i *platform.Info) bool {
		return func(i *platform.Info) bool {
			*i = platform.Info{Known: platform.HasRTT, RTT: rtt}
			return true
		}
	}
	from.heard.sample, near.heard.sample = far(50*time.Millisecond), far(time.Millisecond)
	from.got.Store(1 << 40) // in its life
	h.mu.Lock()
	h.rx[uuid(9)], h.rx[uuid(7)] = []*Receiver{from}, []*Receiver{near}
	h.mu.Unlock()
	t.Cleanup(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		clear(h.rx)
	})
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
	run(300 * time.Millisecond)
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
