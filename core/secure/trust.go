package secure

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// Purpose is what a connection is for. Each has a name of its own in the handshake
// of TLS (ALPN), so that none can be passed off as another.
type Purpose uint8

// Purposes of connections.
const (
	// Control is between a peer and the master.
	Control Purpose = iota + 1
	// Enrolment is between a newcomer, which has no certificate, and the master.
	Enrolment
	// Data is between neighbours.
	Data
	// State is for fetching shared state.
	State
	// Bench is for measuring bandwidths.
	Bench
	// Quorum is between masters of one run.
	Quorum
	// Renewal is for a peer that gets another certificate from the master.
	Renewal
)

var protocols = map[Purpose]string{
	Control: "gopccl-control/1", Enrolment: "gopccl-enroll/1", Data: "gopccl-data/1", State: "gopccl-state/1", Bench: "gopccl-bench/1",
	Quorum: "gopccl-quorum/1", Renewal: "gopccl-renew/1",
}

// String returns the name in the handshake.
func (p Purpose) String() string { return protocols[p] }

// clear returns the name of a connection that goes on in plaintext after the handshake.
// Others than those between peers have none.
func (p Purpose) clear() string {
	if p != Data && p != State && p != Bench {
		return ""
	}
	return strings.Replace(protocols[p], "/", "-clear/", 1)
}

// purposeOf returns the purpose of a name, and whether the connection goes on in plaintext.
func purposeOf(protocol string) (p Purpose, clear, known bool) {
	for p, name := range protocols {
		if name == protocol || protocol != "" && p.clear() == protocol {
			return p, name != protocol, true
		}
	}
	return 0, false, false
}

// Agreed returns what a connection is for, and whether both ends have agreed in their
// handshake to go on in plaintext after it ([Want.Clear]).
func Agreed(cs tls.ConnectionState) (p Purpose, clear bool) {
	p, clear, _ = purposeOf(cs.NegotiatedProtocol)
	return p, clear
}

// Want is what the other endpoint of a connection has to be.
type Want struct {
	Purpose Purpose
	Server  bool    // this endpoint has dialled, and the other one is the server
	Name    string  // if known
	Group   *uint32 // that it has to be allowed to enter, nil: not asked
	// Clear asks the server to go on in plaintext after the handshake, for which
	// connections between peers alone are fit.
	Clear bool
}

// TrustOptions are what a Trust is made of.
type TrustOptions struct {
	Credential *Credential
	Lists      []*List // revocation lists; those of unknown signers are an error
	Identities []Mapping
	Now        func() time.Time // nil: time.Now
}

// Trust is what an endpoint knows at one time: its credential, whom it trusts, and
// who is revoked. It is not changed. Safe for concurrent use.
type Trust struct {
	credential *Credential
	runs       []string // of the authorities that are ours
	roots      *x509.CertPool
	lists      []signedList
	identities []pattern
	now        func() time.Time
	servers    map[string]*tls.Config // by the name in the handshake
}

// NewTrust checks and returns a Trust.
func NewTrust(o TrustOptions) (*Trust, error) {
	if o.Credential == nil {
		return nil, errs.New(errs.InvalidConfig, "make trust", errors.New("no credential"))
	}
	t := &Trust{credential: o.Credential, roots: pool(o.Credential.authorities), now: o.Now, servers: map[string]*tls.Config{}}
	if t.now == nil {
		t.now = time.Now
	}
	for _, a := range o.Credential.authorities {
		if run, ok := authorityRun(a); ok && !slices.Contains(t.runs, run) {
			t.runs = append(t.runs, run)
		}
	}
	var err error
	if t.identities, err = compile(o.Identities); err != nil {
		return nil, err
	}
	for _, l := range o.Lists {
		s, err := signed(l, o.Credential.authorities, o.Credential.chain[1:])
		if err != nil {
			return nil, errs.New(errs.CorruptFile, "read revocation list", err)
		}
		t.lists = append(t.lists, s)
	}
	for p := range protocols {
		for _, name := range []string{p.String(), p.clear()} {
			if name != "" {
				t.servers[name] = t.server(p, name)
			}
		}
	}
	return t, nil
}

