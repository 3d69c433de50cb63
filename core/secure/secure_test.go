package secure_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the time of all tests.
var noon = time.Date(2031, 4, 5, 12, 0, 0, 0, time.UTC)

const month = 30 * 24 * time.Hour

// run is an authority of a test.
type run struct {
	*authority.Signer
	t testing.TB
}

func newRun(t testing.TB) run {
	s, err := authority.NewAuthority("test", "", noon.Add(-time.Hour))
	require.NoError(t, err)
	return run{s, t}
}

// credential makes one that is valid at noon.
func (r run) credential(id secure.Identity) *secure.Credential {
	return r.from(id, noon.Add(-time.Minute), month)
}

func (r run) from(id secure.Identity, at time.Time, life time.Duration) *secure.Credential {
	_, text, err := r.NewCredential(id, []*x509.Certificate{r.Root()}, life, at)
	require.NoError(r.t, err)
	c, err := secure.ParseCredential(text)
	require.NoError(r.t, err)
	return c
}

// root of the signer, which an issuer keeps behind its own certificate.
var roots = map[*authority.Signer]*x509.Certificate{}

func (r run) Root() *x509.Certificate {
	if c := roots[r.Signer]; c != nil {
		return c
	}
	return r.Cert
}

// issuer makes an issuer below r.
func (r run) issuer(id secure.Identity, at time.Time, life time.Duration) run {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(r.t, err)
	id.Role = secure.Issuer
	cert, err := r.Sign(id, pub, life, at)
	require.NoError(r.t, err)
	s := r.Below(cert, key)
	roots[s] = r.Root()
	return run{s, r.t}
}

// forged signs id below an issuer that does not keep to what issuers may sign.
func (r run) forged(id secure.Identity) *secure.Credential {
	honest := *r.Signer
	chain := honest.Chain
	honest.Chain = nil
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(r.t, err)
	cert, err := honest.Sign(id, pub, month, noon)
	require.NoError(r.t, err)
	text, err := authority.Encode(cert, chain, key, []*x509.Certificate{r.Root()})
	require.NoError(r.t, err)
	c, err := secure.ParseCredential(text)
	require.NoError(r.t, err)
	return c
}

func (r run) list(number int64, names []secure.Denied, certs ...*x509.Certificate) *secure.List {
	var entries []x509.RevocationListEntry
	for _, c := range certs {
		entries = append(entries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: noon})
	}
	der, err := r.List(number, entries, names, noon)
	require.NoError(r.t, err)
	l, err := secure.ParseList(der)
	require.NoError(r.t, err)
	return l
}

func trust(t testing.TB, c *secure.Credential, at time.Time, lists ...*secure.List) *secure.Trust {
	tr, err := secure.NewTrust(secure.TrustOptions{Credential: c, Lists: lists, Now: func() time.Time { return at }})
	require.NoError(t, err)
	return tr
}

func state(p secure.Purpose, certs ...*x509.Certificate) tls.ConnectionState {
	return tls.ConnectionState{Version: tls.VersionTLS13, NegotiatedProtocol: p.String(), PeerCertificates: certs}
}

func reasonOf(err error) secure.Reason {
	var r *secure.Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return 0
}

