package link

import (
	"context"
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
	conns, ends, lost, tells := poolOverTCP(t, bound, 1)
	return conns[0], ends[0], lost, tells
}

// poolOverTCP is overTCP with so many connections to one peer.
func poolOverTCP(t *testing.T, bound time.Duration, n int) (conns, ends []*net.TCPConn, lost chan error, tells bool) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10)
	}))
	require.NoError(t, err)
	tuning := platform.Options{UserTimeout: bound}
	lost = make(chan error, n)
	h := NewHub(Config{Tuning: tuning}, losses{lost: lost})
	t.Cleanup(func() {
		h.Close()
		for _, e := range ends {
			e.Close()
		}
	})
	for k := range n {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		e, err := l.Accept()
		require.NoError(t, err)
		conns, ends = append(conns, c.(*net.TCPConn)), append(ends, e.(*net.TCPConn))
		require.NoError(t, platform.TuneP2P(c, tuning))
		info, _ := platform.TCPInfo(c)
		if tells = info.Known.Has(platform.HasHeard | platform.HasInFlight | platform.HasUnsent); !tells { // an emulated kernel
			ours, err := platform.WithoutUserTimeout(c, tuning, bound)
			require.NoError(t, err)
			require.False(t, ours, "its own bound stays")
		}
		require.NoError(t, h.AddSender(wire.UUID{1}, uint32(k), c, Features{Native: true}))
	}
	return conns, ends, lost, tells
}

// deafen has a connection drop what comes.
func deafen(t *testing.T, conn *net.TCPConn) {
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	}))
	require.NoError(t, err)
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
	deafen(t, end)
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

// A peer that is heard over another connection lives: one that is silent gets longer, and no more. When the others are
// silent, too, the peer has gone.
func TestOtherConnectionsSpeakForAPeer(t *testing.T) {
	t.Parallel()
	conns, ends, lost, tells := poolOverTCP(t, time.Second, 3)
	if !tells {
		return
	}
	say := func(k int, what string) {
		_, err := conns[k].Write([]byte(what))
		require.NoError(t, err)
	}
	deafen(t, ends[0])
	say(0, "not heard")
	ended := func(beside func()) error {
		for give := time.After(time.Minute); ; {
			beside()
			select {
			case err := <-lost:
				return err
			case <-give:
				require.Fail(t, "the connection goes on")
			case <-time.After(20 * time.Millisecond): // until the next word
			}
		}
	}
	require.ErrorContains(t, ended(func() { say(1, "heard") }), "nothing was acknowledged for 2s")
	deafen(t, ends[1])
	deafen(t, ends[2])
	say(2, "not heard, either")
	require.ErrorContains(t, ended(func() {}), "nothing was acknowledged for 1s")
}

// While nothing is to be acknowledged, the system asks for longer where the master would miss the peer.
func TestIdleSendersArePatient(t *testing.T) {
	for _, x := range []struct {
		watched, native bool
		want            int
	}{{true, true, 20}, {false, true, 5}, {true, false, 5}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		tuning := platform.Options{UserTimeout: 8 * time.Second}
		require.NoError(t, platform.TuneP2P(c, tuning))
		h := NewHub(Config{Tuning: tuning, Watched: func() bool { return x.watched }}, losses{lost: make(chan error, 1)})
		defer h.Close()
		require.NoError(t, h.AddSender(wire.UUID{1}, 0, c, Features{Native: x.native}))
		if info, _ := platform.TCPInfo(c); !info.Known.Has(platform.HasHeard) { // an emulated kernel
			return
		}
		require.True(t, h.Senders(wire.UUID{1})[0].gauge.vigil.lately.Load(), "it was heard in the handshake")
		raw, err := c.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		var got int
		require.NoError(t, raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPCNT) }))
		require.NoError(t, err)
		require.Equal(t, x.want, got, "%+v", x)
	}
}

