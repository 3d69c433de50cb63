package link

import (
	"math"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/platform"
)

// dialled returns a connection of TCP on this host, whose other end stays open.
func dialled(t *testing.T) net.Conn {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	far, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near
}

// State tells what the system knows of the way of a connection, and what writers saw.
func TestStateKnowsTheWay(t *testing.T) {
	near := dialled(t)
	m := newRoom(t, Config{})
	m.h.AddSender(uuid(1), 0, near, Features{Native: true})
	memory, other := transporttest.Pair(transporttest.Options{})
	defer other.Close()
	m.h.AddSender(uuid(2), 0, memory, Features{Native: true})
	m.h.Senders(uuid(1))[0].gauge.rate.Store(math.Float64bits(2e6))
	all := m.h.State(func(*Receiver) int { return 0 })
	require.Len(t, all, 2)
	info, known := platform.TCPInfo(near)
	require.Equal(t, known && info.RTT > 0, all[0].Path.RTT > 0)
	require.Equal(t, info.MinRTT > 0, all[0].Path.MinRTT > 0)
	require.Zero(t, all[0].Path.Resent)
	require.InDelta(t, 2e6, all[0].Path.Rate, 1)
	require.Zero(t, all[1].Path, "it is no TCP connection")
}
