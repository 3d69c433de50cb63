package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/mesh"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/wire"
)

// names is who the members of the group are, as the master has told, and what makes
// connections with them secure. It implements mesh.Secure.
type names struct {
	guard   *guard.Guard // nil: in plaintext, and nothing here is asked
	group   uint32
	bound   time.Duration // of a handshake
	strange guard.Complaints
	plain   bool        // members may have no certificate, and so no name, and speak plaintext
	open    bool        // ... from everywhere, and not only where the master tells of one
	lists   chan string // the last revocation lists that the master has told, in DER

	mu     sync.Mutex
	of     map[wire.UUID]string        // "": it has no certificate
	bare   map[netip.Addr]bool         // where such members are
	called map[string]string           // what they are called, by the texts of their uuids
	state  map[netip.AddrPort][]string // who say that they hand out shared state there
	news   chan struct{}               // closed when the master tells the names again; nil: nobody waits
}

// learn takes over what the master has told.
func (n *names) learn(members []wire.NamedMember) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.of
	n.of, n.state, n.bare = make(map[wire.UUID]string, len(members)), make(map[netip.AddrPort][]string, len(members)), map[netip.Addr]bool{}
	for _, m := range members {
		if m.Name == "" {
			n.bare[m.State.Addr().Unmap()] = true
		}
		n.of[m.UUID], n.state[m.State] = m.Name, append(n.state[m.State], m.Name)
	}
	n.called = callings(before, n.of)
	if n.news != nil {
		close(n.news)
		n.news = nil
	}
}

// unnamed reports whether the master has told that a member has no certificate.
func (n *names) unnamed(peer wire.UUID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, told := n.of[peer]
	return told && name == ""
}

// bares waits until the master has told of a member without a certificate where a connection
// in plaintext comes from. It may have told that peer of a round before this one.
func (n *names) bares(ctx context.Context, conn net.Conn) error {
	if n.open {
		return nil
	}
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	for {
		n.mu.Lock()
		known := n.bare[from.Addr().Unmap()]
		n.mu.Unlock()
		if known {
			return nil
		}
		_, news := n.nameOf(wire.UUID{})
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("it speaks plaintext, and the master has told of no PCCL peer in group %d at %v", n.group, from.Addr())
		}
	}
}

// nameOf returns the name of a member, "" if the master has told none, and a channel
// that is closed when it tells anew.
func (n *names) nameOf(peer wire.UUID) (string, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.news == nil {
		n.news = make(chan struct{})
	}
	return n.of[peer], n.news
}

// want is what the certificate of another peer has to say.
func (n *names) want(p secure.Purpose, name string) secure.Want {
	w := secure.Want{Purpose: p, Name: name}
	if p != secure.Bench { // bandwidths are measured across groups
		w.Group = &n.group
	}
	return w
}

// Dial makes a connection to a peer secure. The peer of a trial need not be a member
// yet; nothing but that it answers comes of it.
func (n *names) Dial(ctx context.Context, conn net.Conn, peer wire.UUID, trial bool) (net.Conn, error) {
	name := ""
	switch {
	case n.unnamed(peer) && n.plain:
		return conn, nil
	case n.unnamed(peer):
		conn.Close()
		return nil, fmt.Errorf("peer %s %w", peer.Short(), n.noPlaintext())
	}
	if !trial {
		if name, _ = n.nameOf(peer); name == "" {
			conn.Close()
			return nil, fmt.Errorf("the master has told no name of peer %s", peer.Short())
		}
	}
	return n.guard.Dial(ctx, conn, n.want(secure.Data, name))
}

// noPlaintext says of a member without a certificate why nothing is dialled in plaintext.
func (n *names) noPlaintext() error {
	return fmt.Errorf("has no certificate, and this peer dials nothing in plaintext: for a PCCL peer name group %d in security.pccl_groups of this peer; give a gopccl peer a credential, or set security.mode of this peer to allow", n.group)
}

