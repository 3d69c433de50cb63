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

// overTCP returns a send connection over loopback whose bound is that, and its other end.
func overTCP(t *testing.T, bound time.Duration) (conn, end *net.TCPConn, lost chan error) {
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
	lost = make(chan error, 1)
	h := NewHub(Config{Tuning: tuning}, losses{lost: lost})
	h.AddSender(wire.UUID{1}, 0, c, Features{Native: true})
	t.Cleanup(func() {
		h.Close()
		e.Close()
	})
	return c.(*net.TCPConn), e.(*net.TCPConn), lost
}

// A reader that waits for others, for longer than the bound, is alive: it answers when it is asked about its window.
// With the system's bound the connection would break.
func TestPausesAreNotSilence(t *testing.T) {
	t.Parallel()
	const bound = time.Second
	conn, end, lost := overTCP(t, bound)
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
	conn, end, lost := overTCP(t, time.Second)
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
	err = <-lost
	require.ErrorContains(t, err, "nothing was acknowledged for 1s")
	require.True(t, errors.Is(err, unix.ETIMEDOUT))
}

// What a look finds.
func TestVigil(t *testing.T) {
	v := &vigil{bound: 8 * time.Second}
	now := time.Unix(1000, 0)
	look := func(after time.Duration, i platform.Info) bool {
		now = now.Add(after)
		v.info = i
		return v.step(now)
	}
	waits := func(heard time.Duration) platform.Info { return platform.Info{InFlight: 1448, Heard: heard} }
	require.False(t, look(0, platform.Info{Heard: time.Hour}), "there is nothing to acknowledge")
	require.False(t, look(time.Second, waits(time.Hour)), "it has only just been sent")
	require.False(t, look(7*time.Second, waits(time.Hour)))
	require.True(t, look(time.Second, waits(time.Hour)))
	require.False(t, look(time.Hour, waits(7*time.Second)), "it was heard meanwhile")
	require.True(t, look(time.Second, waits(8*time.Second)))
	require.False(t, look(time.Second, platform.Info{}))
	require.False(t, look(time.Second, waits(time.Hour)), "anew")

	shut := func(heard time.Duration) platform.Info { return platform.Info{Unsent: 1 << 20, Heard: heard} }
	require.False(t, look(time.Hour, shut(50*time.Second)), "a window that is shut is asked about rarely")
	require.True(t, look(time.Second, shut(time.Minute)))
	v.bound = time.Minute
	require.False(t, look(time.Second, shut(time.Minute)))
	require.True(t, look(time.Second, shut(4*time.Minute)))
}