// Credential returns what the endpoint shows.
func (t *Trust) Credential() *Credential { return t.credential }

// within returns a time at which all of a chain is valid, if there is one.
func (t *Trust) within(chain []*x509.Certificate) time.Time {
	at := chain[0].NotBefore
	for _, cert := range slices.Concat(chain, t.credential.authorities) {
		if cert.NotBefore.After(at) && !cert.NotBefore.After(chain[0].NotAfter) {
			at = cert.NotBefore
		}
	}
	return at
}

// Verify returns who is at the other end of a connection whose handshake is over,
// or is about to be. Every error is a *Refusal. It is the only place where a
// certificate is judged.
func (t *Trust) Verify(cs tls.ConnectionState, want Want) (Identity, error) {
	purpose, _, known := purposeOf(cs.NegotiatedProtocol)
	switch {
	case len(cs.PeerCertificates) == 0:
		return Identity{}, refuse(WrongChain, "", "no certificate")
	case cs.Version != tls.VersionTLS13:
		return Identity{}, refuse(WrongProtocol, "", "%s; want TLS 1.3", tls.VersionName(cs.Version))
	case !known || purpose != want.Purpose:
		return Identity{}, refuse(WrongProtocol, "", "the connection is for %q; want %q", cs.NegotiatedProtocol, want.Purpose)
	}
	if err := checkChain(cs.PeerCertificates); err != nil {
		return Identity{}, refuse(WrongChain, "", "%w", err)
	}
	for _, cert := range cs.PeerCertificates {
		if err := checkKey(cert.PublicKey); err != nil {
			return Identity{}, refuse(WrongChain, "", "%w", err)
		}
	}
	chains, refusal := t.chains(cs, want.Server)
	if refusal != nil {
		return Identity{}, refusal
	}
	id, err := t.identify(chains)
	if err != nil {
		return Identity{}, err
	}
	who := id.String()
	switch {
	case t.revoked(id, chains):
		return Identity{}, refuse(Revoked, who, "serial %s", id.Serial)
	case !fits(id, want):
		return Identity{}, refuse(WrongRole, who, "not one that may %s %s connection", side(want.Server), want.Purpose)
	case want.Name != "" && want.Name != id.Name:
		return Identity{}, refuse(WrongName, who, "want %q", want.Name)
	case want.Group != nil && !id.In(*want.Group):
		return Identity{}, refuse(WrongGroup, who, "not allowed in group %d", *want.Group)
	}
	return id, nil
}

func side(server bool) string {
	if server {
		return "be dialled for a"
	}
	return "open a"
}

// chains verifies signatures, times and usages.
func (t *Trust) chains(cs tls.ConnectionState, server bool) ([][]*x509.Certificate, *Refusal) {
	certs := cs.PeerCertificates
	usage := x509.ExtKeyUsageClientAuth
	if server {
		usage = x509.ExtKeyUsageServerAuth
	}
	now := t.now()
	opts := x509.VerifyOptions{Roots: t.roots, Intermediates: pool(certs[1:]), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}
	chains, err := certs[0].Verify(opts)
	if err == nil {
		return chains, nil
	}
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		return nil, refuse(Unknown, "", "%w", err)
	}
	// A stranger is not told from a member by dates: the signatures decide.
	opts.CurrentTime = t.within(certs)
	chains, other := certs[0].Verify(opts)
	if other != nil {
		return nil, refuse(Unknown, "", "%w", err)
	}
	who := ""
	if id, err := t.identify(chains); err == nil {
		who = id.String()
	}
	reason, cert := Expired, invalid.Cert
	if now.Before(cert.NotBefore) {
		reason = NotYet
	}
	return nil, refuse(reason, who, "valid from %s to %s, and the clock of this machine says %s%s",
		clock(cert.NotBefore), clock(cert.NotAfter), clock(now), otherClock(cs.OCSPResponse))
}

