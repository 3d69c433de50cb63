package platform_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/platform"
)

// moody is a listener that answers as it was told, and is closed then.
type moody struct{ answers []any }

func (m *moody) Accept() (net.Conn, error) {
	if len(m.answers) == 0 {
		return nil, &net.OpError{Op: "accept", Err: net.ErrClosed}
	}
	a := m.answers[0]
	m.answers = m.answers[1:]
	if err, ok := a.(error); ok {
		return nil, &net.OpError{Op: "accept", Err: err}
	}
	return a.(net.Conn), nil
}

func (m *moody) Close() error   { return nil }
func (m *moody) Addr() net.Addr { return &net.TCPAddr{} }

// Whatever accept(2) says about a connection that is pending, the listener goes
// on: only its being closed ends the loop.
func TestAcceptLoopEndsWithTheListenerOnly(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	m := &moody{answers: []any{
		os.NewSyscallError("accept4", syscall.EMFILE), a, os.NewSyscallError("accept4", syscall.ECONNABORTED),
		os.NewSyscallError("accept4", syscall.EHOSTUNREACH), os.NewSyscallError("accept4", syscall.EPERM),
		os.NewSyscallError("accept4", syscall.ETIMEDOUT), errors.New("a number that nobody knows"), b,
	}}
	var took []net.Conn
	var said []string
	platform.AcceptLoop(m, nil, func(c net.Conn) { took = append(took, c) }, func(err error) { said = append(said, err.Error()) })
	require.Equal(t, []net.Conn{a, b}, took)
	require.GreaterOrEqual(t, len(said), 4)
	require.Contains(t, said[len(said)-1], "nobody knows")

	stop := make(chan struct{})
	close(stop) // ends it in the first pause
	m = &moody{answers: []any{errors.New("x"), a}}
	platform.AcceptLoop(m, stop, func(net.Conn) { t.Error("it went on") }, nil)
	require.Len(t, m.answers, 1)
}
