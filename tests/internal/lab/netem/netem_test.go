package netem

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	ms   = time.Millisecond
	mbit = 1e6
)

// drain runs the network to its end and returns when packets arrived.
func drain(n *Net) (got []*Packet, at []time.Duration) {
	for {
		next, ok := n.Next()
		if !ok {
			return got, at
		}
		n.Run(next, func(p *Packet, t time.Duration) { got, at = append(got, p), append(at, t) })
	}
}

func two(path Path, hosts ...Host) Config {
	if hosts == nil {
		hosts = make([]Host, 2)
	}
	return Config{Hosts: hosts, Path: func(_, _ int) Path { return path }, Seed: 7}
}

// A link sends at its rate, one packet after the other, and what would wait
// longer than its buffer holds is dropped: in each of the four queues.
func TestQueues(t *testing.T) {
	q := Queue{Rate: 8 * mbit, Buffer: 10 * ms} // 1000 bytes a millisecond
	for name, cfg := range map[string]Config{
		"uplink":   two(Path{}, Host{Up: q}, Host{}),
		"downlink": two(Path{}, Host{}, Host{Down: q}),
		"path":     two(Path{Queue: q}),
		"flow":     {Hosts: make([]Host, 2), Flow: q},
	} {
		t.Run(name, func(t *testing.T) {
			n := New(cfg)
			for range 100 {
				n.Send(0, &Packet{From: 0, To: 1, Bytes: 1000})
			}
			_, at := drain(n)
			require.Len(t, at, 11, "ten wait and one is being sent")
			for i := range at {
				require.Equal(t, time.Duration(i+1)*ms, at[i])
			}
			require.EqualValues(t, Stats{Sent: 100, Delivered: 11, Dropped: 89}, n.Stats())
			n.Send(time.Second, &Packet{From: 0, To: 1, Bytes: 500})
			_, at = drain(n)
			require.Equal(t, []time.Duration{time.Second + ms/2}, at, "an idle link has nothing in store")
		})
	}
}

// Hosts of a site share its way out and its way in, and what stays inside passes
// neither.
func TestSitesHaveOneWayOutAndOneIn(t *testing.T) {
	q := Queue{Rate: 8 * mbit, Buffer: time.Second} // 1000 bytes a millisecond
	for name, site := range map[string]Site{"out": {Hosts: []int{0, 1}, Out: q}, "in": {Hosts: []int{2, 3}, In: q}} {
		t.Run(name, func(t *testing.T) {
			n := New(Config{Hosts: make([]Host, 4), Sites: []Site{site}})
			for i := range 20 {
				n.Send(0, &Packet{From: i % 2, To: 2 + i/2%2, Bytes: 1000})
			}
			_, at := drain(n)
			require.Len(t, at, 20)
			require.Equal(t, 20*ms, at[19], "all of them pass one queue")
			for i := range 20 {
				n.Send(time.Second, &Packet{From: i % 2 * 2, To: i%2*2 + 1, Bytes: 1000})
				n.Send(time.Second, &Packet{From: i%2*2 + 1, To: (i%2*2 + 2) % 4, Bytes: 0})
			}
			got, at := drain(n)
			for i, p := range got {
				if p.Bytes > 0 {
					require.Equal(t, time.Second, at[i], "inside")
				}
			}
		})
	}
}

// Two senders share the downlink in the order in which their packets reach it,
// not in that in which they were sent.
func TestTheDownlinkIsSharedInOrderOfArrival(t *testing.T) {
	slow := Host{Up: Queue{Rate: 8 * mbit, Buffer: time.Second}}
	n := New(two(Path{}, slow, Host{}, Host{Down: Queue{Rate: 80 * mbit, Buffer: time.Second}}))
	n.cfg.Path = nil
	n.pairs = make([]pair, 9)
	for range 100 {
		n.Send(0, &Packet{From: 0, To: 2, Bytes: 1000})
	}
	n.Send(0, &Packet{From: 1, To: 2, Bytes: 1000})
	got, at := drain(n)
	require.Equal(t, 1, got[0].From)
	require.Equal(t, ms/10, at[0])
	require.Equal(t, 100*ms+ms/10, at[100])
}