// Every combination of role, right, purpose, direction, chain, time, list and name
// is accepted, or refused for the first reason that holds.
func TestVerifyTable(t *testing.T) {
	ours := newRun(t)
	theirs := newRun(t)
	me := ours.credential(secure.Identity{Role: secure.Peer, Name: "me"})
	issuer := ours.issuer(secure.Identity{Name: "desk"}, noon.Add(-time.Minute), month)
	type who struct {
		role secure.Role
		lead bool
	}
	people := []who{{secure.Peer, false}, {secure.Peer, true}, {secure.Master, false}, {secure.Observer, false}, {secure.Issuer, false}}
	chains := []string{"authority", "issuer", "foreign"}
	times := map[string]time.Time{"now": noon, "late": noon.Add(month), "early": noon.Add(-time.Hour)}
	lists := []string{"none", "serial", "name", "issuer", "other"}
	// may says which roles the purposes have, as the design's table does: server, client.
	may := map[secure.Purpose][2][]who{
		secure.Control:   {{{secure.Master, false}, {secure.Peer, true}}, {{secure.Peer, false}, {secure.Peer, true}, {secure.Observer, false}}},
		secure.Enrolment: {{{secure.Master, false}}, nil},
		secure.Data:      {{{secure.Peer, false}, {secure.Peer, true}}, {{secure.Peer, false}, {secure.Peer, true}}},
		secure.State:     {{{secure.Peer, false}, {secure.Peer, true}}, {{secure.Peer, false}, {secure.Peer, true}}},
		secure.Bench:     {{{secure.Peer, false}, {secure.Peer, true}}, {{secure.Peer, false}, {secure.Peer, true}}},
	}
	counts := map[secure.Reason]int{}
	for _, p := range people {
		id := secure.Identity{Role: p.role, Name: "gpu-7", Lead: p.lead}
		for _, chain := range chains {
			var c *secure.Credential
			switch chain {
			case "authority":
				c = ours.credential(id)
			case "issuer":
				c = issuer.forged(id)
			case "foreign":
				c = theirs.credential(id)
			}
			for when, at := range times {
				for _, list := range lists {
					var l *secure.List
					switch list {
					case "none":
						l = ours.list(1, nil)
					case "serial":
						l = ours.list(2, nil, c.Leaf())
					case "name":
						l = ours.list(3, []secure.Denied{{Role: p.role, Name: "gpu-7", Upto: noon}})
					case "issuer":
						l = ours.list(4, nil, issuer.Cert)
					case "other":
						l = ours.list(5, []secure.Denied{{Role: p.role, Name: "gpu-8", Upto: noon}, {Role: secure.Issuer, Name: "gpu-7", Upto: noon.Add(-time.Hour)}}, me.Leaf())
					}
					tr := trust(t, me, at, l)
					for purpose, roles := range may {
						for side, server := range []bool{true, false} {
							for _, name := range []string{"", "gpu-7", "gpu-9"} {
								want := secure.Reason(0)
								forbidden := p.role == secure.Issuer || chain == "issuer" && (p.lead || p.role != secure.Peer && p.role != secure.Observer)
								switch {
								case chain == "foreign":
									want = secure.Unknown
								case p.role == secure.Issuer && when == "now":
									want = secure.WrongRole
								case when == "late":
									want = secure.Expired
								case when == "early":
									want = secure.NotYet
								case forbidden:
									want = secure.WrongRole
								case list == "serial" || list == "name" || list == "issuer" && chain == "issuer":
									want = secure.Revoked
								case !slices.Contains(roles[side], p):
									want = secure.WrongRole
								case name == "gpu-9":
									want = secure.WrongName
								}
								got, err := tr.Verify(state(purpose, c.Chain()...), secure.Want{Purpose: purpose, Server: server, Name: name})
								at := fmt.Sprintf("%v lead %v, %s, %s, list %s, %v, server %v, want %q: %v", p.role, p.lead, chain, when, list, purpose, server, name, err)
								require.Equal(t, want, reasonOf(err), at)
								if want == 0 {
									require.NoError(t, err, at)
									require.Equal(t, id.Name, got.Name)
									require.Equal(t, ours.Run, got.Run)
								} else {
									require.ErrorIs(t, err, want)
									require.Zero(t, got, "nobody is known who was refused")
								}
								counts[want]++
							}
						}
					}
				}
			}
		}
	}
	for _, r := range []secure.Reason{0, secure.Unknown, secure.Expired, secure.NotYet, secure.Revoked, secure.WrongRole, secure.WrongName} {
		require.Positive(t, counts[r], "%v", r)
	}
}

