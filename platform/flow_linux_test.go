package platform

import (
	"io"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/platform/internal/linux"
)

// A kernel that knows fewer fields leaves them out: they are not zeros.
func TestShortInfo(t *testing.T) {
	whole := linux.TCPInfo{Len: unix.SizeofTCPInfo}
	whole.Rtt, whole.Min_rtt, whole.Snd_mss, whole.Snd_cwnd = 30_000, 29_000, 1448, 10
	whole.Bytes_acked, whole.Bytes_sent, whole.Notsent_bytes = 5, 6, 7
	i := fromLinux(&whole)
	require.True(t, i.Known.Has(HasRTT|HasMinRTT|HasAcked|HasSent|HasResent|HasUnsent|HasPacing|HasLimits))
	require.False(t, i.Known.Has(HasBuffered))
	require.Equal(t, 14480, i.Window)

	short := whole
	short.Len = uint32(unsafe.Offsetof(short.Bytes_sent)) + 7 // not all of its eight bytes
	require.True(t, fromLinux(&short).Known.Has(HasRTT|HasMinRTT|HasAcked|HasUnsent|HasLimits))
	require.Zero(t, fromLinux(&short).Known&(HasSent|HasResent))
	short.Len = uint32(unsafe.Offsetof(short.Bytes_acked))
	require.True(t, fromLinux(&short).Known.Has(HasRTT|HasPacing))
	require.Zero(t, fromLinux(&short).Known&(HasAcked|HasUnsent|HasMinRTT))

	whole.Min_rtt, whole.Rtt = 1<<32-1, 0
	require.Zero(t, fromLinux(&whole).Known&(HasRTT|HasMinRTT))
}

func TestInfoCountsBytes(t *testing.T) {
	c, s := pair(t)
	sample := Sampler(c)
	var before, after Info
	require.True(t, sample(&before))
	if !before.Known.Has(HasAcked | HasSent) {
		return // an emulated kernel
	}
	const bytes = 100_000
	_, err := c.Write(make([]byte, bytes))
	require.NoError(t, err)
	_, err = io.ReadFull(s, make([]byte, bytes))
	require.NoError(t, err)
	_, err = s.Write([]byte{1}) // acknowledges what came before it
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err)
	require.True(t, sample(&after))
	far, ok := TCPInfo(s)
	require.True(t, ok)
	require.Equal(t, far.Known.Has(HasCame), far.Received == bytes && far.Came > 0)
	require.Zero(t, far.Aside) // nothing is lost here
	require.EqualValues(t, bytes, after.Acked-before.Acked)
	require.EqualValues(t, bytes, after.Sent-before.Sent-(after.Resent-before.Resent))
	require.Zero(t, after.InFlight)
	require.Zero(t, after.Unsent)
	require.Positive(t, after.RTT)
	require.Positive(t, after.Window)

	require.Zero(t, allocs.PerRun(100, func() { sample(&after) }))
	c.Close()
	require.False(t, sample(&after))
	require.Zero(t, after)
}

// An end at which data comes, and which sends nothing that would be acknowledged, hears the other one.
func TestDataIsHeard(t *testing.T) {
	c, s := pair(t)
	heard := func() time.Duration {
		info, _ := TCPInfo(s)
		return info.Heard
	}
	if info, _ := TCPInfo(s); !info.Known.Has(HasHeard) {
		return
	}
	const a = 100 * time.Millisecond
	for range 2 { // the first data may say more than data
		require.Eventually(t, func() bool { return heard() > a }, time.Minute, time.Millisecond)
		require.Eventually(t, func() bool {
			_, err := c.Write([]byte{1})
			require.NoError(t, err)
			_, err = s.Read(make([]byte, 1))
			require.NoError(t, err)
			return heard() < a
		}, time.Minute, 2*a)
	}
}

func TestPacingReachesTheSocket(t *testing.T) {
	c, _ := pair(t)
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	is := func() (rate uint32) {
		require.NoError(t, raw.Control(func(fd uintptr) {
			got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
			require.NoError(t, err)
			rate = uint32(got)
		}))
		return rate
	}
	for _, step := range []struct {
		set  uint64
		want uint32
	}{{1_250_000, 1_250_000}, {3 << 30, 3 << 30}, {1 << 40, 1<<32 - 1}, {0, 1<<32 - 1}} {
		paced, err := SetPacing(c, step.set)
		require.NoError(t, err)
		require.True(t, paced)
		require.Equal(t, step.want, is())
	}
	spread, err := SpreadWindows(c)
	require.NoError(t, err)
	require.True(t, spread)
	require.EqualValues(t, 1<<32-2, is(), "any bound makes it even")
	c.Close()
	_, err = SetPacing(c, 1)
	require.ErrorIs(t, err, errs.Internal)
}

// What the other end does not read stays here at last, unsent.
func TestUnsent(t *testing.T) {
	c, s := pair(t)
	n, ok := Unsent(c)
	require.True(t, ok)
	require.Zero(t, n)
	require.NoError(t, s.SetReadBuffer(4096))
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	part := make([]byte, 1<<20)
	for full := false; !full; { // until the system takes no more
		require.NoError(t, raw.Write(func(fd uintptr) bool {
			_, err := unix.Write(int(fd), part)
			full = err == unix.EAGAIN
			return true
		}))
	}
	n, ok = Unsent(c)
	require.True(t, ok)
	require.Positive(t, n)
	info, ok := TCPInfo(c)
	require.True(t, ok)
	if info.Known.Has(HasUnsent) {
		require.Positive(t, info.Unsent)
	}
}

func TestSetCongestion(t *testing.T) {
	c, _ := pair(t)
	require.NoError(t, SetCongestion(c, "reno"))
	require.Equal(t, "reno", Congestion(c))
	require.ErrorIs(t, SetCongestion(c, "nonesuch"), errs.InvalidConfig)
	require.Equal(t, "reno", Congestion(c))
}
