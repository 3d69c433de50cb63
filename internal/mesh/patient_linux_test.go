package mesh

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// The end at which a gopccl peer's data arrives is patient, if the master misses that peer when it is gone. One of PCCL
// does not look whether it is heard.
func TestReceivingEndsArePatient(t *testing.T) {
	bound := func(c net.Conn) (ms int) {
		raw, err := c.(interface{ TCP() *net.TCPConn }).TCP().SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }))
		require.NoError(t, err)
		return ms
	}
	for _, x := range []struct {
		native, watched bool
		want            int
	}{{true, true, 24000}, {false, true, 8000}, {true, false, 8000}} {
		var j journal
		_, to := open(t, wire.UUID{1}, &j, func(c *Config) {
			c.Tuning = platform.Options{UserTimeout: 8 * time.Second}
			c.Watched = func() bool { return x.watched }
		})
		far, err := new(net.Dialer).DialContext(context.Background(), "tcp", to.Addr.String())
		require.NoError(t, err)
		t.Cleanup(func() { far.Close() })
		_, err = far.Write(wire.Append(nil, wire.P2PHello{UUID: wire.UUID{2}, Ext: wire.Ext{Native: x.native}}))
		require.NoError(t, err)
		_, err = wire.Read(far, wire.P2P, maxHello)
		require.NoError(t, err)
		j.mu.Lock()
		got := bound(j.conns[0])
		j.mu.Unlock()
		require.Equal(t, x.want, got, "%+v", x)
	}
}