// What a connection is refused for before any signature is looked at.
func TestVerifyConnections(t *testing.T) {
	ours := newRun(t)
	me := ours.credential(secure.Identity{Role: secure.Peer, Name: "me", Groups: []uint32{1, 3}})
	tr := trust(t, me, noon)
	chain := me.Chain()
	data := secure.Want{Purpose: secure.Data}
	refused := func(want secure.Reason, text string, cs tls.ConnectionState, w secure.Want) {
		t.Helper()
		_, err := tr.Verify(cs, w)
		require.Equal(t, want, reasonOf(err), "%v", err)
		require.ErrorContains(t, err, text)
	}
	refused(secure.WrongChain, "no certificate", state(secure.Data), data)
	old := state(secure.Data, chain...)
	old.Version = tls.VersionTLS12
	refused(secure.WrongProtocol, "TLS 1.2", old, data)
	none := state(secure.Data, chain...)
	none.NegotiatedProtocol = ""
	refused(secure.WrongProtocol, `want "gopccl-data/1"`, none, data)
	refused(secure.WrongProtocol, `for "gopccl-state/1"`, state(secure.State, chain...), data)
	refused(secure.WrongChain, "5 certificates", state(secure.Data, chain[0], chain[0], chain[0], chain[0], chain[0]), data)
	group := uint32(2)
	refused(secure.WrongGroup, "group 2", state(secure.Data, chain...), secure.Want{Purpose: secure.Data, Group: &group})
	group = 3
	id, err := tr.Verify(state(secure.Data, chain...), secure.Want{Purpose: secure.Data, Group: &group})
	require.NoError(t, err)
	require.Equal(t, []uint32{1, 3}, id.Groups)
	require.False(t, id.In(2))

	late := trust(t, me, noon.Add(2*month))
	_, err = late.Verify(state(secure.Data, chain...), data)
	require.ErrorContains(t, err, "peer me: valid from 2031-04-05T11:54:00Z to 2031-05-05T11:59:00Z, and the clock of this machine says 2031-06-04T12:00:00Z")
	for said, says := range map[string]string{"gopccl clock 2031-06-01T12:00:00Z": ", and that of the other end 2031-06-01T12:00:00Z", "gopccl clock soon": "", "2031": "", "gopccl clock \n": ""} {
		cs := state(secure.Data, chain...)
		cs.OCSPResponse = []byte(said)
		_, err = late.Verify(cs, data)
		require.True(t, strings.HasSuffix(err.Error(), "says 2031-06-04T12:00:00Z"+says), "%q: %v", said, err)
	}
}

// leaf signs a certificate that NewCredential would not make.
func leaf(t testing.TB, s *authority.Signer, change func(*x509.Certificate)) *x509.Certificate {
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return leafOf(t, s, pub, change)
}

