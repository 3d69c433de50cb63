package secure

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
)

// Mapping gives a role and groups to identities of an authority that is not ours.
// The first that fits counts; an endpoint that none fits is a stranger.
type Mapping struct {
	// URI is what the certificate has: a URI such as "spiffe://example.org/train/*",
	// or a DNS name as "dns:*.train.example.org". An asterisk stands for one whole
	// segment of the path, or one label of the name.
	URI    string
	Role   Role
	Groups []uint32 // nil: all
}

const maxURI = 255

// pattern is a mapping that was checked.
type pattern struct {
	segments []string
	dns      bool
	Mapping
}

// CheckMappings reports an error, an *errs.Error, if one of them can never be what is meant.
func CheckMappings(all []Mapping) error {
	_, err := compile(all)
	return err
}

func compile(all []Mapping) (list []pattern, err error) {
	for _, m := range all {
		p := pattern{Mapping: m}
		p.segments, p.dns = segments(m.URI)
		bad := func(why string) error {
			return errs.New(errs.InvalidConfig, "read identities", fmt.Errorf("%.255q: %s", m.URI, why))
		}
		switch _, known := roles[m.Role]; {
		case len(m.URI) > maxURI:
			return nil, bad("too long")
		case !known || m.Role == Issuer:
			return nil, bad("want the role peer, master or observer")
		case !p.dns && !strings.Contains(m.URI, "://"), p.dns && len(p.segments) < 2:
			return nil, bad("want a URI such as spiffe://example.org/train/*, or dns: and a name")
		case m.Groups != nil && len(m.Groups) == 0 || len(m.Groups) > MaxGroups:
			return nil, bad(fmt.Sprintf("want 1 to %d groups, or none at all for every group", MaxGroups))
		}
		for i, s := range p.segments {
			if strings.Contains(s, "*") && s != "*" || s == "*" && !p.dns && i < 3 {
				return nil, bad("an asterisk stands for one whole segment of the path")
			}
		}
		list = append(list, p)
	}
	return list, nil
}

func segments(uri string) ([]string, bool) {
	if name, ok := strings.CutPrefix(uri, "dns:"); ok {
		return strings.Split(strings.ToLower(name), "."), true
	}
	return strings.Split(uri, "/"), false
}

// fits reports whether the segments of an identity are those of the pattern.
func (p *pattern) fits(of []string, dns bool) bool {
	if p.dns != dns || len(of) != len(p.segments) {
		return false
	}
	for i, s := range p.segments {
		if of[i] == "" && (dns || i > 2) || s != "*" && s != of[i] {
			return false
		}
	}
	return true
}

// mapped returns the identity that the mappings give a certificate.
func mapped(cert *x509.Certificate, list []pattern) (Identity, error) {
	var found []Identity
	look := func(name string) {
		if len(name) > maxURI {
			return
		}
		of, dns := segments(name)
		for i := range list {
			if list[i].fits(of, dns) {
				id := Identity{Role: list[i].Role, Name: name, Groups: list[i].Groups}
				id.dates(cert)
				found = append(found, id)
				return
			}
		}
	}
	for _, u := range cert.URIs {
		if name, ok := printable(u); ok {
			look(name)
		}
	}
	for _, name := range cert.DNSNames {
		if clean(name) {
			look("dns:" + strings.ToLower(name))
		}
	}
	switch len(found) {
	case 0:
		return Identity{}, errors.New("no mapping of security.identities fits it")
	case 1:
		return found[0], nil
	}
	return Identity{}, fmt.Errorf("mappings of security.identities fit %d of its names; want one", len(found))
}

// printable returns a URI as text; false: it has parts, or characters, that no
// identity has.
func printable(u *url.URL) (string, bool) {
	if u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.RawPath != "" {
		return "", false
	}
	text := u.Scheme + "://" + u.Host + u.Path
	return text, clean(text)
}

// clean reports whether a text has printable ASCII without blanks alone, and
// no asterisk.
func clean(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f || c == '*' || c == '"' {
			return false
		}
	}
	return text != ""
}
