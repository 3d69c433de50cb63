package link

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Windows leave at once until much of one is lost, and not because of a timeout.
func TestWindowsThatSpillAreSpread(t *testing.T) {
	t.Parallel()
	conn := dialled(t)
	h := NewHub(Config{}, losses{lost: make(chan error, 1)})
	defer h.Close()
	peer := wire.UUID{1}
	require.NoError(t, h.AddSender(peer, 0, conn, Features{Native: true}))
	const mss, none = 1448, 1<<32 - 1
	known, lost, retries := platform.HasRTT|platform.HasMinRTT|platform.HasLost|platform.HasRetries, 0, 0
	s := h.Senders(peer)[0]
	s.gauge.flow = &flow{pending: true, sample: func(i *platform.Info) bool {
		*i = platform.Info{
			Known: known, MSS: mss, RTT: 50 * time.Millisecond, MinRTT: 50 * time.Millisecond,
			Unsent: 1, Lost: lost, Retries: retries,
		}
		return true
	}}
	h.mu.Lock()
	h.survey.far = append(h.survey.far, s)
	h.mu.Unlock()
	at := time.Second
	spread := func() bool {
		at += sampling
		require.True(t, h.survey.step(at))
		return s.gauge.flow.spread
	}
	lost = 7 * mss
	require.False(t, spread(), "by chance")
	lost, retries = 100*mss, 1
	require.False(t, spread(), "after a timeout all counts as lost")
	lost, retries = 90*mss, 0
	require.False(t, spread(), "until it has arrived")
	lost = 0
	require.False(t, spread())
	lost, known = 100*mss, known&^platform.HasLost
	require.False(t, spread(), "nobody knows")
	known |= platform.HasLost
	takes, err := platform.SetPacing(conn, none)
	require.NoError(t, err)
	require.True(t, spread())
	if !takes { // an emulated kernel
		return
	}
	require.EqualValues(t, none-1, boundOf(t, conn))
	_, err = platform.SetPacing(conn, 0)
	require.NoError(t, err)
	require.True(t, spread())
	require.EqualValues(t, none, boundOf(t, conn), "it is done once")
}

// boundOf returns the bound of a connection's pacing, in bytes per second.
func boundOf(t *testing.T, conn net.Conn) (rate uint32) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
		require.NoError(t, err)
		rate = uint32(got)
	}))
	return rate
}