// identify returns the identity of a verified leaf. Every chain has to allow it:
// an endpoint chooses which certificates it sends.
func (t *Trust) identify(chains [][]*x509.Certificate) (id Identity, err error) {
	for i, chain := range chains {
		one, err := t.oneChain(chain)
		if err != nil {
			return Identity{}, err
		}
		if i > 0 && (one.Run != id.Run || one.Role != id.Role || one.Name != id.Name) {
			return Identity{}, refuse(WrongChain, "", "two chains to authorities, and two identities")
		}
		id = one
	}
	return id, nil
}

func (t *Trust) oneChain(chain []*x509.Certificate) (Identity, error) {
	leaf, root := chain[0], chain[len(chain)-1]
	run, ours := authorityRun(root)
	if !ours {
		id, err := mapped(leaf, t.identities)
		if err != nil {
			return Identity{}, refuse(Unknown, "", "%w", err)
		}
		return id, nil
	}
	id, err := own(leaf)
	switch {
	case err != nil:
		return Identity{}, refuse(WrongChain, "", "%w", err)
	case id.Run != run:
		return Identity{}, refuse(Unknown, id.String(), "it is of run %s, and its authority of %s", id.Run, run)
	case id.Role == Issuer || leaf.IsCA:
		return Identity{}, refuse(WrongRole, id.String(), "an issuer is not an endpoint")
	}
	for _, between := range chain[1 : len(chain)-1] {
		if _, authority := authorityRun(between); authority {
			continue // one that another has signed, while authorities change
		}
		issuer, err := own(between)
		switch {
		case err != nil:
			return Identity{}, refuse(WrongChain, id.String(), "a certificate between it and the authority is not an issuer's: %w", err)
		case issuer.Role != Issuer || issuer.Run != run:
			return Identity{}, refuse(WrongChain, id.String(), "%s signed it, who is not an issuer of the run", issuer)
		case id.Role != Peer && id.Role != Observer || id.Lead || id.Enroll:
			return Identity{}, refuse(WrongRole, id.String(), "%s may sign peers and observers only, without further rights", issuer)
		case issuer.Groups != nil && (id.Groups == nil || slices.ContainsFunc(id.Groups, func(g uint32) bool { return !issuer.In(g) })):
			return Identity{}, refuse(WrongGroup, id.String(), "%s may not sign for all of its groups", issuer)
		}
	}
	return id, nil
}

// fits reports whether the role is one for the purpose.
func fits(id Identity, want Want) bool {
	switch want.Purpose {
	case Control:
		if want.Server {
			return id.Role == Master || id.Role == Peer && id.Lead
		}
		return id.Role == Peer || id.Role == Observer
	case Enrolment: // a newcomer has no certificate
		return want.Server && id.Role == Master
	case Data, State, Bench:
		return id.Role == Peer
	case Renewal:
		if want.Server {
			return id.Role == Master || id.Role == Peer && id.Lead
		}
		return id.Role == Peer
	case Quorum:
		return id.Role == Master
	}
	return false
}

func (t *Trust) revoked(id Identity, chains [][]*x509.Certificate) bool {
	for _, l := range t.lists {
		for _, chain := range chains {
			if l.has(id, chain) {
				return true
			}
		}
	}
	return false
}

// Keeper holds the Trust that is in force. Safe for concurrent use.
type Keeper struct{ now atomic.Pointer[Trust] }

// NewKeeper returns a Keeper of t.
func NewKeeper(t *Trust) *Keeper {
	k := &Keeper{}
	k.now.Store(t)
	return k
}

// Trust returns what is in force.
func (k *Keeper) Trust() *Trust { return k.now.Load() }

// Replace puts t in force for all handshakes that begin from now on.
func (k *Keeper) Replace(t *Trust) { k.now.Store(t) }
