package platform

import (
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// CongestionAuto lets TuneP2P choose: cubic where the other end is on this
// host or very near, else what the system uses. Controls that model the path
// (BBR) pace their packets, which halves the rate over loopback and gains
// nothing where there is no queue to avoid.
const CongestionAuto = "auto"

// nearRTT is the round trip time below which CongestionAuto takes the other
// end for a neighbour in the same room.
const nearRTT = 2 * time.Millisecond

// Options of a peer to peer connection. The zero value of a field takes the
// default; a negative duration or count switches the option off.
type Options struct {
	// UserTimeout bounds how long sent data may stay unacknowledged before
	// the system breaks the connection. Default 20 s.
	UserTimeout time.Duration
	// RetryWait and four round trips bound how long the system waits before it sends
	// again what is not acknowledged. Without a bound each wait is twice as long as the
	// one before: a way that was gone for 5 s is used again after 9, and with round trips of
	// 100 ms one that loses half of what is sent has five tries in 8 s instead of seven.
	// Default 1 s; without a UserTimeout none, because Linux derives one from it then.
	RetryWait time.Duration
	// KeepAliveIdle, KeepAliveInterval and KeepAliveCount find a dead end of
	// a silent connection. Defaults: half and an eighth of UserTimeout, 5. With a
	// UserTimeout Linux asks for no count: the first probe without an answer after
	// that time ends the connection, so several have to come before. Without it
	// (WithoutUserTimeout) the count ends it.
	KeepAliveIdle     time.Duration
	KeepAliveInterval time.Duration
	KeepAliveCount    int
	// Congestion is the name of a congestion control, "" for the system's own
	// or CongestionAuto.
	Congestion string
}

func (o Options) withDefaults() Options {
	if o.UserTimeout == 0 {
		o.UserTimeout = 20 * time.Second
	}
	switch {
	case o.RetryWait != 0:
	case o.UserTimeout < 0:
		o.RetryWait = -1
	default:
		o.RetryWait = time.Second
	}
	bound := o.UserTimeout
	if bound < 0 {
		bound = 20 * time.Second
	}
	if o.KeepAliveIdle == 0 {
		o.KeepAliveIdle = max(bound/2, time.Second)
	}
	if o.KeepAliveInterval == 0 {
		o.KeepAliveInterval = max(bound/8, time.Second)
	}
	if o.KeepAliveCount == 0 {
		o.KeepAliveCount = 5
	}
	return o
}

const (
	// patience is how many times the bound a connection on which nothing is to be acknowledged may be silent
	// (Options.Patient).
	patience = 3
	// mostProbes is what Linux takes.
	mostProbes = 127
)

// Patient returns o for an end that has nothing to send now, if somebody misses the other end's machine when that is
// gone. It is asked as early and as often as with o, and may be silent for three times the UserTimeout. On a thin way
// that other connections fill, each of the few probes that fit into UserTimeout may be lost.
func (o Options) Patient() Options {
	o = o.withDefaults()
	if o.UserTimeout < 0 || o.KeepAliveIdle < 0 {
		return o
	}
	whole := func(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) } // as systems have it
	o.UserTimeout *= patience
	o.KeepAliveCount = max(o.KeepAliveCount, int((o.UserTimeout-whole(o.KeepAliveIdle))/whole(o.KeepAliveInterval)))
	o.KeepAliveCount = min(o.KeepAliveCount, mostProbes)
	return o
}

// TuneMaster prepares either end of a connection between peer and master:
// small packets leave at once (quirk Q1), a vanished end is noticed within
// about 20 s. A conn that is not a TCP connection is left alone.
func TuneMaster(conn net.Conn) error {
	return TuneP2P(conn, Options{})
}

// TuneP2P prepares a connection between peers as o says. Where the system
// lacks an option it is left out; only a congestion control named by the
// caller has to exist. A conn that is not a TCP connection is left alone.
// Errors are *errs.Error with code InvalidConfig (congestion control) or
// Internal.
func TuneP2P(conn net.Conn, o Options) error {
	tcp := tcpOf(conn)
	if tcp == nil {
		return nil
	}
	o = o.withDefaults()
	fail := func(what string, err error) error {
		return errs.New(errs.Internal, "tune socket", err).WithPhase(what).WithPeer(remote(conn))
	}
	if err := tcp.SetNoDelay(true); err != nil {
		return fail("no delay", err)
	}
	if err := keepAlive(tcp, o); err != nil {
		return fail("keepalive", err)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return fail("descriptor", err)
	}
	if o.UserTimeout > 0 {
		if err := control(raw, func(fd uintptr) error { return native.SetUserTimeout(fd, o.UserTimeout) }); err != nil {
			return fail("user timeout", err)
		}
	}
	if o.RetryWait > 0 {
		info, _ := TCPInfo(tcp)
		if err := control(raw, func(fd uintptr) error { return native.SetRetryWait(fd, o.RetryWait+4*info.RTT) }); err != nil {
			return fail("time between retries", err)
		}
	}
	switch o.Congestion {
	case "":
	case CongestionAuto:
		if near(tcp) {
			// Best effort: a kernel without cubic keeps what it has.
			_ = control(raw, func(fd uintptr) error { return native.SetCongestion(fd, "cubic") })
		}
	default:
		return SetCongestion(tcp, o.Congestion)
	}
	return nil
}