// Wrap returns an accepted connection as one whose handshake is to come.
func (n *names) Wrap(conn net.Conn) net.Conn { return n.wrap(conn, secure.Data) }

// wrap is Wrap for a purpose. Where members may speak plaintext, the port has made the handshake of
// every connection that has one.
func (n *names) wrap(conn net.Conn, p secure.Purpose) net.Conn {
	if n.plain {
		return conn
	}
	return n.guard.Wrap(conn, p)
}

// Greet makes the handshake of an accepted connection, and returns the name at the
// other end.
func (n *names) Greet(ctx context.Context, conn net.Conn) (string, error) {
	id, err := n.guard.Greet(ctx, conn, n.want(secure.Data, ""))
	return id.Name, err
}

// complain reports whether the log may have a line of a kind about what comes from
// remote.
func (n *names) complain(remote net.Addr, kind string) (due bool, more int) {
	return n.strange.Due(remote, kind, time.Now())
}

// Is reports an error if the peer at the other end, name, is not the one that it says
// it is. It may have been told of a round before this one, so it waits until ctx ends
// for the master to name it.
func (n *names) Is(ctx context.Context, name string, peer wire.UUID) error {
	for {
		told, news := n.nameOf(peer)
		switch bare := n.unnamed(peer); {
		case told == name && (name != "" || bare):
			return nil
		case told != "" || bare:
			return another(name, peer, told)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("%s says that it is peer %s, of whom the master has told nothing", whoseName(name), peer.Short())
		}
	}
}

// meets makes the handshake of a connection that was accepted for all purposes, and
// says which it is for. Its server greets it again, and hears the name.
func (n *names) meets(ctx context.Context, conn net.Conn) (net.Conn, wire.Proto, error) {
	conn = n.guard.Wrap(conn, secure.Data, secure.State, secure.Bench)
	p, _, err := n.guard.Meet(ctx, conn, func(p secure.Purpose) secure.Want { return n.want(p, "") })
	if err != nil {
		conn.Close()
	}
	return conn, map[secure.Purpose]wire.Proto{secure.Data: wire.P2P, secure.State: wire.C2S, secure.Bench: wire.C2B}[p], err
}

// port returns the port of a peer.
func (n *names) port(log *slog.Logger) *sockets.Port {
	cfg := sockets.PortConfig{Log: log, Bound: n.bound, Complain: n.complain}
	if n.guard != nil {
		cfg.Meet, cfg.Home = n.meets, n.guard.Home
		if n.plain {
			cfg.Plain = n.bares
		}
	}
	return sockets.NewPort(cfg)
}

// mesh returns what makes P2P connections secure; nil in plaintext.
func (n *names) mesh() mesh.Secure {
	if n.guard == nil {
		return nil
	}
	return n
}

// server returns what makes connections secure that are accepted for p.
func (n *names) server(p secure.Purpose) sockets.Security {
	if n.guard == nil {
		return sockets.Security{Complain: n.complain}
	}
	return sockets.Security{
		Wrap: func(conn net.Conn) net.Conn { return n.wrap(conn, p) },
		Greet: func(conn net.Conn) (string, error) {
			ctx, cancel := context.WithTimeout(context.Background(), n.bound)
			defer cancel()
			id, err := n.guard.Greet(ctx, conn, n.want(p, ""))
			if err == nil && p == secure.State && !n.member(id.Name) {
				err = fmt.Errorf("%v is not a member of the group: it gets no shared state", id)
			}
			return id.Name, err
		},
		Is:       n.known,
		Complain: n.complain,
	}
}

// member reports whether the master has told a member of that name.
func (n *names) member(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, told := range n.of {
		if told == name {
			return true
		}
	}
	return false
}

// known reports an error if the master has told another name of a peer. It has told
// none of those in other groups.
func (n *names) known(name string, peer wire.UUID) error {
	if told, _ := n.nameOf(peer); told != name && (told != "" || n.unnamed(peer)) {
		return another(name, peer, told)
	}
	return nil
}

