package platform

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"github.com/gopccl/gopccl/core/errs"
)

// Listen opens a TCP listener on addr ("host:port"; "tcp", "tcp4" or "tcp6").
// A port in TIME_WAIT can be taken again at once, and a port that another
// process listens on can be taken on no system. (The option that allows the
// first on Unix would allow stealing a port on Windows, where the opposite
// option has to be set.)
func Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	lc := net.ListenConfig{
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if cerr := c.Control(func(fd uintptr) { err = native.PrepareListener(fd) }); cerr != nil {
				return cerr
			}
			return ignoreUnsupported(err)
		},
	}
	return lc.Listen(ctx, network, addr)
}

// ListenFrom opens a listener on the first free port from addr's port upwards
// (control spec, section 1.1), trying at most tries ports. Port 0 lets the
// system choose. An error other than a taken port ends the search at once:
// the next port would meet the same one.
func ListenFrom(ctx context.Context, network string, addr netip.AddrPort, tries int) (net.Listener, error) {
	port, last := int(addr.Port()), error(nil)
	for i := 0; i < tries && port+i <= 65535; i++ {
		at := netip.AddrPortFrom(addr.Addr(), uint16(port+i))
		ln, err := Listen(ctx, network, at.String())
		if err == nil {
			return ln, nil
		}
		last = err
		// Windows reports a port that another program holds for itself, or
		// that is reserved, as a matter of permission.
		if c := Classify(err); c != ClassAddrInUse && c != ClassPermission {
			break
		}
		if port == 0 {
			break
		}
	}
	e := errs.New(errs.InvalidUsage, "listen", last).WithPeer(addr.String())
	return nil, e.WithHint("free the ports or choose another first port")
}