func leafOf(t testing.TB, s *authority.Signer, pub crypto.PublicKey, change func(*x509.Certificate)) *x509.Certificate {
	id := secure.Identity{Run: s.Run, Role: secure.Peer, Name: "odd"}
	grant, err := id.Extension()
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(77), URIs: []*url.URL{id.URI()}, ExtraExtensions: []pkix.Extension{grant},
		NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	change(c)
	der, err := x509.CreateCertificate(rand.Reader, c, s.Cert, pub, s.Key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// Certificates that our authority has signed, and that are not made as ours are.
func TestOddCertificates(t *testing.T) {
	ours := newRun(t)
	tr := trust(t, ours.credential(secure.Identity{Role: secure.Peer, Name: "me"}), noon)
	uri := func(text string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			u, err := url.Parse(text)
			require.NoError(t, err)
			c.URIs = []*url.URL{u}
		}
	}
	host := "spiffe://" + ours.Run + ".run"
	other := newRun(t)
	for name, c := range map[string]struct {
		change func(*x509.Certificate)
		want   secure.Reason
	}{
		"as ours":         {func(*x509.Certificate) {}, 0},
		"no URI":          {func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"odd"} }, secure.WrongChain},
		"two URIs":        {func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }, secure.WrongChain},
		"another scheme":  {uri("https://" + ours.Run + ".run/gopccl/peer/odd"), secure.WrongChain},
		"a query":         {uri(host + "/gopccl/peer/odd?x"), secure.WrongChain},
		"a fragment":      {uri(host + "/gopccl/peer/odd#x"), secure.WrongChain},
		"escapes":         {uri(host + "/gopccl/peer/o%64d"), secure.WrongChain},
		"a longer path":   {uri(host + "/gopccl/peer/odd/x"), secure.WrongChain},
		"a capital":       {uri(host + "/gopccl/peer/Odd"), secure.WrongChain},
		"a new role":      {uri(host + "/gopccl/king/odd"), secure.WrongChain},
		"no name":         {uri(host + "/gopccl/peer/"), secure.WrongChain},
		"a user":          {uri("spiffe://x@" + ours.Run + ".run/gopccl/peer/odd"), secure.WrongChain},
		"another run":     {uri("spiffe://" + other.Run + ".run/gopccl/peer/odd"), secure.Unknown},
		"no grant":        {func(c *x509.Certificate) { c.ExtraExtensions = nil }, secure.WrongChain},
		"a damaged grant": {func(c *x509.Certificate) { c.ExtraExtensions[0].Value = []byte{0x30, 1, 0} }, secure.WrongChain},
		"more behind the grant": {func(c *x509.Certificate) {
			c.ExtraExtensions[0].Value = append(slices.Clone(c.ExtraExtensions[0].Value), 5, 0)
		}, secure.WrongChain},
		"a later grant": {func(c *x509.Certificate) {
			c.ExtraExtensions[0].Value = bytes.Replace(c.ExtraExtensions[0].Value, []byte{2, 1, 1}, []byte{2, 1, 2}, 1)
		}, secure.WrongChain},
		"an unknown right": {func(c *x509.Certificate) {
			v := slices.Clone(c.ExtraExtensions[0].Value)
			v[len(v)-2], v[len(v)-1] = 0, 0x08 // eight bits, the fifth set
			c.ExtraExtensions[0].Value = v
		}, secure.WrongChain},
		"for servers only": {func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }, secure.Unknown},
		"an authority":     {func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }, secure.WrongRole},
	} {
		_, err := tr.Verify(state(secure.Data, leaf(t, ours.Signer, c.change)), secure.Want{Purpose: secure.Data})
		require.Equal(t, c.want, reasonOf(err), "%s: %v", name, err)
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err == nil { // a later version of Go may refuse to make one
		_, err = tr.Verify(state(secure.Data, leafOf(t, ours.Signer, small.Public(), func(*x509.Certificate) {})), secure.Want{Purpose: secure.Data})
		require.Equal(t, secure.WrongChain, reasonOf(err))
	}
}

// An issuer signs within its groups, and its list revokes what it has signed alone.
func TestIssuer(t *testing.T) {
	ours := newRun(t)
	me := ours.credential(secure.Identity{Role: secure.Peer, Name: "me"})
	issuer := ours.issuer(secure.Identity{Name: "desk", Groups: []uint32{1, 2}}, noon.Add(-time.Minute), month)
	check := func(want secure.Reason, c *secure.Credential, lists ...*secure.List) {
		t.Helper()
		_, err := trust(t, me, noon, lists...).Verify(state(secure.Data, c.Chain()...), secure.Want{Purpose: secure.Data})
		require.Equal(t, want, reasonOf(err), "%v", err)
	}
	two := issuer.credential(secure.Identity{Role: secure.Peer, Name: "two", Groups: []uint32{2}})
	check(0, two)
	check(secure.WrongGroup, issuer.credential(secure.Identity{Role: secure.Peer, Name: "all"}))
	check(secure.WrongGroup, issuer.credential(secure.Identity{Role: secure.Peer, Name: "three", Groups: []uint32{2, 3}}))
	check(secure.WrongRole, issuer.forged(secure.Identity{Role: secure.Peer, Name: "two", Groups: []uint32{2}, Enroll: true}))

	// An endpoint below the issuer knows the issuer, and takes its list.
	one := ours.credential(secure.Identity{Role: secure.Peer, Name: "one"})
	list := issuer.list(1, []secure.Denied{{Role: secure.Peer, Name: "one", Upto: noon}}, two.Leaf(), one.Leaf())
	_, err := secure.NewTrust(secure.TrustOptions{Credential: me, Lists: []*secure.List{list}})
	require.ErrorContains(t, err, "not signed by a trusted")
	below := trust(t, issuer.credential(secure.Identity{Role: secure.Peer, Name: "x", Groups: []uint32{1}}), noon, list)
	_, err = below.Verify(state(secure.Data, two.Chain()...), secure.Want{Purpose: secure.Data})
	require.ErrorIs(t, err, secure.Revoked)
	_, err = below.Verify(state(secure.Data, one.Chain()...), secure.Want{Purpose: secure.Data})
	require.NoError(t, err, "the issuer has not signed it")
}

