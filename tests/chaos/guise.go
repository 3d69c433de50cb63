package main

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// Guises: who the clients of a run in TLS are. Without any, the run is in plaintext, and
// so are they.
const (
	guiseStranger = "stranger" // nobody: in plaintext, or in TLS without a certificate of the run
	guiseGroup    = "group"    // a member of another group of the run
	guiseRevoked  = "revoked"  // a peer of the group whose certificate was revoked
)

var guises = []string{guiseStranger, guiseGroup, guiseRevoked}

// elsewhere is the group of guiseGroup. The run is in group 0.
const elsewhere = 7

func chooseGuises(list string) (as []string, err error) {
	if list == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		if !slices.Contains(guises, name) {
			return nil, fmt.Errorf("no clients are a %q: %s", name, strings.Join(guises, ", "))
		}
		as = append(as, name)
	}
	return as, nil
}

// wardrobe is what the clients of a run in TLS can show.
type wardrobe struct {
	as      []string
	configs map[string][]*secure.Trust // by guise; nil in it: no certificate at all
	insider *secure.Trust              // an observer of the run, which may ask for uuids
	close   func()
}

// dress makes the certificates. It comes before any process of the run is started: from
// then on runs are in TLS.
func dress(as []string) (w *wardrobe, err error) {
	w = &wardrobe{as: as, configs: map[string][]*secure.Trust{}, close: func() {}}
	if len(as) == 0 {
		return w, nil
	}
	off := issued.SwitchOn()
	group := issued.Issue(secure.Identity{Role: secure.Peer, Name: "group-7", Groups: []uint32{elsewhere}})
	revoked := issued.Issue(secure.Identity{Role: secure.Peer, Name: "revoked"})
	observer := issued.Issue(secure.Identity{Role: secure.Observer, Name: "observer"})
	foreign := issued.Foreign(secure.Identity{Role: secure.Peer, Name: "foreign"})
	undo := issued.Revoke(revoked)
	w.close = func() { undo(); off() }
	trust := func(c *secure.Credential) *secure.Trust {
		if err != nil {
			return nil
		}
		var t *secure.Trust
		t, err = secure.NewTrust(secure.TrustOptions{Credential: c})
		return t
	}
	w.insider = trust(observer)
	w.configs[guiseGroup] = []*secure.Trust{trust(group)}
	w.configs[guiseRevoked] = []*secure.Trust{trust(revoked)}
	w.configs[guiseStranger] = []*secure.Trust{trust(foreign), nil}
	return w, err
}

// guise is who one client is.
type guise struct {
	name   string
	shows  *secure.Trust // nil: no certificate
	tls    bool
	expect string // the name of the run, as a client of it asks for it
}

func (w *wardrobe) guise(r *rand.Rand) guise {
	if len(w.as) == 0 {
		return guise{}
	}
	g := guise{name: w.as[r.IntN(len(w.as))], tls: true, expect: w.insider.Client(secure.Want{}).ServerName}
	if g.name == guiseStranger && r.IntN(2) == 0 {
		g.tls = false
		return g
	}
	shown := w.configs[g.name]
	g.shows = shown[r.IntN(len(shown))]
	return g
}

// group is what a client registers in. A member of another group tries both.
func (c *client) group() uint32 {
	if c.who.name == guiseGroup && c.IntN(2) == 0 {
		return elsewhere
	}
	return 0
}

// config is that of a client for a purpose. It believes every server.
func (g guise) config(p secure.Purpose) *tls.Config {
	if g.shows == nil {
		return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, ServerName: g.expect, NextProtos: []string{p.String()}}
	}
	cfg := g.shows.Client(secure.Want{Purpose: p})
	cfg.ServerName, cfg.VerifyConnection = g.expect, nil
	return cfg
}

// purpose is what the port at an address is for.
func (at targets) purpose(addr string) secure.Purpose {
	switch {
	case slices.Contains(at.p2p, addr):
		return secure.Data
	case slices.Contains(at.state, addr):
		return secure.State
	case slices.Contains(at.bench, addr):
		return secure.Bench
	}
	return secure.Control
}

// heard counts the bytes of the protocol that clients were answered, by guise and port.
type heard struct {
	mu sync.Mutex
	by map[string]map[secure.Purpose]int64
}

func (h *heard) add(name string, p secure.Purpose, n int64) {
	if n == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == nil {
		h.by = map[string]map[secure.Purpose]int64{}
	}
	if h.by[name] == nil {
		h.by[name] = map[secure.Purpose]int64{}
	}
	h.by[name][p] += n
}

func (h *heard) bytes(name string, p secure.Purpose) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[name][p]
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(h.by)) {
		for _, p := range slices.Sorted(maps.Keys(h.by[name])) {
			parts = append(parts, fmt.Sprintf("%s at %v: %d B", name, p, h.by[name][p]))
		}
	}
	if len(parts) == 0 {
		return "nothing was answered"
	}
	return "answered " + strings.Join(parts, ", ")
}

// mayHear says where a guise may be answered. A member of another group is a client of
// the master, and bandwidths are measured across groups.
func mayHear(name string, p secure.Purpose) bool {
	return name == guiseGroup && (p == secure.Control || p == secure.Bench)
}

// listening counts what it reads: in TLS inside of it, in plaintext all that is not a
// record of TLS's handshake.
type listening struct {
	net.Conn
	count   func(n int64)
	records *records // nil: in TLS, so that what is read is the protocol's
}

func (l *listening) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if l.records == nil {
		l.count(int64(n))
	} else {
		l.count(l.records.other(p[:n]))
	}
	return n, err
}

// tcp is the socket below.
func (l *listening) tcp() *net.TCPConn {
	if t, ok := l.Conn.(*tls.Conn); ok {
		return t.NetConn().(*net.TCPConn)
	}
	return l.Conn.(*net.TCPConn)
}

// records tells records of TLS's handshake from everything else in a stream.
type records struct {
	head  []byte
	skip  int // bytes of a record that are still to come
	broke bool
}

// other returns how many bytes of b belong to no record of a handshake: neither to alerts
// nor to handshake messages. Such a stream is another protocol from then on.
func (r *records) other(b []byte) (n int64) {
	for len(b) > 0 && !r.broke {
		if r.skip > 0 {
			k := min(r.skip, len(b))
			r.skip, b = r.skip-k, b[k:]
			continue
		}
		r.head = append(r.head, b[0])
		b = b[1:]
		switch kind := r.head[0]; {
		case kind < 20 || kind > 22, len(r.head) == 2 && r.head[1] != 3:
			r.broke = true
			n += int64(len(r.head))
		case len(r.head) == 5:
			r.skip, r.head = int(binary.BigEndian.Uint16(r.head[3:])), r.head[:0]
		}
	}
	return n + int64(len(b))
}
