package secure

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// Join is a join token as users pass it on: its text, or @ and the path of a file that
// has it. It prints as a word, in every format.
type Join string

// Token reads the token. Its errors do not quote it.
func (j Join) Token() (Token, error) {
	path, file := strings.CutPrefix(string(j), "@")
	if !file {
		return ParseToken(string(j))
	}
	f, err := os.Open(path)
	if err != nil {
		return Token{}, errs.New(errs.InvalidConfig, "read join token", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2*maxToken))
	if err != nil {
		return Token{}, errs.New(errs.InvalidConfig, "read join token", err)
	}
	defer clear(text)
	return ParseToken(string(text))
}

// IsJoin reports whether a text looks like a join token, or names a file with one.
func IsJoin(text string) bool {
	return strings.HasPrefix(text, tokenPrefix) || strings.HasPrefix(text, "@")
}

// Check reports what is wrong with the text of a token. A file is not read.
func (j Join) Check() error {
	if j == "" || j[0] == '@' && len(j) > 1 {
		return nil
	}
	if j == "@" {
		return errors.New("the path of a file is missing after @")
	}
	if _, err := ParseToken(string(j)); err != nil {
		var e *errs.Error
		if errors.As(err, &e) {
			return fmt.Errorf("not a join token: %w", e.Err)
		}
		return err
	}
	return nil
}

// String returns a word in place of the token.
func (j Join) String() string { return hidden }

// GoString returns a word in place of the token.
func (j Join) GoString() string { return hidden }

// Format writes a word in place of the token, whatever the verb.
func (j Join) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, hidden) }

// LogValue returns a word in place of the token.
func (j Join) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText returns a word in place of the token.
func (j Join) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Run returns the id of the run whose authority the token pins.
func (t Token) Run() string { return runID(t.Pin) }

// Pin returns what a token says of an authority.
func Pin(authority *x509.Certificate) [sha256.Size]byte {
	return sha256.Sum256(authority.RawSubjectPublicKeyInfo)
}

// Client returns the configuration of a connection for enrolment: the other end has
// to be a master whose certificate the authority that t pins has signed. This end has
// no certificate.
func (t Token) Client(now func() time.Time) *tls.Config {
	return &tls.Config{
		NextProtos: []string{Enrolment.String()}, ServerName: t.Run() + ".run",
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, Time: now,
		InsecureSkipVerify: true, // VerifyConnection is called instead, with no way around it
		VerifyConnection: func(cs tls.ConnectionState) error {
			authority, err := t.Authority(cs)
			if err != nil {
				return err
			}
			trust := Trust{credential: &Credential{authorities: []*x509.Certificate{authority}}, roots: pool([]*x509.Certificate{authority}), now: now}
			_, err = trust.Verify(cs, Want{Purpose: Enrolment, Server: true})
			return err
		},
	}
}

// Authority returns the certificate of the authority that t pins, which a master sends
// to newcomers. That a certificate leads to it is not said by this.
func (t Token) Authority(cs tls.ConnectionState) (*x509.Certificate, error) {
	for i, cert := range cs.PeerCertificates {
		if i > 0 && Pin(cert) == t.Pin {
			return cert, nil
		}
	}
	return nil, refuse(Unknown, "", "it does not show the authority that the join token names: it is of another run, or somebody is in between")
}
