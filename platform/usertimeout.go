package platform

import (
	"net"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// WithoutUserTimeout takes the bound of the system off a connection that TuneP2P has prepared with o, for an
// owner who sees by Info.Heard whether anything is acknowledged. The system goes on trying for o.UserTimeout at
// least, and for goOn if it tries about as often then. false: nothing was changed.
//
// Linux counts the time for which the window of the other end is shut, too, though that end answers whenever it is
// asked (tcp_probe_timer): a reader that waits for slower ones, for longer than the bound, breaks a healthy
// connection. Errors are *errs.Error with code Internal.
func WithoutUserTimeout(conn net.Conn, o Options, goOn time.Duration) (bool, error) {
	tcp := tcpOf(conn)
	if o = o.withDefaults(); tcp == nil || o.UserTimeout < 0 {
		return false, nil
	}
	raw, err := tcp.SyscallConn()
	done := false
	if err == nil {
		info, _ := TCPInfo(tcp)
		err = control(raw, func(fd uintptr) (err error) {
			done, err = withoutUserTimeout(fd, o, goOn, info)
			return err
		})
	}
	if err != nil {
		return false, errs.New(errs.Internal, "tune socket", err).WithPhase("user timeout").WithPeer(remote(conn))
	}
	return done, nil
}
