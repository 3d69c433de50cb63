package secure

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
)

// Bounds of a credential.
const (
	MaxCredential   = 64 << 10 // bytes of the file
	maxCertificates = 8
	maxChain        = 4        // certificates that an endpoint sends
	maxChainBytes   = 16 << 10 // of them in DER
)

// AuthorityHeader marks the certificates of a credential that are trusted, and not
// sent.
const AuthorityHeader = "Gopccl-Authority"

const (
	loadOp    = "load credential"
	certBlock = "CERTIFICATE"
	keyBlock  = "PRIVATE KEY"
)

// Credential is what an endpoint shows, the key to it, and the authorities that
// it trusts. It is not changed. It prints as its name, in every format.
type Credential struct {
	leaf        *x509.Certificate
	chain       []*x509.Certificate // the leaf first
	authorities []*x509.Certificate
	key         *holder
}

// holder keeps the key away from what prints structures.
type holder struct{ signer crypto.Signer }

func (holder) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, hidden) }

// LoadOptions say which files are taken.
type LoadOptions struct {
	// AllowReadable takes a file that other users of the machine can read, as secrets
	// that are mounted into a container often are.
	AllowReadable bool
}

// LoadCredential reads a credential: one file of PEM blocks, which are the
// certificate, those between it and an authority, the private key (PKCS 8), and the
// authorities. The file must not be readable by others.
func LoadCredential(path string, o LoadOptions) (*Credential, error) {
	fail := func(code errs.Code, err error) (*Credential, error) {
		return nil, errs.New(code, loadOp, fmt.Errorf("%s: %w", path, err))
	}
	f, err := os.Open(path)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return fail(errs.InvalidConfig, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return fail(errs.InvalidConfig, err)
	case !info.Mode().IsRegular():
		return fail(errs.InvalidConfig, errors.New("not a file"))
	case !o.AllowReadable && readable(info):
		return fail(errs.InvalidConfig, fmt.Errorf("other users can read it (mode %04o): chmod 600, or allow it if it is a mounted secret", info.Mode().Perm()))
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxCredential+1))
	if err != nil {
		return fail(errs.InvalidConfig, err)
	}
	defer clear(text)
	c, err := parse(text)
	if err != nil {
		return fail(errs.CorruptFile, err)
	}
	return c, nil
}

// ParseCredential reads the text of a credential file.
func ParseCredential(text []byte) (*Credential, error) {
	c, err := parse(text)
	if err != nil {
		return nil, errs.New(errs.CorruptFile, loadOp, err)
	}
	return c, nil
}

var begin = []byte("-----BEGIN ")

// parse reads the blocks. What it says of them is their number.
func parse(text []byte) (*Credential, error) {
	if len(text) > MaxCredential {
		return nil, fmt.Errorf("larger than %d bytes", MaxCredential)
	}
	c := &Credential{}
	certificates, n := 0, 0
	for rest := bytes.TrimSpace(text); len(rest) > 0; {
		n++
		bad := func(format string, a ...any) (*Credential, error) {
			return nil, fmt.Errorf("block %d: "+format, append([]any{n}, a...)...)
		}
		if !bytes.HasPrefix(rest, begin) {
			return bad("text outside of the blocks")
		}
		b, behind := pem.Decode(rest)
		if b == nil || bytes.Count(rest[:len(rest)-len(behind)], begin) != 1 {
			return bad("damaged")
		}
		rest = bytes.TrimSpace(behind)
		marked := b.Headers[AuthorityHeader]
		for h := range b.Headers {
			if h == "Proc-Type" || h == "DEK-Info" {
				return bad("an encrypted key; a credential has it in the clear, in a file that nobody else can read")
			}
			if h != AuthorityHeader || marked != "yes" || b.Type != certBlock {
				return bad("a header that a credential does not have")
			}
		}
		switch b.Type {
		case certBlock:
			if certificates++; certificates > maxCertificates {
				return bad("more than %d certificates", maxCertificates)
			}
			cert, err := x509.ParseCertificate(b.Bytes)
			if err != nil {
				return bad("not a certificate that this program reads")
			}
			if err := checkKey(cert.PublicKey); err != nil {
				return bad("%w", err)
			}
			if marked == "yes" || c.leaf != nil && cert.IsCA && selfSigned(cert) {
				c.authorities = append(c.authorities, cert)
				continue
			}
			c.chain = append(c.chain, cert)
			c.leaf = c.chain[0]
		case keyBlock:
			if c.key != nil {
				return bad("a second private key")
			}
			key, err := x509.ParsePKCS8PrivateKey(b.Bytes)
			clear(b.Bytes)
			signer, ok := key.(crypto.Signer)
			if err != nil || !ok {
				return bad("not a private key that this program reads (PKCS 8)")
			}
			if err := checkKey(signer.Public()); err != nil {
				return bad("%w", err)
			}
			c.key = &holder{signer}
		default:
			return bad("neither a certificate nor a private key (PKCS 8)")
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(cert) == nil
}

// checkKey takes the kinds of keys that are common and safe.
func checkKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n >= 2048 && n <= 4096 {
			return nil
		}
	}
	return errors.New("a kind of key that is not taken; want Ed25519, P-256, P-384, or RSA of 2048 to 4096 bits")
}

