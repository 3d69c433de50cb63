package link

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// losses hears of senders that are lost.
type losses struct {
	Router
	lost chan error
}

func (l losses) SenderLost(_ *Sender, cause error) { l.lost <- cause }
func (losses) Connected(*Receiver)                 {}
func (losses) Regrouped(wire.UUID)                 {}
func (losses) Wake()                               {}
func (losses) ReceiverLost(_ *Receiver, _ error)   {}

// overTCP returns a send connection over loopback whose bound is that, and its other end. tells: the system says
// when it has heard of that.
func overTCP(t *testing.T, bound time.Duration) (conn, end *net.TCPConn, lost chan error, tells bool) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10)
	}))
	require.NoError(t, err)
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	e, err := l.Accept()
	require.NoError(t, err)
	tuning := platform.Options{UserTimeout: bound}
	require.NoError(t, platform.TuneP2P(c, tuning))
	info, _ := platform.TCPInfo(c)
	if tells = info.Known.Has(platform.HasHeard | platform.HasInFlight | platform.HasUnsent); !tells { // an emulated kernel
		ours, err := platform.WithoutUserTimeout(c, tuning)
		require.NoError(t, err)
		require.False(t, ours, "its own bound stays")
	}
	lost = make(chan error, 1)
	h := NewHub(Config{Tuning: tuning}, losses{lost: lost})
	h.AddSender(wire.UUID{1}, 0, c, Features{Native: true})
	t.Cleanup(func() {
		h.Close()
		e.Close()
	})
	return c.(*net.TCPConn), e.(*net.TCPConn), lost, tells
}

// A reader that waits for others, for longer than the bound, is alive: it answers when it is asked about its window.
// With the system's bound the connection would break.
func TestPausesAreNotSilence(t *testing.T) {
	t.Parallel()
	const bound = time.Second
	conn, end, lost, tells := overTCP(t, bound)
	if !tells {
		return
	}
	block := make([]byte, 1<<20)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(block)
		wrote <- err
	}()
	shut := func() bool {
		info, ok := platform.TCPInfo(conn)
		return ok && info.InFlight == 0 && info.Unsent > 0
	}
	require.Eventually(t, shut, time.Minute, time.Millisecond)
	select {
	case err := <-lost:
		require.NoError(t, err)
	case <-time.After(3 * bound): // the pause is what is tested
	}
	require.True(t, shut())
	_, err := io.ReadFull(end, block)
	require.NoError(t, err)
	require.NoError(t, <-wrote)
}

// An end that acknowledges nothing any more has gone.
func TestSilenceEndsAConnection(t *testing.T) {
	t.Parallel()
	conn, end, lost, tells := overTCP(t, time.Second)
	if !tells {
		return
	}
	_, err := conn.Write([]byte("heard"))
	require.NoError(t, err)
	_, err = io.ReadFull(end, make([]byte, 5))
	require.NoError(t, err)
	raw, err := end.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { // it drops what comes
		nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	}))
	require.NoError(t, err)
	_, err = conn.Write([]byte("not heard"))
	require.NoError(t, err)
	select {
	case err = <-lost:
	case <-time.After(time.Minute):
		require.Fail(t, "the connection goes on")
	}
	require.ErrorContains(t, err, "nothing was acknowledged for 1s")
	require.True(t, errors.Is(err, unix.ETIMEDOUT))
}

// What looks find, a second apart.
func TestVigil(t *testing.T) {
	v := &vigil{bound: 8 * time.Second}
	now := time.Unix(1000, 0)
	after := func(d time.Duration, i platform.Info) bool {
		now = now.Add(d)
		v.info = i
		v.info.Known = platform.HasAcked
		return v.step(now)
	}
	look := func(i platform.Info) bool { return after(time.Second, i) }
	silent := platform.Info{InFlight: 1448, Heard: time.Hour, Retries: 3}
	looks := func(n int, i platform.Info) {
		t.Helper()
		for range n {
			require.False(t, look(i))
		}
	}
	looks(3, platform.Info{Heard: time.Hour}) // there is nothing to acknowledge
	looks(7, silent)
	require.True(t, look(silent))

	looks(1, platform.Info{InFlight: 1448, Heard: 500 * time.Millisecond, Retries: 1, Acked: 1})
	looks(7, silent)
	require.True(t, look(silent), "it was heard once meanwhile")
	looks(1, platform.Info{})
	looks(7, silent)
	require.False(t, look(platform.Info{InFlight: 1448, Heard: time.Hour}), "a rest, and what was sent has only just gone")

	// This process, or its machine, stood still.
	looks(1, platform.Info{})
	looks(1, silent)
	require.False(t, after(time.Hour, silent))
	looks(4, silent)
	require.True(t, look(silent))

	// Who asks about a window that is shut, and is answered, however rarely, is not alone.
	v.quiet = 0
	shut := func(probes int) platform.Info {
		return platform.Info{Unsent: 1 << 20, Heard: time.Hour, Probes: probes}
	}
	looks(100, shut(1))
	require.True(t, look(shut(unanswered)))

	// Something is heard, and nothing acknowledged.
	looks(1, platform.Info{})
	beside := platform.Info{InFlight: 1448, Retries: 5, Acked: 77}
	looks(16, beside)
	require.True(t, look(beside))
	looks(20, platform.Info{InFlight: 1448, Acked: 77})
	beside.Acked++
	looks(1, beside)
}