func TestEachFlowHasItsOwnLimit(t *testing.T) {
	n := New(Config{Hosts: make([]Host, 2), Flow: Queue{Rate: 8 * mbit, Buffer: time.Second}})
	for range 10 {
		for flow := range uint64(4) {
			n.Send(0, &Packet{From: 0, To: 1, Bytes: 1000, Flow: flow})
		}
	}
	_, at := drain(n)
	require.Len(t, at, 40)
	require.Equal(t, 10*ms, at[39], "four at once take as long as one")
}

func TestDelayAndJitter(t *testing.T) {
	for _, reorder := range []bool{false, true} {
		last, sorted := uint64(0), true
		least, most := time.Hour, time.Duration(0)
		n := New(two(Path{Delay: 20 * ms, Jitter: 5 * ms, Reorder: reorder}))
		for i := range 1000 {
			n.Send(time.Duration(i)*ms/2, &Packet{From: 0, To: 1, Bytes: 100, Flow: uint64(i)})
		}
		got, at := drain(n)
		for i, p := range got {
			took := at[i] - time.Duration(p.Flow)*ms/2
			least, most = min(least, took), max(most, took)
			sorted = sorted && p.Flow >= last
			last = p.Flow
		}
		require.Equal(t, !reorder, sorted)
		require.GreaterOrEqual(t, least, 20*ms)
		require.LessOrEqual(t, most, 25*ms)
		require.Greater(t, most-least, 4*ms)
	}
}

// The share of lost packets is what was asked for, within three standard
// deviations, and bursts have the mean length asked for.
func TestLoss(t *testing.T) {
	const many = 200_000
	for _, burst := range []float64{0, 4} {
		const loss = 0.02
		n := New(two(Path{Loss: loss, Burst: burst, Delay: ms}))
		for i := range many {
			n.Send(time.Duration(i), &Packet{From: 0, To: 1, Bytes: 100, Flow: uint64(i)})
		}
		got, _ := drain(n)
		lost := float64(many - len(got))
		length := math.Max(1, burst)
		require.InDelta(t, loss*many, lost, 3*math.Sqrt(loss*many*2*length))
		bursts, next := 0.0, uint64(0)
		for _, p := range got {
			if p.Flow != next {
				bursts++
			}
			next = p.Flow + 1
		}
		require.InEpsilon(t, length, lost/bursts, 0.1)
		require.EqualValues(t, lost, n.Stats().Lost)
	}
}

// What a pair loses does not depend on what others send, and the seed decides.
func TestLossIsAMatterOfThePair(t *testing.T) {
	lost := func(seed uint64, others bool) (numbers []uint64) {
		cfg := two(Path{Loss: 0.1}, make([]Host, 3)...)
		cfg.Seed = seed
		n := New(cfg)
		for i := range uint64(500) {
			n.Send(time.Duration(i), &Packet{From: 0, To: 1, Bytes: 100, Flow: i})
			if others {
				n.Send(time.Duration(i), &Packet{From: 2, To: 1, Bytes: 100, Flow: i})
			}
		}
		got, _ := drain(n)
		for _, p := range got {
			if p.From == 0 {
				numbers = append(numbers, p.Flow)
			}
		}
		return numbers
	}
	require.Equal(t, lost(1, false), lost(1, true))
	require.NotEqual(t, lost(1, false), lost(2, false))
}

func TestChanges(t *testing.T) {
	n := New(two(Path{Delay: ms}))
	n.Change(0, 1, func(p *Path) { p.Down = true })
	n.Send(0, &Packet{From: 0, To: 1, Bytes: 100})
	n.Send(0, &Packet{From: 1, To: 0, Bytes: 100})
	got, _ := drain(n)
	require.Len(t, got, 1)
	require.Equal(t, 1, got[0].From, "the other direction is not concerned")
	n.Change(0, 1, func(p *Path) { p.Down = false })
	n.ChangeHost(0, func(h *Host) { h.Up.Rate = 8 * mbit })
	n.Send(ms, &Packet{From: 0, To: 1, Bytes: 1000})
	_, at := drain(n)
	require.Equal(t, []time.Duration{3 * ms}, at)
}