// check holds the parts to each other.
func (c *Credential) check() error {
	switch {
	case c.leaf == nil:
		return errors.New("no certificate")
	case c.key == nil:
		return errors.New("no private key")
	case len(c.authorities) == 0:
		return errors.New("no certificate of an authority, so that nobody could be trusted")
	}
	if err := checkChain(c.chain); err != nil {
		return err
	}
	pub, ok := c.key.signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !pub.Equal(c.leaf.PublicKey) {
		return errors.New("the private key is not the one of the first certificate")
	}
	// Whether it is valid now is another question, which is asked of every use.
	at := c.leaf.NotBefore
	for _, cert := range slices.Concat(c.chain, c.authorities) {
		if cert.NotBefore.After(at) {
			at = cert.NotBefore
		}
	}
	opts := x509.VerifyOptions{Roots: pool(c.authorities), Intermediates: pool(c.chain[1:]), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := c.leaf.Verify(opts); err != nil {
		return fmt.Errorf("the first certificate does not lead to an authority in the file: %w", err)
	}
	return nil
}

func checkChain(chain []*x509.Certificate) error {
	size := 0
	for _, cert := range chain {
		size += len(cert.Raw)
	}
	if len(chain) > maxChain || size > maxChainBytes {
		return fmt.Errorf("a chain of %d certificates and %d bytes; at most %d and %d", len(chain), size, maxChain, maxChainBytes)
	}
	return nil
}

func pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

// Leaf returns the certificate of the endpoint, which is not to be changed.
func (c *Credential) Leaf() *x509.Certificate { return c.leaf }

// Identity returns what the certificate says of itself, if an authority of ours may
// have made it. Others decide whether they believe it (Trust.Verify).
func (c *Credential) Identity() (Identity, error) { return own(c.leaf) }

// Chain returns what the endpoint sends: its certificate, and those between it and
// an authority.
func (c *Credential) Chain() []*x509.Certificate { return slices.Clone(c.chain) }

// Authorities returns the certificates that the credential trusts.
func (c *Credential) Authorities() []*x509.Certificate { return slices.Clone(c.authorities) }

// Signer returns what signs with the key of the certificate.
func (c *Credential) Signer() crypto.Signer { return c.key.signer }

// certificate returns what crypto/tls sends.
func (c *Credential) certificate() tls.Certificate {
	out := tls.Certificate{PrivateKey: c.key.signer, Leaf: c.leaf}
	for _, cert := range c.chain {
		out.Certificate = append(out.Certificate, cert.Raw)
	}
	return out
}

// String returns the name in the certificate and its serial number.
func (c *Credential) String() string {
	name := "of an authority that is not ours"
	if id, err := own(c.leaf); err == nil {
		name = id.String()
	}
	return fmt.Sprintf("credential %s (serial %s)", name, serial(c.leaf))
}

// GoString returns what String does.
func (c *Credential) GoString() string { return c.String() }

// Format writes what String returns, whatever the verb.
func (c *Credential) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, c.String()) }

// LogValue returns what String does.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText returns what String does.
func (c *Credential) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
