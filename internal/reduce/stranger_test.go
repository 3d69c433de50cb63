package reduce

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Connections that introduced themselves well and belong to nobody in the ring
// cost next to no memory, however many they are, also when they send frames;
// beyond a bound the oldest of them gives way. Those of the ring stay.
func TestStrangersAreBounded(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	src := []byte{1, 2}
	op, done := a.start(5, Spec{Tag: 2, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src}, ids, ids[0])
	a.e.Retain(func(u wire.UUID) bool { return u == ids[1] }, func(u wire.UUID) bool { return u == ids[1] })
	const many = maxStrangers + 10
	var far []net.Conn
	for i := range many {
		there, here := net.Pipe()
		t.Cleanup(func() { there.Close() })
		far = append(far, there)
		var u wire.UUID
		u[0], u[1], u[2] = 0xff, byte(i), byte(i>>8)
		a.e.AddReceiver(u, 0, here)
	}
	for _, c := range far[:10] {
		c.SetReadDeadline(time.Now().Add(patience))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, transport.IsTimeout(err), "an old stranger gives way")
	}
	stale := make([]byte, transport.HeaderSize+100)
	transport.Header{Payload: 100, Tag: 1, Stream: 1}.Put((*[transport.HeaderSize]byte)(stale))
	for _, c := range far[10:] {
		_, err := c.Write(stale)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return a.e.Stats().StaleFrames == many-10 }, patience, time.Millisecond)
	require.Less(t, a.e.Buffers().PeakUsed, int64(2*DefaultFrameBytes+drainBytes*maxStrangers))
	a.send(2, 5, []byte{4})
	a.send(2, 5, []byte{5})
	require.NoError(t, verdict(t, done), "the ring goes on")
	op.Finish(false)
}
