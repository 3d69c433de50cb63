package enroll

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gopccl/gopccl/internal/authority"
)

const (
	// atOnce bounds the enrolments that are under way.
	atOnce = 8
	// deskTime bounds one of them: half of it the wait for a seat, and half the wait for others
	// that work on the directory.
	deskTime = 10 * time.Second
	// After so many wrong proofs a token is shut for a time.
	mostWrong = 5
	shutFor   = time.Minute
)

// Desk is where a master lets newcomers in. Safe for concurrent use.
type Desk struct {
	dir   *authority.Dir
	now   func() time.Time
	seats chan struct{}

	mu    sync.Mutex
	wrong map[[8]byte]strikes // of tokens that are known
}

// strikes are the wrong proofs of a token since the first one.
type strikes struct {
	n     int
	since time.Time
}

// NewDesk returns a desk on the directory of an authority, or of an issuer, at path.
// now is the clock. Errors are *errs.Error.
func NewDesk(path string, now func() time.Time) (*Desk, error) {
	d, err := authority.Open(path, now)
	if err != nil {
		return nil, err
	}
	d.Patience(deskTime / 2)
	if err := d.CanEnrol(); err != nil {
		return nil, err
	}
	return &Desk{dir: d, now: now, seats: make(chan struct{}, atOnce), wrong: map[[8]byte]strikes{}}, nil
}

// Secured is a connection in TLS.
type Secured interface {
	net.Conn
	ConnectionState() tls.ConnectionState
}

// Serve answers the newcomer at conn, whose handshake is over and whose purpose is
// enrolment. It returns what was granted in words, or why nothing was. It is bounded in
// time, and does not close conn.
func (d *Desk) Serve(conn Secured) (what string, err error) {
	if err := conn.SetDeadline(time.Now().Add(deskTime)); err != nil {
		return "", err
	}
	r, err := readRequest(conn)
	if err != nil {
		return "", err
	}
	select {
	case d.seats <- struct{}{}:
		defer func() { <-d.seats }()
	case <-time.After(deskTime / 2):
		err = fmt.Errorf("%d others are being let in", atOnce)
	}
	var chain []*x509.Certificate
	var e authority.Entry
	if err == nil {
		chain, e, err = d.grant(r, conn.ConnectionState())
	}
	a := answer{clock: d.now(), chain: chain}
	switch {
	case err == nil:
	case errors.Is(err, authority.ErrNotValid):
		a.reason = authority.ErrNotValid.Error()
		err = fmt.Errorf("join token %x: %w", r.token, err)
	default: // nothing of the master's files is told
		a.reason = "the master cannot make a certificate now: its log says why"
	}
	if sent := a.send(conn); sent != nil && err == nil {
		err = fmt.Errorf("%s %s was let in by join token %x, and could not be told: %w", e.Role, e.Name, r.token, sent)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s was let in by join token %x", e.Role, e.Name, r.token), nil
}

// send writes an answer, which has a time of its own: what it is about may have taken all there was.
func (a *answer) send(conn net.Conn) error {
	if err := conn.SetWriteDeadline(time.Now().Add(deskTime / 2)); err != nil {
		return err
	}
	_, err := conn.Write(a.append(nil))
	return err
}

func (d *Desk) grant(r request, cs tls.ConnectionState) ([]*x509.Certificate, authority.Entry, error) {
	csr, ok := parse(r.csr)
	if !ok {
		return nil, authority.Entry{}, fmt.Errorf("%w: the request is not one of an Ed25519 key", authority.ErrNotValid)
	}
	if d.shut(r.token) {
		return nil, authority.Entry{}, fmt.Errorf("%w: after %d wrong proofs it is shut for %v", authority.ErrNotValid, mostWrong, shutFor)
	}
	return d.dir.Enrol(authority.Newcomer{
		Token: r.token, Key: csr.PublicKey, DER: csr.RawSubjectPublicKeyInfo, Name: csr.Subject.CommonName,
		Prove: func(key []byte) bool {
			want, err := prove(key, cs, r.csr)
			ok := err == nil && hmac.Equal(want[:], r.proof[:])
			d.count(r.token, ok)
			return ok
		},
	})
}

// parse reads a certificate request, signed with the Ed25519 key that it is for. Other
// keys are refused before their signature costs time: nobody's certificate may be one
// that is dear to verify for all members.
func parse(der []byte) (csr *x509.CertificateRequest, ok bool) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, false
	}
	if _, ok := csr.PublicKey.(ed25519.PublicKey); !ok {
		return nil, false
	}
	return csr, csr.CheckSignature() == nil
}

// shut reports whether a token has had too many wrong proofs.
func (d *Desk) shut(token [8]byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.wrong[token]
	if d.now().Sub(s.since) >= shutFor {
		delete(d.wrong, token)
		return false
	}
	return s.n >= mostWrong
}

// count notes the proof of a token that is known.
func (d *Desk) count(token [8]byte, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok {
		delete(d.wrong, token)
		return
	}
	s := d.wrong[token]
	if s.n == 0 {
		s.since = d.now()
	}
	s.n++
	d.wrong[token] = s
}

// ID returns the id of a token as the directory has it.
func ID(token [8]byte) string { return hex.EncodeToString(token[:]) }
