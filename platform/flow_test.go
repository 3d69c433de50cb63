package platform

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
)

// Fields that the system does not tell are zero; a conn that is not a TCP connection, or closed, says so.
func TestInfoOfNone(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	closed, _ := pair(t)
	require.NoError(t, closed.Close())
	for _, conn := range []net.Conn{a, closed} {
		info, ok := TCPInfo(conn)
		require.False(t, ok)
		require.Zero(t, info)
		_, ok = Unsent(conn)
		require.False(t, ok)
		require.ErrorIs(t, SetCongestion(conn, "cubic"), errs.InvalidConfig)
	}
	paced, err := SetPacing(a, 1e6)
	require.NoError(t, err)
	require.False(t, paced)
}

// On every system: an answer or none, and the same for the functions that stand on it.
func TestInfoOfAConnection(t *testing.T) {
	c, s := pair(t)
	_, err := c.Write(make([]byte, 1000))
	require.NoError(t, err)
	_, err = s.Read(make([]byte, 1000))
	require.NoError(t, err)
	info, ok := TCPInfo(c)
	if !ok {
		require.Zero(t, info)
		return
	}
	require.NotZero(t, info.Known)
	require.Positive(t, info.MSS)
	if info.Known.Has(HasRTT) {
		require.Positive(t, info.RTT)
	}
}