// A connection that is silent does not keep its place, though its system has not given it up: its owner may have.
func TestSilentConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	peer := wire.UUID{1}
	h := NewHub(Config{Tuning: platform.Options{UserTimeout: time.Second}}, losses{})
	t.Cleanup(h.Close)
	h.Trust(peer)
	h.EndRound(peer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var conns, ends []net.Conn
	for k := range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		e, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, platform.KeepAlive(e, platform.Options{KeepAliveIdle: time.Hour}))
		h.AddReceiver(peer, uint32(k), e)
		conns, ends = append(conns, c), append(ends, e)
		t.Cleanup(func() { c.Close() })
	}
	if info, _ := platform.TCPInfo(ends[1]); !info.Known.Has(platform.HasHeard) { // an emulated kernel
		return
	}
	require.False(t, h.MayTake(peer, 0), "they live")
	require.NoError(t, conns[0].Close())
	require.Eventually(t, h.Receivers(peer)[0].Closed, time.Minute, time.Millisecond)
	require.False(t, h.MayTake(peer, 0), "one lives")
	deafen(t, ends[1].(*net.TCPConn))
	require.Eventually(t, func() bool {
		info, ok := platform.TCPInfo(ends[1])
		return ok && info.Heard > leastSilence
	}, time.Minute, 10*time.Millisecond)
	require.False(t, h.MayTake(peer, 0), "nobody has asked")
	require.NoError(t, platform.KeepAlive(ends[1], platform.Options{UserTimeout: time.Second}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.True(t, h.AwaitPlace(ctx, peer, 0, true), "nothing happens but time")
	require.False(t, h.Receivers(peer)[1].Closed())
}

// What looks find, a second apart.
func TestVigil(t *testing.T) {
	v := &vigil{bound: 8 * time.Second}
	now := time.Unix(1000, 0)
	after := func(d time.Duration, i platform.Info) finding {
		now = now.Add(d)
		v.info = i
		v.info.Known = platform.HasAcked
		return v.step(now)
	}
	look := func(i platform.Info) finding { return after(time.Second, i) }
	quiet := platform.Info{InFlight: 1448, Heard: time.Hour, Retries: 3}
	looks := func(n int, i platform.Info) {
		t.Helper()
		for range n {
			require.Equal(t, goesOn, look(i))
		}
	}
	looks(3, platform.Info{Heard: time.Hour}) // there is nothing to acknowledge
	looks(7, quiet)
	require.Equal(t, overdue, look(quiet))
	require.False(t, v.lately.Load())
	for range 7 {
		require.Equal(t, overdue, look(quiet), "it may be heard beside")
	}
	require.Equal(t, over, look(quiet))

	looks(1, platform.Info{InFlight: 1448, Heard: 500 * time.Millisecond, Retries: 1, Acked: 1})
	require.True(t, v.lately.Load())
	looks(7, quiet)
	require.Equal(t, overdue, look(quiet), "it was heard once meanwhile")
	looks(1, platform.Info{})
	looks(7, quiet)
	require.Equal(t, goesOn, look(platform.Info{InFlight: 1448, Heard: time.Hour}), "a rest, and what was sent has only just gone")

	// This process, or its machine, stood still.
	looks(1, platform.Info{})
	looks(1, quiet)
	require.Equal(t, goesOn, after(time.Hour, quiet))
	looks(4, quiet)
	require.Equal(t, overdue, look(quiet))

	// Who asks about a window that is shut, and is answered, however rarely, is not alone.
	v.quiet = 0
	shut := func(probes int) platform.Info {
		return platform.Info{Unsent: 1 << 20, Heard: time.Hour, Probes: probes}
	}
	looks(15, shut(1))
	require.Equal(t, overdue, after(time.Millisecond, shut(unanswered)))
	looks(85, shut(1))
	require.Equal(t, over, look(shut(unanswered)))

	// Something is heard, and nothing acknowledged.
	looks(1, platform.Info{})
	beside := platform.Info{InFlight: 1448, Retries: 5, Acked: 77}
	looks(16, beside)
	require.Equal(t, over, look(beside))
	looks(20, platform.Info{InFlight: 1448, Acked: 77})
	beside.Acked++
	looks(1, beside)
}
