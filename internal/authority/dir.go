package authority

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/durable"
)

// Files of the directory.
const (
	keyFile  = "authority.key"
	certFile = "authority.crt"
	// issuerFile is the credential of an issuer, which signs newcomers in place of the
	// authority.
	issuerFile = "issuer.pem"
	logFile    = "issued.log"
	listFile   = "revoked.crl"
	lockFile   = "lock"
)

const (
	maxFile = 64 << 20 // of the log; the others are small
	// patience is how long the lock is awaited, which is held while a few files are written.
	patience = 30 * time.Second
	// stale is the age at which what a process that was killed has left half written is
	// removed.
	stale = time.Hour
)

// Dir is the directory of an authority.
type Dir struct {
	path     string
	now      func() time.Time
	patience time.Duration
}

// Entry is a line of the log of certificates.
type Entry struct {
	Time        time.Time `json:"time"`
	Serial      string    `json:"serial"`
	Role        string    `json:"role"`
	Name        string    `json:"name"`
	Groups      []uint32  `json:"groups,omitempty"`
	Single      bool      `json:"single,omitempty"`
	Enroll      bool      `json:"enroll,omitempty"`
	Lead        bool      `json:"lead,omitempty"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Fingerprint string    `json:"fingerprint"` // SHA-256 of the certificate
	By          string    `json:"by"`          // what has asked for it
	// Authority is the beginning of the SHA-256 of the key of the authority that has signed
	// it, in hexadecimal.
	Authority string `json:"authority,omitempty"`
}

// Fingerprint returns the SHA-256 of a certificate in hexadecimal.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return fmt.Sprintf("%x", sum)
}

func fail(op string, code errs.Code, format string, a ...any) error {
	return errs.New(code, op, fmt.Errorf(format, a...))
}

// Init makes the directory of a new authority, which must not exist, or be empty.
// The directory appears with the key as the last file, so a cut leaves one that
// Open refuses and Init may use again.
func Init(path, title string, now func() time.Time) (run string, err error) {
	const op = "make authority"
	if len(title) > 200 {
		return "", fail(op, errs.InvalidConfig, "the name of the run has %d bytes; at most 200", len(title))
	}
	if err := durable.MakeDir(path, 0o700); err != nil {
		return "", errs.New(errs.InvalidConfig, op, err)
	}
	d := &Dir{path: path, now: now, patience: patience}
	if err := d.checkMode(op); err != nil {
		return "", err
	}
	unlock, err := d.lock(op)
	if err != nil {
		return "", err
	}
	defer unlock()
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", errs.New(errs.InvalidConfig, op, err)
	}
	for _, e := range entries {
		if e.Name() == keyFile {
			return "", fail(op, errs.InvalidConfig, "%s has an authority already", path)
		}
		if _, cut := durable.Leaving(e.Name()); e.Name() != lockFile && e.Name() != certFile && e.Name() != listFile && !cut {
			return "", fail(op, errs.InvalidConfig, "%s is not empty: it has %q", path, e.Name())
		}
	}
	s, err := NewAuthority(title, "", now())
	if err != nil {
		return "", errs.New(errs.Internal, op, err)
	}
	list, err := s.List(1, nil, nil, now())
	if err != nil {
		return "", errs.New(errs.Internal, op, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(s.Key)
	if err != nil {
		return "", errs.New(errs.Internal, op, err)
	}
	defer clear(der)
	for _, f := range []struct {
		name string
		text []byte
	}{
		{certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Cert.Raw})},
		{listFile, list},
		{keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})},
	} {
		if err := durable.Replace(d.file(f.name), f.text, 0o600); err != nil {
			return "", errs.New(errs.InvalidConfig, op, err)
		}
	}
	durable.Clean(path, 0, keyFile, certFile, listFile)
	return s.Run, nil
}

// Open returns the directory of an authority.
func Open(path string, now func() time.Time) (*Dir, error) {
	const op = "open authority"
	d := &Dir{path: path, now: now, patience: patience}
	if err := d.checkMode(op); err != nil {
		return nil, err
	}
	_, issuer := os.Stat(d.file(issuerFile))
	if _, err := os.Stat(d.file(certFile)); err != nil && issuer != nil {
		return nil, errs.New(errs.InvalidConfig, op, err).WithHint("make one with gopccl keys init --dir, or put the credential of an issuer there as " + issuerFile)
	}
	durable.Clean(path, stale)
	return d, nil
}

// Patience sets how long calls wait for others that work on the directory, 30 s without it.
func (d *Dir) Patience(most time.Duration) { d.patience = most }

// lock waits for the only right to change the directory.
func (d *Dir) lock(op string) (unlock func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.patience)
	defer cancel()
	l, err := durable.AwaitLock(ctx, d.file(lockFile))
	switch {
	case err == nil:
		return l.Unlock, nil
	case ctx.Err() != nil:
		return nil, fail(op, errs.Timeout, "another process has worked on %s for %v", d.path, d.patience).(*errs.Error).
			WithHint("end a gopccl that stands still there, and try again")
	}
	return nil, errs.New(errs.InvalidConfig, op, err)
}

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

func (d *Dir) checkMode(op string) error {
	info, err := os.Stat(d.path)
	switch {
	case err != nil:
		return errs.New(errs.InvalidConfig, op, err)
	case !info.IsDir():
		return fail(op, errs.InvalidConfig, "%s is not a directory", d.path)
	case !private(info.Mode()):
		return fail(op, errs.InvalidConfig, "%s: other users may read it (mode %04o): chmod 700", d.path, info.Mode().Perm())
	}
	return nil
}

func (d *Dir) read(name, kind string) ([]byte, error) {
	text, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil, err
	}
	b, rest := pem.Decode(text)
	if b == nil || b.Type != kind || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s: not one block of the type %s", d.file(name), kind)
	}
	return b.Bytes, nil
}

// Authority returns the certificate of the authority.
func (d *Dir) Authority() (*x509.Certificate, error) {
	der, err := d.read(certFile, "CERTIFICATE")
	if err != nil {
		return nil, errs.New(errs.CorruptFile, "open authority", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fail("open authority", errs.CorruptFile, "%s: not a certificate that this program reads", d.file(certFile))
	}
	return cert, nil
}

// signer reads the key. It may have been taken offline.
func (d *Dir) signer() (*Signer, error) {
	const op = "open authority"
	cert, err := d.Authority()
	if err != nil {
		return nil, err
	}
	key, err := d.key(keyFile)
	if err != nil {
		return nil, err
	}
	if !keyOf(key, cert) { // a rotation that was cut off has written the next key, and not its certificate
		if key, err = d.key(formerKey); err != nil || !keyOf(key, cert) {
			return nil, fail(op, errs.CorruptFile, "%s is not the key of %s", d.file(keyFile), d.file(certFile))
		}
	}
	if len(cert.URIs) != 1 || len(cert.URIs[0].Host) < 4 {
		return nil, fail(op, errs.CorruptFile, "%s: not an authority of a run", d.file(certFile))
	}
	host := cert.URIs[0].Host
	s := &Signer{Cert: cert, Key: key, Run: host[:len(host)-len(".run")]}
	return s, d.lineage(s)
}

// enroller reads what signs newcomers, an issuer if there is one, and the authorities
// that they trust, the former one last.
func (d *Dir) enroller() (*Signer, []*x509.Certificate, error) {
	const op = "open issuer"
	c, err := secure.LoadCredential(d.file(issuerFile), secure.LoadOptions{})
	if errors.Is(err, fs.ErrNotExist) {
		s, err := d.signer()
		if err != nil {
			return nil, nil, err
		}
		return s, s.Trusted(), nil
	}
	if err != nil {
		return nil, nil, err
	}
	id, err := c.Identity()
	switch {
	case err != nil:
		return nil, nil, fail(op, errs.InvalidConfig, "%s: %w", d.file(issuerFile), err)
	case id.Role != secure.Issuer:
		return nil, nil, fail(op, errs.InvalidConfig, "%s is of %v, and not of an issuer (gopccl keys issue --role issuer)", d.file(issuerFile), id)
	case d.now().After(id.NotAfter):
		return nil, nil, fail(op, errs.InvalidConfig, "%s has expired at %s", d.file(issuerFile), id.NotAfter.UTC().Format(time.RFC3339))
	}
	return &Signer{Cert: c.Leaf(), Key: c.Signer(), Chain: c.Chain(), Run: id.Run, Groups: id.Groups}, c.Authorities(), nil
}

// enrolling runs do with the lock and what signs newcomers.
func (d *Dir) enrolling(do func(*Signer, []*x509.Certificate) error) error {
	unlock, err := d.lock("open authority")
	if err != nil {
		return err
	}
	defer unlock()
	s, roots, err := d.enroller()
	if err != nil {
		return err
	}
	return do(s, roots)
}

// CanEnrol reports whether newcomers can be signed: there is an issuer, or the key of
// the authority.
func (d *Dir) CanEnrol() error {
	return d.enrolling(func(*Signer, []*x509.Certificate) error { return nil })
}

// change runs do with the lock and the key.
func (d *Dir) change(do func(*Signer) error) error {
	unlock, err := d.lock("open authority")
	if err != nil {
		return err
	}
	defer unlock()
	s, err := d.signer()
	if err != nil {
		return err
	}
	return do(s)
}

// Issue makes a key and a credential for id. The log has the certificate before
// anybody else has it.
func (d *Dir) Issue(id secure.Identity, life time.Duration, by string) (text []byte, e Entry, err error) {
	const op = "issue credential"
	if life < MinLife || life > MaxLife {
		return nil, e, fail(op, errs.InvalidConfig, "a life of %v; want %v to %v", life, MinLife, MaxLife)
	}
	err = d.change(func(s *Signer) error {
		now := d.now()
		l, err := d.List()
		if err != nil {
			return err
		}
		id.NotBefore = now.Add(-tolerance).Truncate(time.Second)
		id.NotBefore = after(l, id)
		var cert *x509.Certificate
		if cert, text, err = s.NewCredential(id, s.Trusted(), life, now); err != nil {
			return errs.New(errs.InvalidConfig, op, err)
		}
		e = s.mark(entry(id, cert, now, by))
		return d.append(e)
	})
	if err != nil {
		return nil, Entry{}, err
	}
	return text, e, nil
}

// Rotate makes a credential with a new key for the endpoint of an earlier one, which has
// to be of this run and not revoked, with the same groups and rights.
func (d *Dir) Rotate(c *secure.Credential, life time.Duration) (text []byte, e Entry, err error) {
	const op = "rotate credential"
	id, err := c.Identity()
	if err != nil {
		return nil, e, errs.New(errs.InvalidConfig, op, err)
	}
	root, err := d.Authority()
	if err != nil {
		return nil, e, err
	}
	if run := root.URIs; len(run) != 1 || run[0].Host != id.Run+".run" {
		return nil, e, fail(op, errs.InvalidConfig, "%v is of another run", c)
	}
	l, err := d.List()
	if err != nil {
		return nil, e, err
	}
	if Revoked(l, entry(id, c.Leaf(), d.now(), "")) {
		return nil, e, fail(op, errs.InvalidConfig, "%v is revoked", c).(*errs.Error).WithHint("issue another one (gopccl keys issue)")
	}
	return d.Issue(id, life, "rotate "+id.Serial)
}

// after returns when a certificate of id begins: behind what a list revokes of the name.
func after(l *secure.List, id secure.Identity) time.Time {
	at := id.NotBefore
	for _, n := range l.Names() {
		if n.Role == id.Role && n.Name == id.Name && !at.After(n.Upto) {
			at = n.Upto.Add(time.Second)
		}
	}
	return at
}

func entry(id secure.Identity, cert *x509.Certificate, now time.Time, by string) Entry {
	return Entry{
		Time: now.UTC().Truncate(time.Second), Serial: fmt.Sprintf("%032x", cert.SerialNumber), Role: id.Role.String(), Name: id.Name, Groups: id.Groups,
		Single: id.Single, Enroll: id.Enroll, Lead: id.Lead, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, Fingerprint: Fingerprint(cert), By: by,
	}
}

// append adds a line to the log. A line that a power cut has left half is ended first.
func (d *Dir) append(e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.file(logFile), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return errs.New(errs.InvalidConfig, "write log", err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil && size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err = f.Write(append(line, '\n')); err == nil {
		err = f.Sync()
	}
	if err == nil && size == 0 {
		err = durable.SyncDir(d.path)
	}
	if err != nil {
		return errs.New(errs.InvalidConfig, "write log", err)
	}
	return nil
}

// Log returns the certificates that were made, in their order. A line that is not
// whole is one whose certificate nobody has got.
func (d *Dir) Log() (list []Entry, err error) {
	f, err := os.Open(d.file(logFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.InvalidConfig, "read log", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxFile))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Entry
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Serial != "" {
			list = append(list, e)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, errs.New(errs.CorruptFile, "read log", fmt.Errorf("%s: %w", d.file(logFile), err))
	}
	return list, nil
}

// List returns the revocation list.
func (d *Dir) List() (*secure.List, error) {
	der, err := os.ReadFile(d.file(listFile))
	if err != nil {
		return nil, errs.New(errs.InvalidConfig, "read revocation list", err)
	}
	l, err := secure.ParseList(der)
	if err != nil {
		return nil, errs.New(errs.CorruptFile, "read revocation list", fmt.Errorf("%s: %w", d.file(listFile), err))
	}
	return l, nil
}
