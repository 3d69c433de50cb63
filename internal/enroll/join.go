package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/transport"
)

const (
	opJoin = "join with a token"
	// attempt bounds one enrolment at one master.
	attempt = 15 * time.Second
	// attempts are made where an answer was lost. The same key gets the same answer.
	attempts = 3
)

// Dialler opens connections.
type Dialler func(ctx context.Context, network, addr string) (net.Conn, error)

// Obtain returns o with a credential, if it has a join token: the one in the file that
// it names, if that is there and valid, else one that a master grants, which is written
// to the file. The masters are those of the token, or else those at addr, separated by commas. dial may be
// nil. Errors are *errs.Error.
func Obtain(ctx context.Context, o guard.Options, addr string, dial Dialler) (guard.Options, error) {
	if o.Join == "" || o.Credential != nil || !o.On() {
		return o, nil
	}
	if o.File == "" {
		c, _, err := enrol(ctx, o.Join, addr, dial)
		o.Credential, o.Join = c, ""
		return o, err
	}
	unlock, err := lockFile(ctx, o.File)
	if err != nil {
		return o, err
	}
	defer unlock() // processes that share the file join once
	c, err := secure.LoadCredential(o.File, secure.LoadOptions{})
	switch {
	case err == nil && time.Now().Before(c.Leaf().NotAfter):
		o.Join = ""
		return o, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return o, err
	}
	c, text, err := enrol(ctx, o.Join, addr, dial)
	if err != nil {
		return o, err
	}
	defer clear(text)
	if err := durable.Replace(o.File, text, 0o600); err != nil {
		return o, errs.New(errs.InvalidConfig, opJoin, fmt.Errorf("%v was granted, and could not be stored: %w", c, err))
	}
	o.Join = ""
	return o, nil
}

// lockFile waits for the right to make a file.
func lockFile(ctx context.Context, path string) (unlock func() error, err error) {
	l, err := durable.AwaitLock(ctx, path+".lock")
	switch {
	case err == nil:
		return l.Unlock, nil
	case ctx.Err() != nil:
		return nil, errs.New(errs.Canceled, opJoin, context.Cause(ctx)).WithHint("another process is about to write " + path)
	}
	return nil, errs.New(errs.InvalidConfig, opJoin, err)
}

// enrol makes a key, and has a master sign it.
func enrol(ctx context.Context, join secure.Join, addr string, dial Dialler) (*secure.Credential, []byte, error) {
	token, err := join.Token()
	if err != nil {
		return nil, nil, err
	}
	masters := token.Masters
	if len(masters) == 0 {
		masters = strings.Split(addr, ",")
	}
	if dial == nil {
		dial = transport.Dial
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, errs.New(errs.Internal, opJoin, err)
	}
	host, _ := os.Hostname()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: host[:min(len(host), 64)]}}, key)
	if err != nil {
		return nil, nil, errs.New(errs.Internal, opJoin, err)
	}
	n := newcomer{token: token, key: key, csr: csr, dial: dial}
	for range attempts {
		for _, m := range masters {
			var c *secure.Credential
			var text []byte
			var final bool
			c, text, final, err = n.ask(ctx, strings.TrimSpace(m))
			if err == nil {
				return c, text, nil
			}
			if final || ctx.Err() != nil {
				return nil, nil, err
			}
		}
	}
	return nil, nil, err
}

// newcomer is what wants a certificate of its key.
type newcomer struct {
	token secure.Token
	key   ed25519.PrivateKey
	csr   []byte
	dial  Dialler
}

// ask asks one master. final says that another attempt would be of no use.
func (n *newcomer) ask(ctx context.Context, master string) (c *secure.Credential, text []byte, final bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	lost := func(err error) error {
		return errs.New(errs.MasterConnectionFailed, opJoin, err).WithPeer(master)
	}
	sock, err := n.dial(ctx, "tcp", master)
	if err != nil {
		return nil, nil, false, lost(err)
	}
	defer sock.Close()
	defer context.AfterFunc(ctx, func() { sock.Close() })()
	conn := tls.Client(sock, n.token.Client(time.Now))
	if err := conn.HandshakeContext(ctx); err != nil {
		var refused *secure.Refusal
		return nil, nil, errors.As(err, &refused), lost(explain(err))
	}
	cs := conn.ConnectionState()
	key, err := n.token.VerifyKey()
	if err != nil {
		return nil, nil, true, errs.New(errs.Internal, opJoin, err)
	}
	r := request{token: n.token.ID, csr: n.csr}
	if r.proof, err = prove(key, cs, n.csr); err != nil {
		return nil, nil, true, errs.New(errs.Internal, opJoin, err)
	}
	if _, err := conn.Write(r.append(nil)); err != nil {
		return nil, nil, false, lost(explain(err))
	}
	a, err := readAnswer(conn)
	if err != nil {
		return nil, nil, false, lost(explain(err))
	}
	if len(a.chain) == 0 {
		return nil, nil, true, errs.New(errs.TurnedAway, opJoin, errors.New(a.reason)).WithPeer(master).
			WithHint("the log of the master says why; gopccl keys token makes another one")
	}
	if c, text, err = n.credential(a, cs); err != nil {
		return nil, nil, true, errs.New(errs.Protocol, opJoin, err).WithPeer(master)
	}
	return c, text, true, nil
}

// credential puts together what was granted. The authority is the one that the token
// pins, and no other: a master cannot name one.
func (n *newcomer) credential(a answer, cs tls.ConnectionState) (*secure.Credential, []byte, error) {
	root, err := n.token.Authority(cs)
	if err != nil {
		return nil, nil, err
	}
	text, err := authority.Encode(a.chain[0], a.chain[1:], n.key, []*x509.Certificate{root})
	if err != nil {
		return nil, nil, err
	}
	c, err := secure.ParseCredential(text)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	if leaf := c.Leaf(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, nil, fmt.Errorf("the certificate is valid from %s to %s; the clock of this machine says %s, and that of the master %s",
			stamp(leaf.NotBefore), stamp(leaf.NotAfter), stamp(now), stamp(a.clock))
	}
	return c, text, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// explain says what an error of a connection means.
func explain(err error) error {
	return guard.Explain(err, "a gopccl master", "it lets nobody in by join tokens (gopccl master --enroll), or is of another run")
}