// KeepAlive has the system ask whether the other end of conn lives while it is silent, as often as o says. A conn that
// is not a TCP connection is left alone. Errors are *errs.Error with code Internal.
func KeepAlive(conn net.Conn, o Options) error {
	tcp := tcpOf(conn)
	if tcp == nil {
		return nil
	}
	if err := keepAlive(tcp, o.withDefaults()); err != nil {
		return errs.New(errs.Internal, "tune socket", err).WithPhase("keepalive").WithPeer(remote(conn))
	}
	return nil
}

func keepAlive(tcp *net.TCPConn, o Options) error {
	if o.KeepAliveIdle <= 0 {
		return tcp.SetKeepAlive(false)
	}
	err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: o.KeepAliveIdle, Interval: o.KeepAliveInterval, Count: o.KeepAliveCount,
	})
	if Classify(err) == ClassUnsupported {
		// Without the times (Windows before 2017, Wine) the system's own rule.
		err = tcp.SetKeepAlive(true)
	}
	return err
}

// LimitUnsent bounds what the system takes from writers of conn before it can
// send it, so that a slow connection makes its writer wait instead of piling up
// megabytes. Where the system has no such bound, and for a conn that is not a TCP
// connection, it does nothing. Errors are *errs.Error with code Internal.
func LimitUnsent(conn net.Conn, bytes int) error {
	tcp := tcpOf(conn)
	if tcp == nil {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err == nil {
		err = control(raw, func(fd uintptr) error { return native.SetUnsentLimit(fd, bytes) })
	}
	if err != nil {
		return errs.New(errs.Internal, "tune socket", err).WithPhase("unsent bytes").WithPeer(remote(conn))
	}
	return nil
}

// near reports whether the other end is on this host or less than nearRTT away.
func near(tcp *net.TCPConn) bool {
	if sameHost(tcp.LocalAddr(), tcp.RemoteAddr()) {
		return true
	}
	info, ok := TCPInfo(tcp)
	return ok && info.RTT > 0 && info.RTT < nearRTT
}

// tcpOf returns the TCP connection that conn is, or that is inside of it; nil:
// none.
func tcpOf(conn net.Conn) *net.TCPConn {
	switch c := conn.(type) {
	case *net.TCPConn:
		return c
	case interface{ TCP() *net.TCPConn }:
		return c.TCP()
	}
	return nil
}

// SameHost reports whether a connection stays on this host.
func SameHost(conn net.Conn) bool { return sameHost(conn.LocalAddr(), conn.RemoteAddr()) }

// sameHost reports whether a connection between the two addresses stays on
// this host: loopback, or both ends the same address.
func sameHost(local, remote net.Addr) bool {
	l, lok := local.(*net.TCPAddr)
	r, rok := remote.(*net.TCPAddr)
	if !lok || !rok {
		return false
	}
	la, lok := netip.AddrFromSlice(l.IP)
	ra, rok := netip.AddrFromSlice(r.IP)
	if !lok || !rok {
		return false
	}
	return ra.Unmap().IsLoopback() || la.Unmap() == ra.Unmap()
}

// QuickAcker returns a function that re-arms the immediate acknowledgement of
// received data, without allocating. Call it after every read from a PCCL
// master, which sends small packets with Nagle's algorithm on (quirk Q1). It
// does nothing where the system has no such option or conn is not a TCP
// connection, and is never nil.
func QuickAcker(conn net.Conn) func() {
	tcp := tcpOf(conn)
	if tcp == nil {
		return func() {}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return func() {}
	}
	// An error means that the connection is closed, which its reader learns
	// on its own, or that the option does not exist.
	set := func(fd uintptr) { _ = native.SetQuickAck(fd) }
	return func() { _ = raw.Control(set) }
}

// Congestion returns the name of the congestion control that conn uses, ""
// where the system does not tell.
func Congestion(conn net.Conn) string {
	tcp := tcpOf(conn)
	if tcp == nil {
		return ""
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return ""
	}
	var name string
	if err := rawControl(raw, func(fd uintptr) (err error) {
		name, err = native.Congestion(fd)
		return err
	}); err != nil {
		return ""
	}
	return name
}

// control runs f on the descriptor and forgives a missing option.
func control(raw syscall.RawConn, f func(fd uintptr) error) error {
	return ignoreUnsupported(rawControl(raw, f))
}

func rawControl(raw syscall.RawConn, f func(fd uintptr) error) error {
	var err error
	if cerr := raw.Control(func(fd uintptr) { err = f(fd) }); cerr != nil {
		return cerr
	}
	return err
}

func ignoreUnsupported(err error) error {
	if Classify(err) == ClassUnsupported {
		return nil
	}
	return err
}

func remote(conn net.Conn) string {
	if a := conn.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}