// A name that was revoked can be used again by a later certificate.
func TestNameIsRevokedUpToATime(t *testing.T) {
	ours := newRun(t)
	me := ours.credential(secure.Identity{Role: secure.Peer, Name: "me"})
	before := ours.from(secure.Identity{Role: secure.Peer, Name: "gpu"}, noon.Add(-2*time.Minute), month)
	after := ours.from(secure.Identity{Role: secure.Peer, Name: "gpu"}, noon.Add(-time.Minute), month)
	tr := trust(t, me, noon, ours.list(1, []secure.Denied{{Role: secure.Peer, Name: "gpu", Upto: before.Leaf().NotBefore}}))
	_, err := tr.Verify(state(secure.Data, before.Chain()...), secure.Want{Purpose: secure.Data})
	require.ErrorIs(t, err, secure.Revoked)
	_, err = tr.Verify(state(secure.Data, after.Chain()...), secure.Want{Purpose: secure.Data})
	require.NoError(t, err)
}

// While authorities change, each endpoint trusts both, and the later one is vouched
// for by the former.
func TestTwoAuthorities(t *testing.T) {
	first := newRun(t)
	s, err := authority.NewAuthority("second", first.Run, noon.Add(-time.Hour))
	require.NoError(t, err)
	second := run{s, t}
	cross, err := first.Cross(s, noon.Add(-time.Hour))
	require.NoError(t, err)
	member := second.credential(secure.Identity{Role: secure.Peer, Name: "gpu"})
	require.Equal(t, first.Run, second.Run)
	old := trust(t, first.credential(secure.Identity{Role: secure.Peer, Name: "me"}), noon)
	_, err = old.Verify(state(secure.Data, member.Leaf()), secure.Want{Purpose: secure.Data})
	require.ErrorIs(t, err, secure.Unknown)
	id, err := old.Verify(state(secure.Data, member.Leaf(), cross), secure.Want{Purpose: secure.Data})
	require.NoError(t, err)
	require.Equal(t, "gpu", id.Name)
	desk := second.issuer(secure.Identity{Name: "desk"}, noon, month)
	below := desk.credential(secure.Identity{Role: secure.Peer, Name: "gpu-2"})
	_, err = old.Verify(state(secure.Data, append(below.Chain(), cross)...), secure.Want{Purpose: secure.Data})
	require.NoError(t, err)
}

