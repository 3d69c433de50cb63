// Package guard makes the connections of one endpoint secure: it holds a credential
// (core/secure), dials and accepts in TLS (internal/tlsconn), and says who is at the
// other end. A nil Guard leaves connections as they are, in plaintext.
//
// What is dialled never depends on what the other end answers, so nothing can be
// downgraded: an endpoint with a Guard speaks TLS or not at all.
//
// # Migration
//
// With ModeAllow, connections in plaintext are accepted, too: by their first byte they are
// told apart from those in TLS. Nobody has a name there. Dial is as ever; who dials asks the
// master who has a certificate.
//
// # Strangers
//
// Nothing of a protocol is read or answered before a handshake has succeeded. At
// most maxShaking handshakes of strangers are under way, and the oldest one of the network
// that has most makes room for a newcomer. Networks from which there are connections have
// as many places of their own. Half of the processors compute handshakes at most, for one
// network after the other. Each handshake has a deadline and a bound of its size. A
// stranger gets an alert of TLS. The log has one line for an address, a kind and a minute
// ([Complaints]).
//
// # Plain networks
//
// Where the operator trusts a network, connections for data, shared state and bandwidth
// tests go on in plaintext after the handshake, if both ends find the other one there. The
// handshake itself says so (ALPN), so nobody on the way can ask for it.
//
// # Rotation
//
// A credential file is read again when it changes ([Guard.Watch]). The new credential
// is shown in all handshakes from then on, and no connection ends. An endpoint that has
// dialled makes another handshake in the same connection, so that each end sees the
// certificate that the other one has by then ([Guard.Watch]); the keys of the connection
// are new after it.
//
// # Expiry
//
// A connection ends when the certificate of either end has expired ([News]).
//
// # Revocation
//
// A newer revocation list is in force for all handshakes from then on ([Guard.Watch]).
// Every connection whose handshake has succeeded is known until it is closed, so that
// those of revoked endpoints can be ended ([News]).
package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/tlsconn"
)

// maxShaking is how many handshakes that strangers have begun may be under way, and how
// many that come from networks of members.
const maxShaking = 512

// Modes of Options.
const (
	ModeAuto    = "auto"
	ModeOff     = "off"
	ModeAllow   = "allow"
	ModeRequire = "require"
)

// Options are core.SecurityOptions, and documented there.
type Options struct {
	Mode       string
	File       string
	Credential *secure.Credential
	Join       secure.Join
	Revoked    string
	Identities []secure.Mapping

	PlainNetworks []netip.Prefix

	PCCLListen   string
	PCCLNetworks []netip.Prefix
	PCCLGroups   []uint32
}

// given reports whether there is a credential, or a token that one is granted for.
func (o *Options) given() bool { return o.File != "" || o.Credential != nil || o.Join != "" }

// On reports whether connections are in TLS.
func (o *Options) On() bool {
	return o.Mode == ModeRequire || o.Mode != ModeOff && o.given()
}

