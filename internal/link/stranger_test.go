package link

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// crowd makes so many strangers connect, and returns their connections.
func crowd(t *testing.T, h *Hub, many int) (far []net.Conn) {
	for i := range many {
		there, here := net.Pipe()
		t.Cleanup(func() { there.Close() })
		far = append(far, there)
		var u wire.UUID
		u[0], u[1], u[2] = 0xff, byte(i), byte(i>>8)
		h.AddReceiver(u, 0, here)
	}
	return far
}

// Connections that introduced themselves well and belong to no neighbour cost next to
// no memory, however many they are, also when they send frames; beyond a bound the
// oldest of them gives way. Those of neighbours stay.
func TestStrangersAreBounded(t *testing.T) {
	m := newRoom(t, Config{})
	prev, in := transporttest.Pair(transporttest.Options{})
	m.h.AddReceiver(uuid(1), 0, in)
	x := newTape()
	m.open(uuid(1), 2, 5, x)
	listed := func(u wire.UUID) bool { return u == uuid(1) }
	m.h.Retain(listed, listed)
	const many = maxStrangers + 10
	far := crowd(t, m.h, many)
	for _, c := range far[:10] {
		c.SetReadDeadline(time.Now().Add(patience))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, transport.IsTimeout(err), "an old stranger gives way")
	}
	stale := frameOf(1, 1, make([]byte, 100))
	for _, c := range far[10:] {
		_, err := c.Write(stale)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return m.h.cfg.Stats.Snapshot().StaleFrames == many-10 }, patience, time.Millisecond)
	require.Less(t, m.h.cfg.Pool.Stats().PeakUsed, int64(2*DefaultFrameBytes+drainBytes*maxStrangers))
	put(t, prev, 2, 5, []byte{4})
	require.Equal(t, []byte{4}, x.next(t), "the neighbour goes on")
}

// A neighbour is one by its name: also if it connects when this peer's round is
// over, and the connections of a former one go last.
func TestNeighboursAreKnownByName(t *testing.T) {
	for _, former := range []bool{false, true} {
		m := newRoom(t, Config{})
		m.h.Trust(uuid(1))
		listed := func(u wire.UUID) bool { return u == uuid(1) }
		m.h.Retain(listed, listed) // the round of this peer is over; the neighbour still dials
		prev, in := transporttest.Pair(transporttest.Options{})
		m.h.AddReceiver(uuid(1), 0, in)
		x := newTape()
		m.open(uuid(1), 2, 5, x)
		if former { // a stream of an older ring
			m.h.Forget(func(wire.UUID) bool { return false })
		}
		crowd(t, m.h, maxStrangers)
		put(t, prev, 2, 5, []byte{4})
		require.Equal(t, []byte{4}, x.next(t))
		m.h.Retain(nil, func(wire.UUID) bool { return false })
		require.Empty(t, m.h.known)
	}
}