// An authority that is not ours gives identities through mappings, and only there.
func TestMappings(t *testing.T) {
	company := foreignRoot(t)
	ours := newRun(t)
	_, text, err := ours.NewCredential(secure.Identity{Role: secure.Peer, Name: "me"}, []*x509.Certificate{ours.Cert, company.Cert}, month, noon)
	require.NoError(t, err)
	me, err := secure.ParseCredential(text)
	require.NoError(t, err)
	tr, err := secure.NewTrust(secure.TrustOptions{Credential: me, Now: func() time.Time { return noon }, Identities: []secure.Mapping{
		{URI: "spiffe://example.org/train/head", Role: secure.Master},
		{URI: "spiffe://example.org/train/*", Role: secure.Peer, Groups: []uint32{4}},
		{URI: "dns:*.gpu.example.org", Role: secure.Peer},
	}})
	require.NoError(t, err)
	verify := func(purpose secure.Purpose, server bool, change func(*x509.Certificate)) (secure.Identity, error) {
		c := leaf(t, company, func(c *x509.Certificate) {
			c.URIs, c.ExtraExtensions = nil, nil
			change(c)
		})
		return tr.Verify(state(purpose, c), secure.Want{Purpose: purpose, Server: server})
	}
	uris := func(texts ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			for _, text := range texts {
				u, err := url.Parse(text)
				require.NoError(t, err)
				c.URIs = append(c.URIs, u)
			}
		}
	}
	id, err := verify(secure.Data, false, uris("spiffe://example.org/train/a"))
	require.NoError(t, err)
	require.Equal(t, "spiffe://example.org/train/a", id.Name)
	require.True(t, id.In(4))
	require.False(t, id.In(5))
	id, err = verify(secure.Control, true, uris("https://elsewhere.example/x", "spiffe://example.org/train/head"))
	require.NoError(t, err, "the first mapping counts, and other names do not")
	require.Equal(t, secure.Master, id.Role)
	id, err = verify(secure.Data, true, func(c *x509.Certificate) { c.DNSNames = []string{"Seven.gpu.example.org", "example.org"} })
	require.NoError(t, err)
	require.Equal(t, "dns:seven.gpu.example.org", id.Name)
	for name, change := range map[string]func(*x509.Certificate){
		"another path":     uris("spiffe://example.org/other/a"),
		"a longer path":    uris("spiffe://example.org/train/a/b"),
		"an empty segment": uris("spiffe://example.org/train/"),
		"another domain":   uris("spiffe://example.com/train/a"),
		"two identities":   uris("spiffe://example.org/train/a", "spiffe://example.org/train/b"),
		"a query":          uris("spiffe://example.org/train/a?b"),
		"our own URI":      uris(secure.Identity{Run: ours.Run, Role: secure.Peer, Name: "me"}.URI().String()),
		"a wildcard":       func(c *x509.Certificate) { c.DNSNames = []string{"*.gpu.example.org"} },
		"nothing":          func(*x509.Certificate) {},
		"a common name":    func(c *x509.Certificate) { c.Subject.CommonName = "a.gpu.example.org" },
	} {
		_, err := verify(secure.Data, false, change)
		require.ErrorIs(t, err, secure.Unknown, name)
	}
	for _, m := range []secure.Mapping{
		{URI: "spiffe://example.org/train/*", Role: secure.Issuer},
		{URI: "spiffe://example.org/train/*"},
		{URI: "example.org", Role: secure.Peer},
		{URI: "spiffe://*/train", Role: secure.Peer},
		{URI: "spiffe://example.org/a*", Role: secure.Peer},
		{URI: "dns:*", Role: secure.Peer},
		{URI: "spiffe://example.org/a", Role: secure.Peer, Groups: []uint32{}},
		{URI: "spiffe://" + strings.Repeat("a", 300), Role: secure.Peer},
	} {
		_, err := secure.NewTrust(secure.TrustOptions{Credential: me, Identities: []secure.Mapping{m}})
		require.ErrorIs(t, err, errs.InvalidConfig, "%v", m)
	}
}

// foreignRoot returns an authority that is not ours.
func foreignRoot(t testing.TB) *authority.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Example Corp"}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority.Signer{Cert: cert, Key: key}
}

