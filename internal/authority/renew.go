package authority

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
)

// ErrNotRenewed means that the endpoint gets no other certificate now. The text behind it
// may be told to it.
var ErrNotRenewed = errors.New("the certificate is not renewed")

// renewedBy stands in the log in front of the serial number of the certificate before.
const renewedBy = "renew "

// mostRenewals bounds the certificates that follow on one.
const mostRenewals = 4

// Renew returns a certificate of another key for the endpoint that has shown leaf and is
// id, with the same groups and rights, and for as long, and those between it and the
// authority. The first half of a life is too early. The error is ErrNotRenewed where
// nothing is wrong with the directory.
func (d *Dir) Renew(leaf *x509.Certificate, id secure.Identity, key crypto.PublicKey) (chain []*x509.Certificate, e Entry, err error) {
	err = d.enrolling(func(s *Signer, _ []*x509.Certificate) error {
		now := d.now()
		if now.Before(leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)) {
			return fmt.Errorf("%w: more than half of its life is left", ErrNotRenewed)
		}
		if id.Run != s.Run {
			return fmt.Errorf("%w: it is of another run", ErrNotRenewed)
		}
		l, err := d.List()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if l != nil && Revoked(l, entry(id, leaf, now, "")) {
			return fmt.Errorf("%w: it is revoked", ErrNotRenewed)
		}
		by, n := renewedBy+fmt.Sprintf("%032x", leaf.SerialNumber), 0
		log, err := d.Log()
		if err != nil {
			return err
		}
		for _, e := range log {
			if e.By == by {
				n++
			}
		}
		if n >= mostRenewals {
			return fmt.Errorf("%w: it was renewed %d times, each time with another key", ErrNotRenewed, n)
		}
		life := min(max(leaf.NotAfter.Sub(leaf.NotBefore)-tolerance, MinLife), MaxLife)
		id.NotBefore = now.Add(-tolerance).Truncate(time.Second)
		if l != nil {
			id.NotBefore = after(l, id)
		}
		if most := s.Cert.NotAfter; most.Before(leaf.NotAfter.Add(life / 10)) {
			return fmt.Errorf("%w: what signs it expires itself at %s", ErrNotRenewed, most.UTC().Format(time.RFC3339))
		}
		cert, err := s.Sign(id, key, life, now)
		if err != nil { // it has more rights than the issuer may give
			return fmt.Errorf("%w: %w", ErrNotRenewed, err)
		}
		chain, e = append([]*x509.Certificate{cert}, s.path()...), s.mark(entry(id, cert, now, by))
		return d.append(e)
	})
	if errors.Is(err, ErrNotRenewed) || err == nil {
		return chain, e, err
	}
	return nil, Entry{}, errs.New(errs.InvalidConfig, "renew", err)
}
