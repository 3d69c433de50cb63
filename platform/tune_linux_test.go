package platform

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/core/errs"
)

func TestOptionsReachTheSocket(t *testing.T) {
	c, _ := pair(t)
	require.NoError(t, TuneP2P(c, Options{
		UserTimeout: 1500 * time.Millisecond, KeepAliveIdle: 7 * time.Second,
		KeepAliveInterval: 2 * time.Second, KeepAliveCount: 3, Congestion: "reno",
	}))
	require.Equal(t, "reno", Congestion(c))
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		for opt, want := range map[int]int{
			unix.TCP_USER_TIMEOUT: 1500, unix.TCP_KEEPIDLE: 7, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 3, unix.TCP_NODELAY: 1,
		} {
			got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, opt)
			require.NoError(t, err)
			require.Equal(t, want, got, "option %d", opt)
		}
	}))
}

// However long a way is gone, it is tried again within a bound. Kernels before 6.15 have
// none, and keep what they do.
func TestRetriesAreBounded(t *testing.T) {
	c, _ := pair(t)
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	wait := func() (ms int) {
		require.NoError(t, raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS) }))
		return ms
	}
	before := wait()
	known := err == nil
	require.NoError(t, TuneP2P(c, Options{RetryWait: -1}))
	require.Equal(t, before, wait())
	require.NoError(t, TuneP2P(c, Options{UserTimeout: -1}))
	require.Equal(t, before, wait(), "Linux would derive a timeout from it")
	require.NoError(t, TuneP2P(c, Options{}))
	if known {
		info, ok := TCPInfo(c)
		require.True(t, ok)
		require.GreaterOrEqual(t, wait(), 1000)
		require.Less(t, wait(), 1000+100+int(8*info.RTT.Milliseconds()))
	}
	require.NoError(t, TuneP2P(c, Options{RetryWait: time.Millisecond}), "less than the system takes")
}

// With a user timeout Linux ends a connection at the first unanswered probe after that
// time. So that one lost packet does not end a connection that rests, three more come
// before.
func TestLostProbeEndsNothing(t *testing.T) {
	for _, bound := range []time.Duration{0, 4 * time.Second, 8 * time.Second, time.Minute} {
		c, _ := pair(t)
		require.NoError(t, TuneP2P(c, Options{UserTimeout: bound}))
		raw, err := c.SyscallConn()
		require.NoError(t, err)
		get := func(opt int) (v int) {
			require.NoError(t, raw.Control(func(fd uintptr) { v, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, opt) }))
			require.NoError(t, err)
			return v
		}
		idle, interval := get(unix.TCP_KEEPIDLE), get(unix.TCP_KEEPINTVL)
		limit := get(unix.TCP_USER_TIMEOUT) / 1000
		require.LessOrEqual(t, idle+2*interval, limit, "%v", bound)
		if limit >= 8 {
			require.LessOrEqual(t, idle+3*interval, limit, "%v", bound)
		}
	}
}

// An end that sends nothing is asked as early and as often, and may be silent for longer.
func TestPatientEnds(t *testing.T) {
	read := func(c *net.TCPConn) (got [4]int) {
		raw, err := c.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			for i, opt := range []int{unix.TCP_USER_TIMEOUT, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT} {
				got[i], err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, opt)
				require.NoError(t, err)
			}
		}))
		return got
	}
	c, s := pair(t)
	o := Options{UserTimeout: 8 * time.Second}
	require.NoError(t, TuneP2P(c, o))
	require.Equal(t, [4]int{8000, 4, 1, 5}, read(c))
	require.NoError(t, TuneP2P(s, o.Patient()))
	require.Equal(t, [4]int{24000, 4, 1, 20}, read(s))
	ours, err := WithoutUserTimeout(c, o, 16*time.Second)
	require.NoError(t, err)
	if ours {
		require.Equal(t, [4]int{0, 4, 1, 5}, read(c))
		require.NoError(t, KeepAlive(c, o.Patient()))
		require.Equal(t, [4]int{0, 4, 1, 20}, read(c))
	}
	// Systems ask in whole seconds, and so many times at most.
	for _, bound := range []time.Duration{9 * time.Second, 10 * time.Second, 20 * time.Second, time.Minute} {
		require.NoError(t, TuneP2P(s, Options{UserTimeout: bound}.Patient()))
		got := read(s)
		longest := time.Duration(got[1]+got[2]*got[3]) * time.Second
		require.InDelta(t, patience*bound, longest, float64(time.Duration(got[2])*time.Second), "%v", bound)
	}
	require.NoError(t, TuneP2P(s, Options{UserTimeout: time.Minute, KeepAliveInterval: time.Second}.Patient()))
	require.Equal(t, mostProbes, read(s)[3])
	require.Equal(t, Options{UserTimeout: -1}.withDefaults(), Options{UserTimeout: -1}.Patient())
	require.Equal(t, Options{KeepAliveIdle: -1}.withDefaults(), Options{KeepAliveIdle: -1}.Patient())
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	require.NoError(t, KeepAlive(a, o))
	require.NoError(t, c.Close())
	require.ErrorIs(t, KeepAlive(c, o), errs.Internal)
}