// The file of a credential has what it should, in one order, and nothing else.
func TestCredentialFiles(t *testing.T) {
	ours := newRun(t)
	_, text, err := ours.NewCredential(secure.Identity{Role: secure.Peer, Name: "gpu-7"}, []*x509.Certificate{ours.Cert}, month, noon)
	require.NoError(t, err)
	blocks := split(text)
	require.Len(t, blocks, 3)
	other := newRun(t)
	_, strange, err := other.NewCredential(secure.Identity{Role: secure.Peer, Name: "gpu-7"}, []*x509.Certificate{other.Cert}, month, noon)
	require.NoError(t, err)
	join := func(parts ...string) []byte { return []byte(strings.Join(parts, "")) }
	bare := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.Cert.Raw}))
	for _, good := range [][]byte{text, join(blocks[0], blocks[2], blocks[1]), join(blocks[0], blocks[1], bare), join("\n", string(text), "\n\n")} {
		c, err := secure.ParseCredential(good)
		require.NoError(t, err)
		id, err := c.Identity()
		require.NoError(t, err)
		require.Equal(t, "peer gpu-7", id.String())
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	require.NoError(t, err)
	weak, err := x509.MarshalPKCS8PrivateKey(small)
	require.NoError(t, err)
	for want, bad := range map[string][]byte{
		"no certificate":                   {},
		"block 1: text outside":            join("hello ", string(text)),
		"block 3: text outside":            join(blocks[0], blocks[1], "x\n", blocks[2]),
		"block 4: text outside":            join(string(text), "trailing"),
		"block 2: damaged":                 join(blocks[0], strings.Replace(blocks[1], "-----END", "-----EN", 1), blocks[2]),
		"block 3: damaged":                 join(blocks[0], blocks[1], "-----BEGIN X"),
		"no private key":                   join(blocks[0], blocks[2]),
		"no certificate of an authority":   join(blocks[0], blocks[1]),
		"block 3: a second private key":    join(blocks[0], blocks[1], blocks[1], blocks[2]),
		"not the one of the first":         join(blocks[0], split(strange)[1], blocks[2]),
		"does not lead to an authority":    join(blocks[0], blocks[1], split(strange)[2]),
		"a chain of 5 certificates":        join(strings.Repeat(blocks[0], 5), blocks[1], blocks[2]),
		"block 10: more than 8":            join(strings.Repeat(blocks[0], 8), blocks[1], blocks[2]),
		"larger than 65536 bytes":          bytes.Repeat([]byte("\n"), secure.MaxCredential+1),
		"block 2: an encrypted key":        join(blocks[0], strings.Replace(blocks[1], "KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\n\n", 1), blocks[2]),
		"block 2: a header":                join(blocks[0], strings.Replace(blocks[1], "KEY-----\n", "KEY-----\nGopccl-Authority: yes\n\n", 1), blocks[2]),
		"block 3: a header":                join(blocks[0], blocks[1], strings.Replace(blocks[2], "yes", "no", 1)),
		"block 2: neither a certificate":   join(blocks[0], strings.ReplaceAll(blocks[1], "PRIVATE KEY", "EC PRIVATE KEY"), blocks[2]),
		"block 1: not a certificate":       join(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))),
		"block 1: not a private key":       join(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))),
		"block 1: a kind of key":           join(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: weak}))),
		"block 2: a header that a credent": join(blocks[0], strings.Replace(blocks[1], "KEY-----\n", "KEY-----\nX: y\n\n", 1), blocks[2]),
	} {
		_, err := secure.ParseCredential(bad)
		require.ErrorIs(t, err, errs.CorruptFile, want)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), strings.Split(blocks[1], "\n")[1], "no text of a block")
	}
}

// split cuts PEM text into its blocks.
func split(text []byte) (blocks []string) {
	for _, b := range strings.SplitAfter(string(text), "-----\n") {
		if strings.HasPrefix(b, "-----BEGIN") {
			blocks = append(blocks, b)
		} else if len(blocks) > 0 {
			blocks[len(blocks)-1] += b
		}
	}
	return blocks
}

