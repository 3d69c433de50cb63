package secure

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
)

// MaxList is the most bytes of a revocation list in DER.
const MaxList = 256 << 10

// List is a revocation list: serial numbers and names. That of an authority holds
// for everything; that of an issuer holds for what the issuer has signed.
type List struct {
	raw     *x509.RevocationList
	serials map[string]bool
	denied  []Denied
}

// signedList is a list and the issuer that it is limited to, nil: an authority has
// signed it.
type signedList struct {
	*List
	of *x509.Certificate
	by *x509.Certificate // has signed it
}

// ParseList reads a list in DER. Its signature is checked where it is used
// (TrustOptions.Lists).
func ParseList(der []byte) (*List, error) {
	if len(der) > MaxList {
		return nil, fmt.Errorf("a revocation list of %d bytes; at most %d", len(der), MaxList)
	}
	raw, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, errors.New("not a revocation list that this program reads")
	}
	if raw.Number == nil || raw.Number.Sign() < 0 || raw.Number.BitLen() > 63 {
		return nil, errors.New("the revocation list has no number")
	}
	l := &List{raw: raw, serials: map[string]bool{}}
	for _, e := range raw.RevokedCertificateEntries {
		l.serials[key(e.SerialNumber)] = true
	}
	if l.denied, err = readDenied(raw.Extensions); err != nil {
		return nil, err
	}
	return l, nil
}

func key(serial *big.Int) string { return string(serial.Bytes()) }

// Number returns the number of the list; a later list has a higher one.
func (l *List) Number() int64 { return l.raw.Number.Int64() }

// DER returns the list as it was read.
func (l *List) DER() []byte { return l.raw.Raw }

// Serials returns the serial numbers on the list.
func (l *List) Serials() (list []*big.Int) {
	for _, e := range l.raw.RevokedCertificateEntries {
		list = append(list, e.SerialNumber)
	}
	return list
}

// Names returns the names on the list.
func (l *List) Names() []Denied { return slices.Clone(l.denied) }

// Lacks returns what l does not revoke of what another list does: serial numbers in
// hexadecimal, and roles with names.
func (l *List) Lacks(other *List) (what []string) {
	for _, n := range other.Serials() {
		if !l.serials[key(n)] {
			what = append(what, fmt.Sprintf("%032x", n))
		}
	}
	for _, o := range other.denied {
		if !slices.ContainsFunc(l.denied, func(d Denied) bool { return d.Role == o.Role && d.Name == o.Name && !o.Upto.After(d.Upto) }) {
			what = append(what, o.Role.String()+" "+o.Name)
		}
	}
	return what
}

// signed finds the signer of a list among those that are trusted.
func signed(l *List, authorities, issuers []*x509.Certificate) (signedList, error) {
	for i, by := range slices.Concat(authorities, issuers) {
		if !bytes.Equal(by.RawSubject, l.raw.RawIssuer) || l.raw.CheckSignatureFrom(by) != nil {
			continue
		}
		if _, authority := authorityRun(by); authority || i < len(authorities) { // one that another vouches for, too
			return signedList{l, nil, by}, nil
		}
		return signedList{l, by, by}, nil
	}
	return signedList{}, errors.New("the revocation list is not signed by a trusted authority or issuer")
}

// SignedBy returns an error if none of some authorities has signed the list.
func (l *List) SignedBy(authorities ...*x509.Certificate) error {
	_, err := signed(l, authorities, nil)
	return err
}

// Signer returns what tells the signer of a list from others (Pin), if it is an authority
// that c trusts, or an issuer whose certificate c shows. Numbers of lists are compared with
// those of the same signer alone.
func (l *List) Signer(c *Credential) ([sha256.Size]byte, error) {
	s, err := signed(l, c.authorities, c.chain[1:])
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	return Pin(s.by), nil
}

// has reports whether the list revokes the endpoint at the beginning of a chain.
func (l signedList) has(id Identity, chain []*x509.Certificate) bool {
	scope := len(chain) // of these the signer may revoke
	if l.of != nil {
		if scope = slices.IndexFunc(chain, l.of.Equal); scope < 0 {
			return false
		}
	}
	for _, cert := range chain[:scope] {
		if l.serials[key(cert.SerialNumber)] {
			return true
		}
	}
	return slices.ContainsFunc(l.denied, func(d Denied) bool {
		return d.Role == id.Role && d.Name == id.Name && !id.NotBefore.After(d.Upto)
	})
}
