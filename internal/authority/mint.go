package authority

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/secure"
)

const (
	// tolerance of clocks: a certificate is valid from so long before it was made.
	tolerance = 5 * time.Minute
	// DefaultLife of a certificate, and the bounds of it.
	DefaultLife = 30 * 24 * time.Hour
	MinLife     = 24 * time.Hour
	MaxLife     = 400 * 24 * time.Hour
	ofAuthority = 10 * 365 * 24 * time.Hour
	ofList      = 365 * 24 * time.Hour
)

// Signer is what signs certificates: an authority, or an issuer below one.
type Signer struct {
	Cert *x509.Certificate
	Key  crypto.Signer
	// Chain is what an endpoint sends behind its own certificate: nothing below an
	// authority, else the issuer's certificate.
	Chain []*x509.Certificate
	Run   string
	// Via is what an endpoint sends behind Chain for those that know the former authority
	// alone, and Former is that authority, as long as it is trusted.
	Via    []*x509.Certificate
	Former *x509.Certificate
	// Groups that an issuer may sign for, nil: all.
	Groups []uint32
}

// NewAuthority makes an authority. run is the id of a run that goes on with it,
// empty: of its own. title is for people.
func NewAuthority(title, run string, now time.Time) (*Signer, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	if run == "" {
		der, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			return nil, err
		}
		run = secure.RunID(&x509.Certificate{RawSubjectPublicKeyInfo: der})
	}
	template, err := authorityTemplate(title, run, now)
	if err != nil {
		return nil, err
	}
	cert, err := sign(template, template, pub, key)
	if err != nil {
		return nil, err
	}
	return &Signer{Cert: cert, Key: key, Run: run}, nil
}

func authorityTemplate(title, run string, now time.Time) (*x509.Certificate, error) {
	serial, err := number()
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: title, SerialNumber: fmt.Sprintf("%032x", serial)},
		NotBefore: now.Add(-tolerance).Truncate(time.Second), NotAfter: now.Add(ofAuthority).Truncate(time.Second),
		BasicConstraintsValid: true, IsCA: true, MaxPathLen: 2, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs: []*url.URL{secure.RunURI(run)},
	}, nil
}

// Cross returns a certificate in which s vouches for the key of a later authority.
func (s *Signer) Cross(next *Signer, now time.Time) (*x509.Certificate, error) {
	template, err := authorityTemplate(next.Cert.Subject.CommonName, s.Run, now)
	if err != nil {
		return nil, err
	}
	template.Subject, template.RawSubject, template.MaxPathLen = next.Cert.Subject, next.Cert.RawSubject, 1
	template.SubjectKeyId = next.Cert.SubjectKeyId
	return sign(template, s.Cert, next.Cert.PublicKey, s.Key)
}

// number returns a serial number of 128 random bits.
func number() (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and always sixteen bytes
	return new(big.Int).SetBytes(b), nil
}

func sign(template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Sign returns a certificate of pub for id, from now on for life. The run is that
// of the signer. An issuer's certificate signs others; every other one does not.
func (s *Signer) Sign(id secure.Identity, pub crypto.PublicKey, life time.Duration, now time.Time) (*x509.Certificate, error) {
	if err := secure.CheckName(id.Name); err != nil {
		return nil, err
	}
	below := len(s.Chain) > 0
	switch {
	case below && (id.Role != secure.Peer && id.Role != secure.Observer || id.Lead || id.Enroll):
		return nil, errors.New("an issuer signs peers and observers only, without further rights")
	case id.Lead && id.Role != secure.Peer:
		return nil, errors.New("only a peer has the right to lead; a master has it by its role")
	}
	if err := s.covers(id.Groups); err != nil {
		return nil, err
	}
	id.Run = s.Run
	grant, err := id.Extension()
	if err != nil {
		return nil, err
	}
	serial, err := number()
	if err != nil {
		return nil, err
	}
	// Not before is exact: names are revoked up to a time.
	template := &x509.Certificate{
		SerialNumber: serial, URIs: []*url.URL{id.URI()}, ExtraExtensions: []pkix.Extension{grant},
		NotBefore: id.NotBefore, NotAfter: now.Add(life).Truncate(time.Second),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = now.Add(-tolerance)
	}
	template.NotBefore = template.NotBefore.Truncate(time.Second)
	if id.Role == secure.Issuer {
		template.IsCA, template.MaxPathLenZero = true, true
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
		template.Subject = pkix.Name{CommonName: "issuer " + id.Name, SerialNumber: fmt.Sprintf("%032x", serial)}
	}
	if s.Cert.NotAfter.Before(template.NotAfter) {
		template.NotAfter = s.Cert.NotAfter
	}
	return sign(template, s.Cert, pub, s.Key)
}

// covers reports an error if the signer may not sign for all of some groups.
func (s *Signer) covers(groups []uint32) error {
	if s.Groups == nil {
		return nil
	}
	if groups == nil || slices.ContainsFunc(groups, func(g uint32) bool { return !slices.Contains(s.Groups, g) }) {
		return fmt.Errorf("the issuer may sign for the groups %v only", s.Groups)
	}
	return nil
}

// List returns a revocation list in DER.
func (s *Signer) List(number int64, entries []x509.RevocationListEntry, names []secure.Denied, now time.Time) ([]byte, error) {
	x, err := secure.DeniedExtension(names)
	if err != nil {
		return nil, err
	}
	return x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(number), RevokedCertificateEntries: entries, ExtraExtensions: []pkix.Extension{x},
		ThisUpdate: now.Truncate(time.Second), NextUpdate: now.Add(ofList).Truncate(time.Second),
	}, s.Cert, s.Key)
}

// Encode returns the text of a credential file. key may be nil: it was made
// elsewhere.
func Encode(leaf *x509.Certificate, chain []*x509.Certificate, key crypto.Signer, authorities []*x509.Certificate) ([]byte, error) {
	var out bytes.Buffer
	for _, cert := range slices.Concat([]*x509.Certificate{leaf}, chain) {
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}); err != nil {
			return nil, err
		}
	}
	if key != nil {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		defer clear(der)
		if err := pem.Encode(&out, &pem.Block{Type: "PRIVATE KEY", Bytes: der}); err != nil {
			return nil, err
		}
	}
	for _, cert := range authorities {
		b := &pem.Block{Type: "CERTIFICATE", Headers: map[string]string{secure.AuthorityHeader: "yes"}, Bytes: cert.Raw}
		if err := pem.Encode(&out, b); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// path is what an endpoint sends behind its own certificate.
func (s *Signer) path() []*x509.Certificate { return slices.Concat(s.Chain, s.Via) }

// Trusted returns the authorities that a credential names, the former one last.
func (s *Signer) Trusted() []*x509.Certificate {
	if s.Former == nil {
		return []*x509.Certificate{s.Cert}
	}
	return []*x509.Certificate{s.Cert, s.Former}
}

// NewCredential makes a key and a credential for id.
func (s *Signer) NewCredential(id secure.Identity, authorities []*x509.Certificate, life time.Duration, now time.Time) (*x509.Certificate, []byte, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	cert, err := s.Sign(id, pub, life, now)
	if err != nil {
		return nil, nil, err
	}
	text, err := Encode(cert, s.path(), key, authorities)
	return cert, text, err
}

// Below returns an issuer as a signer, whose certificate s has signed.
func (s *Signer) Below(cert *x509.Certificate, key crypto.Signer) *Signer {
	return &Signer{Cert: cert, Key: key, Chain: append([]*x509.Certificate{cert}, s.Chain...), Run: s.Run}
}