// A credential is read from a file that nobody else can read.
func TestLoadCredential(t *testing.T) {
	ours := newRun(t)
	_, text, err := ours.NewCredential(secure.Identity{Role: secure.Peer, Name: "gpu-7"}, []*x509.Certificate{ours.Cert}, month, noon)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "gpu-7.pem")
	_, err = secure.LoadCredential(path, secure.LoadOptions{})
	require.ErrorIs(t, err, errs.InvalidConfig)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	c, err := secure.LoadCredential(path, secure.LoadOptions{})
	require.NoError(t, err)
	require.Equal(t, c.Leaf().Raw, c.Chain()[0].Raw)
	require.Len(t, c.Authorities(), 1)
	require.NoError(t, os.WriteFile(path, text[:len(text)-40], 0o600))
	_, err = secure.LoadCredential(path, secure.LoadOptions{})
	require.ErrorIs(t, err, errs.CorruptFile)
	require.ErrorContains(t, err, path+": block 3: damaged")
	_, err = secure.LoadCredential(t.TempDir(), secure.LoadOptions{AllowReadable: true})
	require.ErrorContains(t, err, "not a file")
}

// No way to print a credential, a token or a secret shows what is secret.
func TestNothingShowsSecrets(t *testing.T) {
	ours := newRun(t)
	c := ours.credential(secure.Identity{Role: secure.Peer, Name: "gpu-7"})
	key := c.Signer().(ed25519.PrivateKey)
	token := secure.Token{Secret: secure.NewSecret([]byte("sixteen letters!"))}
	text, err := token.Text()
	require.NoError(t, err)
	type outer struct {
		C *secure.Credential
		T secure.Token
		S secure.Secret
		J secure.Join
	}
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	o := outer{c, token, token.Secret, secure.Join(text)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		fmt.Fprintf(&out, verb+" "+verb+" "+verb+" "+verb+"\n", c, token, token.Secret, o)
	}
	log.Info("x", "c", c, "t", token, "s", token.Secret, "o", o)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "c", c, "t", token, "s", token.Secret, "j", secure.Join(text))
	b, err := json.Marshal(o)
	require.NoError(t, err)
	shown := out.String() + string(b)
	require.Contains(t, shown, "credential peer gpu-7")
	require.Contains(t, shown, "[secret]")
	seed := key.Seed()
	for _, secret := range []string{
		string(seed), fmt.Sprintf("%x", seed), strings.Trim(fmt.Sprint(seed), "[]"), "sixteen letters", fmt.Sprintf("%x", "sixteen letters"),
		strings.Trim(fmt.Sprint([]byte("sixteen letters")), "[]"), text[len("gopccl1."):],
	} {
		require.NotContains(t, shown, secret)
	}
}

// A token comes back as it went, and no part of it can be lost or changed.
func TestTokens(t *testing.T) {
	token := secure.Token{Secret: secure.NewSecret(bytes.Repeat([]byte{7}, 16)), Masters: []string{"10.0.0.1:48148", "[fd00::1]:1"}}
	copy(token.Pin[:], "pinned")
	copy(token.ID[:], "id")
	text, err := token.Text()
	require.NoError(t, err)
	got, err := secure.ParseToken(" " + text + "\n")
	require.NoError(t, err)
	require.Equal(t, token, got)
	k1, err := token.VerifyKey()
	require.NoError(t, err)
	require.Len(t, k1, 32)
	require.Equal(t, "31acca4b", fmt.Sprintf("%x", k1[:4]), "what masters have kept stays valid")
	for i := range text {
		_, err := secure.ParseToken(text[:i])
		require.ErrorIs(t, err, errs.InvalidConfig, i)
		other := byte('A')
		if text[i] == other {
			other = 'B'
		}
		_, err = secure.ParseToken(text[:i] + string(other) + text[i+1:])
		require.Error(t, err, i)
		require.NotContains(t, err.Error(), text[8:])
	}
	for _, m := range []string{"host", "host:0", ":1", "host:70000", "a b:1", strings.Repeat("a", 300) + ":1"} {
		token.Masters = []string{m}
		_, err := token.Text()
		require.Error(t, err, m)
	}
	token.Masters = slices.Repeat([]string{"a:1"}, 9)
	_, err = token.Text()
	require.Error(t, err)
	_, err = secure.Token{}.Text()
	require.Error(t, err)
}