func another(name string, peer wire.UUID, told string) error {
	if told == "" {
		return fmt.Errorf("%s says that it is peer %s, which has no certificate", whoseName(name), peer.Short())
	}
	return fmt.Errorf("%s says that it is peer %s, whose name is %s", whoseName(name), peer.Short(), told)
}

func whoseName(name string) string {
	if name == "" {
		return "an endpoint without a certificate"
	}
	return name
}

// dialler opens connections to other ports of peers.
type dialler func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

// fetching returns dial for the shared state of members.
// What a member says of itself may be where another one is, so any of those
// that say so may be there: they are all members, and what they send is hashed.
func (n *names) fetching(dial dialler) dialler {
	return n.secured(dial, secure.State, func(addr netip.AddrPort) []string {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.state[addr]
	})
}

// probing returns dial for the benchmark of a peer. One of another group has no name
// here.
func (n *names) probing(dial dialler, who func(netip.AddrPort) wire.UUID) dialler {
	return n.secured(dial, secure.Bench, func(addr netip.AddrPort) []string {
		if name, _ := n.nameOf(who(addr)); name != "" || n.unnamed(who(addr)) {
			return []string{name}
		}
		return nil
	})
}

func (n *names) secured(dial dialler, p secure.Purpose, who func(netip.AddrPort) []string) dialler {
	if n.guard == nil {
		return dial
	}
	return func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		names := who(addr)
		if len(names) == 0 && p == secure.State {
			return nil, fmt.Errorf("the master has told no member that hands out shared state at %v", addr)
		}
		// Of what members say of themselves, a name counts more than none.
		named := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
		bare := len(names) > 0 && len(named) == 0
		if names = named; bare && !n.plain {
			return nil, fmt.Errorf("the peer at %v %w", addr, n.noPlaintext())
		}
		conn, err := dial(ctx, addr)
		if err != nil || bare {
			return conn, err
		}
		ctx, cancel := context.WithTimeout(ctx, n.bound)
		defer cancel()
		if len(names) == 1 {
			return n.guard.Dial(ctx, conn, n.want(p, names[0]))
		}
		if conn, err = n.guard.Dial(ctx, conn, n.want(p, "")); err != nil || len(names) == 0 {
			return conn, err
		}
		if name := n.guard.Identity(conn).Name; !slices.Contains(names, name) {
			conn.Close()
			return nil, fmt.Errorf("%s is at %v, where the master has told %q", name, addr, names)
		}
		return conn, nil
	}
}

// hear takes what the master tells of members, or a revocation list, of which the last
// ones count. One goroutine at a time calls it, and it never waits.
func (n *names) hear(e fsm.Effect) {
	switch e := e.(type) {
	case fsm.Names:
		n.learn(e.Members)
	case fsm.Revocations:
		for {
			select {
			case n.lists <- e.DER:
				return
			default:
			}
			select {
			case <-n.lists:
			default:
			}
		}
	}
}

// heedLists does what the lists say that the master tells.
func (s *Session) heedLists() {
	for {
		select {
		case der := <-s.names.lists:
			if news, err := s.names.guard.Take([]byte(der)); news != nil || err != nil {
				s.revoke(news, err)
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// revoke ends the connections with those that a newer revocation list names, and tells of
// a newer credential.
func (s *Session) revoke(news *guard.News, err error) {
	if err != nil {
		s.log.Warn("not taken over: what was there before stays in force", "error", err)
	}
	if news == nil {
		return
	}
	if c := news.Credential; c != nil {
		s.log.Info("the credential was taken over", "credential", c, "until", c.Leaf().NotAfter)
	}
	if news.Listed {
		s.log.Info("the revocation list was taken over", "number", news.Number)
		if news.Kept != "" {
			s.log.Warn("the revocation list has forgotten "+news.Kept+", which stay revoked here: the authority may have been restored from a copy", "number", news.Number)
		}
	}
	for _, e := range news.End() {
		s.log.Warn("connections ended: "+e.Why, "connections", e.Connections)
	}
}