func TestAutoTakesCubicOnThisHost(t *testing.T) {
	c, _ := pair(t)
	require.NoError(t, TuneP2P(c, Options{Congestion: "reno"}))
	require.NoError(t, TuneP2P(c, Options{Congestion: CongestionAuto}))
	want := "cubic"
	if other, _ := pair(t); TuneP2P(other, Options{Congestion: "cubic"}) != nil {
		want = "reno" // a kernel without cubic keeps what it had
	}
	require.Equal(t, want, Congestion(c))
	info, ok := TCPInfo(c)
	require.True(t, ok)
	// An emulated kernel leaves it at zero.
	require.Less(t, info.RTT, time.Minute)
}

// A reader sees a reset as such. (Elsewhere only a writer may: Wine shows a
// reader the end of the stream.)
func TestReaderSeesReset(t *testing.T) {
	c, s := pair(t)
	require.NoError(t, s.SetLinger(0))
	require.NoError(t, s.Close())
	_, err := c.Read(make([]byte, 1))
	require.Equal(t, ClassReset, Classify(err), "%v", err)
}

func TestLimitUnsent(t *testing.T) {
	c, _ := pair(t)
	require.NoError(t, LimitUnsent(c, 100_000))
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		require.NoError(t, err)
		require.Equal(t, 100_000, got)
	}))
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	require.NoError(t, LimitUnsent(a, 1))
	c.Close()
	require.ErrorIs(t, LimitUnsent(c, 1), errs.Internal)
}

// For how long Linux retries, by its model, and the waits that make it as long as a bound.
func TestRetryWait(t *testing.T) {
	require.Equal(t, 14400*time.Millisecond, retriedFor(15, time.Second))
	require.Equal(t, 924600*time.Millisecond, retriedFor(15, mostRetryWait)) // as ip-sysctl has it for tcp_retries2
	for _, c := range []struct {
		retries            int
		bound, least, most time.Duration
		never              bool
	}{
		{15, 8 * time.Second, time.Second, time.Second, false},
		{15, 20 * time.Second, 1300 * time.Millisecond, 1700 * time.Millisecond, false},
		{8, 8 * time.Second, time.Second, 1300 * time.Millisecond, false},
		{5, 8 * time.Second, 1600 * time.Millisecond, 3 * time.Second, false},
		{3, 8 * time.Second, 0, mostRetryWait, true},
		{15, time.Hour, 0, mostRetryWait, true},
	} {
		wait, ok := retryWait(c.retries, time.Second, c.bound)
		require.Equal(t, !c.never, ok, "%+v", c)
		require.GreaterOrEqual(t, wait, c.least, "%+v", c)
		require.LessOrEqual(t, wait, c.most, "%+v", c)
		require.Equal(t, ok, retriedFor(c.retries, wait) >= c.bound)
	}
	const bound, goOn = 8 * time.Second, 16 * time.Second
	wait, ok := waitBetween(15, time.Second, bound, goOn)
	require.True(t, ok)
	require.LessOrEqual(t, goOn, retriedFor(15, wait))
	for _, retries := range []int{8, 5, 3} {
		wait, ok := waitBetween(retries, time.Second, bound, goOn)
		as, can := retryWait(retries, time.Second, bound)
		require.Equal(t, as, wait, "%d retries: rarer ones would be fewer within the bound", retries)
		require.Equal(t, can, ok)
	}
}
