package peer

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestMeter(t *testing.T) {
	a, b, c := wire.UUID{1}, wire.UUID{2}, wire.UUID{3}
	bytes, busy := uint64(5<<20), 3*time.Second
	m := &meter{use: func(u wire.UUID) (uint64, time.Duration) {
		require.Equal(t, b, u)
		return bytes, busy
	}}
	at := time.Unix(100, 0)
	m.started([]wire.UUID{c, a, b}, a, at)
	m.started([]wire.UUID{c, a, b}, a, at)
	bytes, busy = bytes+10_000_000, busy+800*time.Millisecond
	_, ok := m.ended(at.Add(500 * time.Millisecond))
	require.False(t, ok, "another operation is under way")
	u, ok := m.ended(at.Add(time.Second))
	require.True(t, ok)
	require.Equal(t, b, u.To)
	require.InDelta(t, 80, u.Mbps, 1e-9)
	require.InDelta(t, 0.8, u.Busy, 1e-9)
	// Little, and too soon: it adds up.
	at = at.Add(time.Second)
	for i := range 4 {
		m.started([]wire.UUID{a, b, c}, a, at)
		bytes += 1_000_000
		at = at.Add(300 * time.Millisecond)
		u, ok = m.ended(at)
		require.Equal(t, i == 3, ok)
	}
	require.InDelta(t, 4*8/1.2, u.Mbps, 1e-9)
	require.Zero(t, u.Busy)
	// New connections begin at zero.
	m.started([]wire.UUID{a, b}, a, at)
	bytes, busy = 7, 0
	_, ok = m.ended(at.Add(time.Hour))
	require.False(t, ok)
	m.started([]wire.UUID{b, c}, a, at) // not of the ring
}

// What waits for its commence is not timed before it, nor after its end.
func TestTimeBeginsWithTheCommence(t *testing.T) {
	ring := []wire.UUID{{1}, {2}}
	s := &Session{}
	s.meter.use = func(wire.UUID) (uint64, time.Duration) { return 0, 0 }
	flying := func(op *Operation, ahead uint64) int {
		s.time(op, fsm.StartData{Ring: ring, Self: ring[0], Ahead: ahead})
		return s.meter.flying
	}
	op := &Operation{}
	require.Equal(t, 1, flying(op, 0))
	s.metered(op, errors.New("aborted"))
	require.Zero(t, flying(op, 5)) // the same one, taken back
	s.commenced(op)
	s.commenced(op)
	require.Equal(t, 1, s.meter.flying)
	s.metered(op, errors.New("aborted"))
	require.Zero(t, s.meter.flying)
	require.Zero(t, flying(op, 5))
	s.metered(op, nil)
	s.commenced(op)
	require.Zero(t, s.meter.flying)
	s.commenced(&Operation{}) // one that is not metered
	require.Zero(t, s.meter.flying)
}

// Of the kinds that go along the ring, those are metered that load every link alike.
func TestMeteredKinds(t *testing.T) {
	const n = 4
	for k := plan.AllReduce + 1; k < plan.Barrier; k++ {
		if k.Direct() {
			require.False(t, metered(k), k)
			continue
		}
		alike := true
		for me := range n {
			p := plan.For(plan.Job{Kind: k, N: n, Me: me})
			alike = alike && p.Sent(func(int) int { return 1 }) == n-1
		}
		require.Equal(t, alike, metered(k), k)
	}
}