// Check refuses what can never work. It reads no file.
func (o *Options) Check(e *bounds.Errors) {
	const mode, file, revoked = bounds.Field("Security.Mode"), bounds.Field("Security.File"), bounds.Field("Security.Revoked")
	const plain, networks = bounds.Field("Security.PlainNetworks"), bounds.Field("Security.PCCLNetworks")
	const listen, groups = bounds.Field("Security.PCCLListen"), bounds.Field("Security.PCCLGroups")
	if !slices.Contains([]string{"", ModeAuto, ModeOff, ModeAllow, ModeRequire}, o.Mode) {
		e.Break("%v %q is not auto, off, allow or require", mode, o.Mode)
	}
	if err := o.Join.Check(); err != nil {
		e.Break("%v: %v", bounds.Field("Security.Join"), err)
	}
	for field, list := range map[bounds.Field][]netip.Prefix{plain: o.PlainNetworks, networks: o.PCCLNetworks} {
		for _, n := range list {
			if !n.IsValid() || n != n.Masked() || n.Bits() == 0 {
				e.Break("%v %v is not a network such as 10.0.0.0/8", field, n)
			}
		}
	}
	if o.PCCLListen != "" {
		switch {
		case !o.On():
			e.Break("%v %q is of no use without a credential (%v): PCCL peers come to the same port as all others then", listen, o.PCCLListen, file)
		case len(o.PCCLNetworks) == 0 || len(o.PCCLGroups) == 0:
			e.Break("%v %q needs %v, from which PCCL peers may come, and %v, which they may enter", listen, o.PCCLListen, networks, groups)
		}
	}
	switch {
	case (o.Mode == ModeRequire || o.Mode == ModeAllow) && !o.given():
		e.Break("%v is %s, and there is no credential (%v): gopccl keys issue makes one", mode, o.Mode, file)
	case o.File != "" && o.Credential != nil:
		e.Break("%v %q is a second credential", file, o.File)
	case len(o.PlainNetworks) > 0 && !o.On():
		e.Break("%v are of no use without a credential (%v)", plain, file)
	case o.Revoked != "" && !o.On():
		e.Break("%v %q is of no use without a credential (%v)", revoked, o.Revoked, file)
	}
}

// Guard secures the connections of one endpoint. Safe for concurrent use.
type Guard struct {
	keeper *secure.Keeper
	pool   *buf.Pool
	list   list
	own    own
	enrols bool
	allows bool // ModeAllow
	now    func() time.Time
	// renewAfter is tlsconn.Renewal.After.
	renewAfter int64
	plain      []netip.Prefix // of PlainNetworks
	pccl       []netip.Prefix // of PCCLNetworks

	shaking *sockets.Crowd // handshakes that others have begun
	turns   turnstile      // of those among them that compute

	mu    sync.Mutex
	open  map[*tlsconn.Conn]opened
	homes map[netip.Prefix]int // networks, and how many of open are with them

	turned struct { // when age saw another credential of this end. Guarded by mu
		to *secure.Credential
		at time.Time
	}
}

const opLoad = "load credential"

// New reads the files that o names. It returns nil where connections are in plaintext.
// is says what the endpoint is to be; 0: anything. Errors are *errs.Error.
func New(o Options, is secure.Role) (*Guard, error) { return at(o, is, time.Now) }

// at is New by a clock.
func at(o Options, is secure.Role, now func() time.Time) (*Guard, error) {
	if !o.On() {
		return nil, nil
	}
	c := o.Credential
	if c == nil && o.File == "" {
		return nil, errs.New(errs.InvalidConfig, opLoad, errors.New("a join token is not a credential, and none was granted for it")).
			WithHint("peers join with a token; a master needs a credential (gopccl keys issue --role master)")
	}
	if c == nil {
		var err error
		if c, err = secure.LoadCredential(o.File, secure.LoadOptions{}); err != nil {
			return nil, err
		}
	}
	if err := usable(c, is, now()); err != nil {
		return nil, err
	}
	opt := secure.TrustOptions{Credential: c, Identities: o.Identities, Now: now}
	g := &Guard{now: now, pool: buf.NewPool(0), list: list{path: o.Revoked, opt: opt}, allows: o.Mode == ModeAllow, plain: o.PlainNetworks, pccl: o.PCCLNetworks, open: map[*tlsconn.Conn]opened{}, homes: map[netip.Prefix]int{}}
	g.shaking, g.turns.free = sockets.NewCrowd(maxShaking, g.Home), max(1, runtime.GOMAXPROCS(0)/2)
	if o.Credential == nil {
		g.own = own{path: o.File, is: is}
	}
	if o.Revoked != "" {
		l, err := secure.LoadList(o.Revoked)
		if err != nil {
			return nil, errs.New(errs.CorruptFile, opRead, err)
		}
		opt.Lists, g.list.read = []*secure.List{l}, []*secure.List{l}
	}
	t, err := secure.NewTrust(opt)
	if err != nil {
		return nil, err
	}
	g.keeper = secure.NewKeeper(t)
	return g, nil
}

