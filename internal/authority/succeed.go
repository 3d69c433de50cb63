package authority

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/durable"
)

// Files of a directory whose authority has followed on another one. The cross certificate
// stays; the others are there until Finish.
const (
	formerCert = "former.crt"
	formerKey  = "former.key"
	crossFile  = "cross.crt" // in which the former authority vouches for the present one
)

const opSucceed = "rotate authority"

// cert reads a certificate that may not be there: nil.
func (d *Dir) cert(name string) (*x509.Certificate, error) {
	der, err := d.read(name, "CERTIFICATE")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.CorruptFile, "open authority", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fail("open authority", errs.CorruptFile, "%s: not a certificate that this program reads", d.file(name))
	}
	return cert, nil
}

// key reads a private key that only the user can read.
func (d *Dir) key(name string) (crypto.Signer, error) {
	const op = "open authority"
	info, err := os.Stat(d.file(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fail(op, errs.InvalidConfig, "%s is not there: bring it back to sign", d.file(name))
	case err != nil:
		return nil, errs.New(errs.InvalidConfig, op, err)
	case !private(info.Mode()):
		return nil, fail(op, errs.InvalidConfig, "%s: other users may read it (mode %04o): chmod 600", d.file(name), info.Mode().Perm())
	}
	der, err := d.read(name, "PRIVATE KEY")
	if err != nil {
		return nil, errs.New(errs.CorruptFile, op, err)
	}
	defer clear(der)
	key, err := x509.ParsePKCS8PrivateKey(der)
	s, ok := key.(crypto.Signer)
	if err != nil || !ok {
		return nil, fail(op, errs.CorruptFile, "%s: not a private key that this program reads", d.file(name))
	}
	return s, nil
}

func keyOf(s crypto.Signer, cert *x509.Certificate) bool {
	pub, ok := s.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && pub.Equal(cert.PublicKey)
}

// lineage completes an authority with what members need that know the former one alone.
func (d *Dir) lineage(s *Signer) error {
	cross, err := d.cert(crossFile)
	if err != nil {
		return err
	}
	if cross != nil && bytes.Equal(cross.RawSubjectPublicKeyInfo, s.Cert.RawSubjectPublicKeyInfo) {
		s.Via = []*x509.Certificate{cross}
	}
	former, err := d.cert(formerCert)
	if err == nil && former != nil && !former.Equal(s.Cert) {
		s.Former = former
	}
	return err
}

// listSigner returns what signs revocation lists: the former authority as long as there
// are members that know it alone.
func (d *Dir) listSigner(s *Signer) (*Signer, error) {
	if s.Former == nil {
		return s, nil
	}
	key, err := d.key(formerKey)
	if err != nil {
		return nil, err
	}
	return &Signer{Cert: s.Former, Key: key, Run: s.Run}, nil
}

// Succeed makes another authority for the run. The one before vouches for it, and is
// trusted beside it until Finish: credentials that are made from now on trust both, and
// those that know the former one alone trust them. A directory that a power cut has left
// between is taken as one in which nothing was done.
func (d *Dir) Succeed() error {
	return d.change(func(s *Signer) error {
		if s.Former != nil {
			return fail(opSucceed, errs.InvalidConfig, "the last rotation is not over").(*errs.Error).WithHint("gopccl keys rotate --finish ends it")
		}
		now := d.now()
		next, err := NewAuthority(s.Cert.Subject.CommonName, s.Run, now)
		if err != nil {
			return errs.New(errs.Internal, opSucceed, err)
		}
		cross, err := s.Cross(next, now)
		if err != nil {
			return errs.New(errs.Internal, opSucceed, err)
		}
		before, err := keyText(s.Key)
		if err != nil {
			return err
		}
		defer clear(before)
		after, err := keyText(next.Key)
		if err != nil {
			return err
		}
		defer clear(after)
		// The certificate says which authority it is: it comes last.
		return d.writeAll([]part{
			{formerKey, before},
			{formerCert, certText(s.Cert)},
			{crossFile, certText(cross)},
			{keyFile, after},
			{certFile, certText(next.Cert)},
		})
	})
}

type part struct {
	name string
	text []byte
}

func (d *Dir) writeAll(parts []part) error {
	for _, p := range parts {
		if err := durable.Replace(d.file(p.name), p.text, 0o600); err != nil {
			return errs.New(errs.InvalidConfig, opSucceed, err)
		}
	}
	return nil
}

func certText(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func keyText(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errs.New(errs.Internal, opSucceed, err)
	}
	defer clear(der)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// mark is what the log says of an authority.
func mark(root *x509.Certificate) string {
	pin := secure.Pin(root)
	return hex.EncodeToString(pin[:8])
}

// mark adds the authority to a line of the log. Of what an issuer signs it says nothing.
func (s *Signer) mark(e Entry) Entry {
	if len(s.Chain) == 0 {
		e.Authority = mark(s.Cert)
	}
	return e
}

// Behind returns the certificates that are valid, not revoked, and not of the present
// authority, whose endpoints have no younger one.
func (d *Dir) Behind() (list []Entry, err error) {
	root, err := d.Authority()
	if err != nil {
		return nil, err
	}
	log, err := d.Log()
	if err != nil {
		return nil, err
	}
	l, err := d.List()
	if err != nil {
		return nil, err
	}
	now := d.now()
	for i, e := range log {
		if e.Authority == mark(root) || !now.Before(e.NotAfter) || Revoked(l, e) {
			continue
		}
		if !slices.ContainsFunc(log[i+1:], func(o Entry) bool { return o.Role == e.Role && o.Name == e.Name }) {
			list = append(list, e)
		}
	}
	return list, nil
}

// Finish ends the trust in the former authority: credentials that are made from now on do
// not name it, its key is deleted, and the present one signs the revocation list. Without
// force it refuses while endpoints are Behind.
func (d *Dir) Finish(force bool) error {
	behind, err := d.Behind()
	if err != nil {
		return err
	}
	if len(behind) > 0 && !force {
		return fail(opSucceed, errs.InvalidConfig, "%d certificates of the former authority have no successor, that of %s %s among them", len(behind), behind[0].Role, behind[0].Name).(*errs.Error).
			WithHint("gopccl keys rotate FILE for each, or --force")
	}
	return d.change(func(s *Signer) error {
		if s.Former == nil {
			return fail(opSucceed, errs.InvalidConfig, "no rotation is under way").(*errs.Error).WithHint("gopccl keys rotate --authority begins one")
		}
		l, err := d.List()
		if err != nil {
			return err
		}
		now := d.now()
		der, err := s.List(l.Number()+1, listed(l.Serials(), now), l.Names(), now)
		if err != nil {
			return errs.New(errs.InvalidConfig, opSucceed, err)
		}
		if err := d.writeAll([]part{{listFile, der}}); err != nil {
			return err
		}
		for _, name := range []string{formerCert, formerKey} {
			if err := os.Remove(d.file(name)); err != nil {
				return errs.New(errs.InvalidConfig, opSucceed, err)
			}
		}
		return nil
	})
}
