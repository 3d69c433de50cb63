package platform

import (
	"errors"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// Fields says which fields of an Info the system has told. Other
// fields are zero, and mean nothing.
type Fields uint32

const (
	HasRTT Fields = 1 << iota // RTT and RTTVar
	HasMinRTT
	HasTimeout
	HasWindow // Window, and Threshold where there is one
	HasInFlight
	HasUnsent
	HasBuffered
	HasLost
	HasAcked // Acked and Sacked
	HasSent
	HasResent
	HasRetries
	HasDelivery
	HasPacing
	HasLimits // Busy, PeerLimited and BufferLimited
	HasCame   // Came, CameMSS and Received
	HasPeerWindow
	HasAside
	HasHeard // Heard and Probes
)

// Has reports whether all of the given fields are known.
func (f Fields) Has(all Fields) bool { return f&all == all }

// Info is what the system knows of a TCP connection, as its sender but for
// Came, Aside and Received.
type Info struct {
	Known Fields
	// RTT is the smoothed round trip time, RTTVar its deviation.
	RTT, RTTVar time.Duration
	// MinRTT is the least round trip time of some minutes (Linux: 5), or of the
	// connection's life.
	MinRTT time.Duration
	// Timeout is how long the system waits for an acknowledgement.
	Timeout time.Duration
	// MSS is the payload of a full segment, in bytes.
	MSS int
	// Window is the congestion window, Threshold where slow start ends, in bytes.
	Window, Threshold int
	// PeerWindow is what the other end takes beyond what it has acknowledged, in bytes.
	PeerWindow int
	// InFlight is sent and not acknowledged, Unsent is written and not sent,
	// Buffered is both, in bytes.
	InFlight, Unsent, Buffered int
	// Lost is what is thought lost, also while it is sent again, Sacked what the other
	// end has behind a gap, in bytes.
	Lost, Sacked int
	// Acked, Sent and Resent count bytes since the connection began; Sent has
	// those that were sent again, Resent has only these.
	Acked, Sent, Resent uint64
	// Retries counts the timeouts in a row of what is not acknowledged.
	Retries int
	// Heard is for how long nothing has come, neither data nor an acknowledgement. Probes counts the questions in a
	// row without an answer, of a window that is shut, or at rest.
	Heard  time.Duration
	Probes int
	// DeliveryRate is the rate of one flight, PacingRate the one at which the
	// system lets segments go, in bytes per second.
	DeliveryRate, PacingRate uint64
	// Busy is how long there was something to send, PeerLimited and BufferLimited
	// how much of that the peer's window and the send buffer were too small.
	Busy, PeerLimited, BufferLimited time.Duration
	// Came counts segments with data that came in since the connection began, modulo
	// 2^32: also those behind a gap, which nobody can read yet, and those that came
	// twice. Where a network device merges several, as that of a virtual machine does, they
	// count as one. Aside counts those of them that came behind a gap. CameMSS is the payload of a
	// full one, in bytes. Received counts bytes that came in order.
	Came     uint32
	Aside    uint32
	CameMSS  int
	Received uint64
}

// TCPInfo returns what the system knows of conn; false: nothing, or conn is not
// a TCP connection. Use Sampler to ask often.
func TCPInfo(conn net.Conn) (info Info, ok bool) {
	ok = Sampler(conn)(&info)
	return info, ok
}

// Sampler returns a function that does TCPInfo for conn: it fills in an Info and
// reports whether the system told anything. One goroutine at a time calls it. On
// Linux and Windows it does not allocate.
func Sampler(conn net.Conn) func(*Info) bool {
	tcp := tcpOf(conn)
	if tcp == nil {
		return func(info *Info) bool { *info = Info{}; return false }
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return func(info *Info) bool { *info = Info{}; return false }
	}
	var into Info
	var failed error
	var scratch infoScratch
	get := func(fd uintptr) { failed = readInfo(fd, &scratch, &into) }
	return func(info *Info) bool {
		into, failed = Info{}, nil
		if err := raw.Control(get); err != nil || failed != nil {
			*info = Info{}
			return false
		}
		*info = into
		return true
	}
}

// SetPacing lets the system send at most bytesPerSecond of payload over conn, in
// even steps instead of bursts; 0: no bound any more. It returns false where the
// system cannot, or conn is not a TCP connection: then the sender has to hold back.
// Errors are *errs.Error with code Internal.
func SetPacing(conn net.Conn, bytesPerSecond uint64) (bool, error) {
	tcp := tcpOf(conn)
	if tcp == nil {
		return false, nil
	}
	raw, err := tcp.SyscallConn()
	if err == nil {
		err = rawControl(raw, func(fd uintptr) error { return native.SetPacing(fd, bytesPerSecond) })
	}
	switch {
	case err == nil:
		return true, nil
	case Classify(err) == ClassUnsupported:
		return false, nil
	}
	return false, errs.New(errs.Internal, "tune socket", err).WithPhase("pacing").WithPeer(remote(conn))
}

// SpreadWindows has the system let a window of conn leave in even steps over most of a round trip, or half of one
// where windows still grow fast, instead of at once. That stays so: SetPacing changes the bound only. It returns
// false where the system cannot, or conn is not a TCP connection. Errors are *errs.Error with code Internal.
func SpreadWindows(conn net.Conn) (bool, error) { return SetPacing(conn, mostPacing) }

// mostPacing is the highest bound in 32 bits, 34 Gbit/s. Linux paces a connection that has any, at 1.2 windows in a round
// trip, and 2 while the window is below half of the slow-start threshold (net.ipv4.tcp_pacing_ca_ratio and
// tcp_pacing_ss_ratio).
const mostPacing = 1<<32 - 2

// Unsent returns how many bytes were written to conn that the system has not
// sent yet; false: it does not tell.
func Unsent(conn net.Conn) (int, bool) {
	tcp := tcpOf(conn)
	if tcp == nil {
		return 0, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, false
	}
	var n int
	err = rawControl(raw, func(fd uintptr) (err error) {
		n, err = native.Unsent(fd)
		return err
	})
	return n, err == nil
}

// SetCongestion makes conn use the congestion control of that name. Errors are
// *errs.Error with code InvalidConfig: the system has no such control, does not
// allow this process to take it, or conn is not a TCP connection.
func SetCongestion(conn net.Conn, name string) error {
	err := errors.ErrUnsupported
	if tcp := tcpOf(conn); tcp != nil {
		raw, rerr := tcp.SyscallConn()
		if err = rerr; err == nil {
			err = rawControl(raw, func(fd uintptr) error { return native.SetCongestion(fd, name) })
		}
	}
	if err != nil {
		return errs.New(errs.InvalidConfig, "tune socket", err).WithPhase("congestion control " + name).
			WithPeer(remote(conn)).WithHint("name a control that this system has loaded and allows, or auto")
	}
	return nil
}
