package secure

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Role is what an endpoint is in a run.
type Role uint8

// Roles. Zero is none of them.
const (
	// Peer takes part in collectives.
	Peer Role = iota + 1
	// Master decides about membership.
	Master
	// Observer reads the state of a run, and registers for nothing.
	Observer
	// Issuer signs certificates of peers and observers. It is never an endpoint.
	Issuer
)

var roles = map[Role]string{Peer: "peer", Master: "master", Observer: "observer", Issuer: "issuer"}

// String returns the role as URIs name it.
func (r Role) String() string {
	if s, ok := roles[r]; ok {
		return s
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// ParseRole returns the role of a name.
func ParseRole(name string) (Role, error) {
	for r, s := range roles {
		if s == name {
			return r, nil
		}
	}
	return 0, fmt.Errorf("unknown role %q; want peer, master, observer or issuer", name)
}

// MaxGroups is the most groups that a certificate names.
const MaxGroups = 256

// Identity is what a certificate says about an endpoint.
type Identity struct {
	Run    string // id of the run; empty: the authority is not ours
	Role   Role
	Name   string   // under an authority that is not ours the whole URI, or "dns:" and a name
	Groups []uint32 // that it may enter, nil: all

	Single bool // two sessions of the name at one time are refused
	Enroll bool // may make join tokens at a running master
	Lead   bool // a peer that may be dialled as a master

	Serial              string // hexadecimal
	NotBefore, NotAfter time.Time
}

// In reports whether the endpoint may enter a group.
func (id Identity) In(group uint32) bool {
	return id.Groups == nil || slices.Contains(id.Groups, group)
}

// String returns role and name.
func (id Identity) String() string { return id.Role.String() + " " + id.Name }

// URI returns the URI of an identity of our own kind.
func (id Identity) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: id.Run + ".run", Path: "/gopccl/" + id.Role.String() + "/" + id.Name}
}

const (
	runLength = 26
	maxName   = 63
)

// RunID returns the id of the run whose first authority has the key of cert.
func RunID(cert *x509.Certificate) string {
	return runID(sha256.Sum256(cert.RawSubjectPublicKeyInfo))
}

func runID(sum [sha256.Size]byte) string {
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// RunURI returns the URI in the certificates of a run's authorities.
func RunURI(run string) *url.URL { return &url.URL{Scheme: "spiffe", Host: run + ".run"} }

// CheckName reports what is wrong with the name of an endpoint.
func CheckName(name string) error {
	if name == "" || len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		return fmt.Errorf("name %.80q: want 1 to %d of a-z, 0-9, dot and hyphen", name, maxName)
	}
	return nil
}

// runOf returns the run that the host of a URI names.
func runOf(host string) (string, bool) {
	run, ok := strings.CutSuffix(host, ".run")
	return run, ok && len(run) == runLength && strings.Trim(run, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// plain reports whether a URI has nothing but scheme, host and path.
func plain(u *url.URL) bool {
	return u.Scheme == "spiffe" && u.Opaque == "" && u.User == nil && u.RawQuery == "" && !u.ForceQuery &&
		u.Fragment == "" && u.RawPath == "" && u.RawFragment == ""
}

// authorityRun returns the run whose authority cert is, by its URI.
func authorityRun(cert *x509.Certificate) (string, bool) {
	if len(cert.URIs) != 1 || !plain(cert.URIs[0]) || cert.URIs[0].Path != "" {
		return "", false
	}
	return runOf(cert.URIs[0].Host)
}

// parseURI returns run, role and name of a URI of ours.
func parseURI(u *url.URL) (id Identity, err error) {
	bad := func() (Identity, error) {
		return Identity{}, fmt.Errorf("URI %.200q: want spiffe://RUN.run/gopccl/ROLE/NAME", u.String())
	}
	run, ok := runOf(u.Host)
	parts := strings.Split(u.Path, "/")
	if !ok || !plain(u) || len(parts) != 4 || parts[0] != "" || parts[1] != "gopccl" {
		return bad()
	}
	if id.Role, err = ParseRole(parts[2]); err != nil {
		return bad()
	}
	if CheckName(parts[3]) != nil {
		return bad()
	}
	id.Run, id.Name = run, parts[3]
	return id, nil
}

// own returns the identity in a certificate that an authority of ours, or its
// issuer, has signed.
func own(cert *x509.Certificate) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("%d URIs in the certificate; want one", len(cert.URIs))
	}
	id, err := parseURI(cert.URIs[0])
	if err != nil {
		return id, err
	}
	found := false
	for _, x := range cert.Extensions {
		if !x.Id.Equal(oidGrant) {
			continue
		}
		if found {
			return id, errors.New("two grants in the certificate")
		}
		found = true
		if err := id.readGrant(x.Value); err != nil {
			return id, err
		}
	}
	if !found {
		return id, errors.New("no grant (groups and rights) in the certificate")
	}
	id.dates(cert)
	return id, nil
}

func (id *Identity) dates(cert *x509.Certificate) {
	id.Serial, id.NotBefore, id.NotAfter = serial(cert), cert.NotBefore, cert.NotAfter
}

func serial(cert *x509.Certificate) string {
	if cert.SerialNumber == nil {
		return ""
	}
	return fmt.Sprintf("%032x", cert.SerialNumber)
}