// usable says early what the other ends would refuse.
func usable(c *secure.Credential, is secure.Role, now time.Time) error {
	leaf := c.Leaf()
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return errs.New(errs.InvalidConfig, opLoad, fmt.Errorf("%v is valid from %s to %s, and the clock of this machine says %s", c,
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))).
			WithHint("set the clock, or issue another one (gopccl keys issue)")
	}
	id, err := c.Identity()
	if err != nil {
		return nil // of an authority that is not ours: others have mappings for it
	}
	if is == 0 || id.Role == is || is == secure.Master && id.Role == secure.Peer && id.Lead {
		return nil
	}
	return errs.New(errs.InvalidConfig, opLoad, fmt.Errorf("%v does not allow to be a %v", c, is)).
		WithHint(fmt.Sprintf("issue one with gopccl keys issue --role %v", is))
}

// Dial makes a connection that was dialled secure, if the other end is what want
// says. If it fails, conn is closed.
func (g *Guard) Dial(ctx context.Context, conn net.Conn, want secure.Want) (net.Conn, error) {
	if g == nil {
		return conn, nil
	}
	want.Clear = g.trusted(conn.RemoteAddr())
	trust := g.keeper.Trust()
	c := tlsconn.Client(conn, trust.Client(want), g.pool)
	c.OnClose(func() { g.forget(c) })
	if err := c.Handshake(ctx); err != nil {
		c.Close()
		return nil, explain(err)
	}
	want.Server = true
	_, err := g.admit(c, want, trust.Credential())
	if _, clear := secure.Agreed(c.ConnectionState()); clear && err == nil {
		err = explain(c.Clear(ctx, true))
	} else if err == nil {
		g.renewable(c, want, true)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// trusted reports whether connections with an address go on in plaintext, if the other
// end has it so, too.
func (g *Guard) trusted(remote net.Addr) bool {
	t, ok := remote.(*net.TCPAddr)
	return ok && within(t.AddrPort().Addr(), g.plain)
}

func within(addr netip.Addr, list []netip.Prefix) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(list, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// MayBePCCL reports whether PCCL peers may come from an address.
func (g *Guard) MayBePCCL(addr netip.Addr) bool { return within(addr, g.pccl) }

// Allows reports whether connections are accepted in plaintext, too.
func (g *Guard) Allows() bool { return g != nil && g.allows }

// Remind calls say now and once a minute, as long as connections are accepted in plaintext,
// too, until ctx ends.
func (g *Guard) Remind(ctx context.Context, say func()) {
	if !g.Allows() {
		return
	}
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		say()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// explain is Explain for a connection of the run.
func explain(err error) error {
	return Explain(err, "a gopccl endpoint", "it refused the certificate of this end")
}

// Explain says what an error of a connection in TLS means: what is the other end if all is
// well, refusal is what an alert of it says.
func Explain(err error, what, refusal string) error {
	var header tls.RecordHeaderError
	var refused *secure.Refusal
	switch {
	case errors.As(err, &refused):
		return err
	case errors.As(err, &header):
		return fmt.Errorf("it does not speak TLS: it has no credential, or is not %s (%w)", what, err)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return fmt.Errorf("it closed the connection: it may have no credential, its log says why (%w)", err)
	case Remote(err):
		return fmt.Errorf("%s; its log says why (%w)", refusal, err)
	}
	return err
}

// Enrol has connections that are accepted for control taken for enrolment and renewal, too.
// It comes before anything is accepted.
func (g *Guard) Enrol() { g.enrols = true }

// Newcomer returns a connection that Greet has taken as one for enrolment, and nil for
// every other one. Nobody knows yet who is at its other end.
func Newcomer(conn net.Conn) *tlsconn.Conn {
	if c, ok := conn.(*tlsconn.Conn); ok && c.ConnectionState().NegotiatedProtocol == secure.Enrolment.String() {
		return c
	}
	return nil
}

// Plain reports whether a connection that Wrap has returned is not in TLS, after Meet: it
// has come so (Allows), or is on a plain network.
func Plain(conn net.Conn) bool {
	c, ok := conn.(*tlsconn.Conn)
	return ok && c.InClear()
}

// Remote reports whether err is an alert of the other end.
func Remote(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// Wrap returns a connection that was accepted for some purposes as one whose handshake
// is still to come (Greet, Meet). It reads and writes nothing, and leaves a connection
// that it has returned as it is.
func (g *Guard) Wrap(conn net.Conn, purposes ...secure.Purpose) net.Conn {
	if _, wrapped := conn.(*tlsconn.Conn); g == nil || wrapped {
		return conn
	}
	if g.enrols && slices.Contains(purposes, secure.Control) {
		purposes = append(slices.Clone(purposes), secure.Enrolment, secure.Renewal)
	}
	c := tlsconn.Server(conn, g.keeper.ServerClear(g.trusted, purposes...), g.pool)
	c.OnClose(func() { g.forget(c) })
	return c
}

// Greet is Meet of a connection that is for one purpose.
func (g *Guard) Greet(ctx context.Context, conn net.Conn, want secure.Want) (secure.Identity, error) {
	_, id, err := g.Meet(ctx, conn, func(secure.Purpose) secure.Want { return want })
	return id, err
}

// Meet makes the handshake of a connection that Wrap has returned, unless it has been
// made, and says what it is for, and who is at the other end; of a Newcomer it says
// nothing, nor of a connection in plaintext (Allows). want says what the certificate has to
// say for a purpose. It ends with ctx, or with the deadlines of conn. The caller closes conn
// if it fails.
func (g *Guard) Meet(ctx context.Context, conn net.Conn, want func(secure.Purpose) secure.Want) (p secure.Purpose, id secure.Identity, err error) {
	c, ok := conn.(*tlsconn.Conn)
	if g == nil || !ok {
		return 0, secure.Identity{}, nil
	}
	if met, ok := g.met(c); ok {
		return met.want.Purpose, met.id, nil
	}
	if g.allows && c.InClear() {
		return 0, secure.Identity{}, nil
	}
	if err := g.shake(ctx, c); err != nil {
		return 0, secure.Identity{}, brief{explain(err)}
	}
	if c.InClear() {
		return 0, secure.Identity{}, nil
	}
	if Newcomer(c) != nil {
		return secure.Enrolment, secure.Identity{}, nil
	}
	p, clear := secure.Agreed(c.ConnectionState())
	is := want(p)
	if id, err = g.admit(c, is, nil); err == nil && clear {
		err = explain(c.Clear(ctx, false))
	} else if err == nil {
		g.renewable(c, is, false)
	}
	if err != nil {
		return 0, secure.Identity{}, brief{err}
	}
	return p, id, nil
}

// maxReason bounds what is said of a stranger: its certificates are in the errors of
// crypto/x509.
const maxReason = 400

// brief is an error whose text is bounded.
type brief struct{ error }

func (b brief) Error() string {
	text := b.error.Error()
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + " ..."
	}
	return text
}

func (b brief) Unwrap() error { return b.error }

var errRoom = errors.New("too many handshakes at a time: it made room for another one")

// shake makes a handshake that the other end has begun, if it has begun one.
func (g *Guard) shake(ctx context.Context, c *tlsconn.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from := sockets.Network(c.RemoteAddr())
	place := g.shaking.Enter(c.RemoteAddr(), cancel)
	c.Bound(func() error { return g.turns.enter(ctx, from) }, g.turns.leave)
	inTLS, err := true, error(nil)
	if g.allows {
		inTLS, err = c.Begins(ctx)
	}
	if inTLS && err == nil {
		err = c.Handshake(ctx)
	}
	if place.Leave() {
		return errRoom
	}
	return err
}

// Home reports whether there are connections with endpoints of the run in a network.
func (g *Guard) Home(from netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.homes[from] > 0
}

// settle counts a connection that is known, or was (-1). g.mu is held.
func (g *Guard) settle(c *tlsconn.Conn, by int) {
	from := sockets.Network(c.RemoteAddr())
	if g.homes[from] += by; g.homes[from] <= 0 {
		delete(g.homes, from)
	}
}
