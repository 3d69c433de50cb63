package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
	"github.com/gopccl/gopccl/internal/guard"
)

const (
	opRenew = "renew credential"
	// longestNap bounds how late it is seen that a clock was set.
	longestNap = time.Minute
	// A renewal that has failed is tried again after firstRetry, doubled up to lastRetry.
	firstRetry, lastRetry = 10 * time.Second, time.Hour
)

// askRenewal is what an endpoint sends that wants its certificate renewed.
func askRenewal(csr []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{version}, uint16(len(csr))), csr...)
}

func readRenewal(from io.Reader) (csr []byte, err error) {
	var head [3]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, fmt.Errorf("no request to renew: %w", err)
	}
	size := binary.BigEndian.Uint16(head[1:])
	switch {
	case head[0] != version:
		return nil, fmt.Errorf("a request to renew of version %d; this program knows %d", head[0], version)
	case size > maxRequest:
		return nil, fmt.Errorf("a request of %d bytes; at most %d", size, maxRequest)
	}
	csr = make([]byte, size)
	if _, err := io.ReadFull(from, csr); err != nil {
		return nil, fmt.Errorf("a request to renew that is cut off: %w", err)
	}
	return csr, nil
}

// Renew answers the endpoint at conn, whose handshake is over, whose purpose is renewal,
// and who is id. It returns what was granted in words, or why nothing was. It is bounded
// in time, and does not close conn.
func (d *Desk) Renew(conn Secured, id secure.Identity) (what string, err error) {
	if err := conn.SetDeadline(time.Now().Add(deskTime)); err != nil {
		return "", err
	}
	der, err := readRenewal(conn)
	if err != nil {
		return "", err
	}
	var chain []*x509.Certificate
	var e authority.Entry
	select {
	case d.seats <- struct{}{}:
		chain, e, err = d.sign(conn, id, der)
		<-d.seats
	case <-time.After(deskTime / 2):
		err = fmt.Errorf("%d others are being let in", atOnce)
	}
	a := answer{clock: d.now(), chain: chain}
	switch {
	case err == nil:
	case errors.Is(err, authority.ErrNotRenewed):
		a.reason = err.Error()
	default: // nothing of the master's files is told
		a.reason = "the master cannot make a certificate now: its log says why"
	}
	if sent := a.send(conn); sent != nil && err == nil {
		err = fmt.Errorf("the certificate of %s was renewed, and it could not be told: %w", e.Name, sent)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the certificate of %s %s was renewed until %s", e.Role, e.Name, stamp(e.NotAfter)), nil
}

func (d *Desk) sign(conn Secured, id secure.Identity, der []byte) ([]*x509.Certificate, authority.Entry, error) {
	csr, ok := parse(der)
	if !ok {
		return nil, authority.Entry{}, fmt.Errorf("%w: the request is not one of an Ed25519 key", authority.ErrNotRenewed)
	}
	return d.dir.Renew(conn.ConnectionState().PeerCertificates[0], id, csr.PublicKey)
}

// Signer is where the next certificate of an endpoint comes from.
type Signer struct {
	// sign returns one of another key for the endpoint that has a credential, and those
	// between it and the authority.
	sign  func(context.Context, *secure.Credential, ed25519.PrivateKey) ([]*x509.Certificate, error)
	fault errs.Code // of its errors
}

// AtMaster has a master sign, to which dial returns a connection of the purpose renewal.
func AtMaster(dial func(context.Context) (net.Conn, error)) Signer {
	return Signer{func(ctx context.Context, _ *secure.Credential, key ed25519.PrivateKey) ([]*x509.Certificate, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		return ask(conn, key)
	}, errs.MasterConnectionFailed}
}

// AtDesk has the desk of the endpoint itself sign, which may be nil. That of an authority signs
// masters, and that of an issuer does not.
func AtDesk(d *Desk) Signer {
	return Signer{func(_ context.Context, c *secure.Credential, key ed25519.PrivateKey) ([]*x509.Certificate, error) {
		if d == nil {
			return nil, errors.New("there is no authority at hand")
		}
		id, err := c.Identity()
		if err != nil {
			return nil, err
		}
		chain, _, err := d.dir.Renew(c.Leaf(), id, key.Public())
		return chain, err
	}, errs.InvalidConfig}
}

// ask is the end of a peer of Desk.Renew.
func ask(conn net.Conn, key ed25519.PrivateKey) ([]*x509.Certificate, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "renewal"}}, key)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(askRenewal(csr)); err != nil {
		return nil, explain(err)
	}
	a, err := readAnswer(conn)
	switch {
	case err != nil:
		return nil, explain(err)
	case len(a.chain) == 0:
		return nil, errors.New(a.reason)
	}
	return a.chain, nil
}

// Keep renews the credential of g whenever two thirds of its life are over, until ctx
// ends, with a new key. tell hears of the new one, and of an error as often as half of the
// time that was left is over. A credential in a file is replaced there.
func Keep(ctx context.Context, g *guard.Guard, at Signer, tell func(*guard.News, error)) {
	c := g.Credential()
	if c == nil {
		return
	}
	if _, err := c.Identity(); err != nil {
		return // of an authority that is not ours
	}
	due, retry := renewal(c), firstRetry
	var left time.Duration // when an error was told
	for {
		wait := min(time.Until(due), longestNap)
		if wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
		if now := g.Credential(); now != c { // it was rotated
			c, due, retry, left = now, renewal(now), firstRetry, 0
			if soon := time.Now().Add(firstRetry); due.Before(soon) { // its life is short
				due = soon
			}
		}
		if time.Now().Before(due) {
			continue
		}
		err := renew(ctx, g, c, at, func(news *guard.News) { tell(news, nil) })
		if ctx.Err() != nil {
			return
		}
		if err == nil && g.Credential() != c {
			continue
		}
		if err == nil {
			err = errors.New("the file did not change")
		}
		due, retry = time.Now().Add(retry), min(2*retry, lastRetry)
		if rest := time.Until(c.Leaf().NotAfter); left == 0 || rest < left/2 {
			left = max(rest, 1)
			tell(nil, errs.New(at.fault, opRenew, fmt.Errorf("%v expires at %s: %w", c, stamp(c.Leaf().NotAfter), err)).
				WithHint("start the master with --enroll, or replace the file (gopccl keys rotate)"))
		}
	}
}

// renewal returns when a credential is renewed: at two thirds of its life, less a random
// tenth, so that those that were made together are not all renewed together.
func renewal(c *secure.Credential) time.Time {
	leaf := c.Leaf()
	life := float64(leaf.NotAfter.Sub(leaf.NotBefore))
	return leaf.NotBefore.Add(time.Duration(life * (2.0/3 - mrand.Float64()/10)))
}

// renew has a new key signed, and puts the credential in force. tell hears of all
// that has come into force meanwhile.
func renew(ctx context.Context, g *guard.Guard, c *secure.Credential, at Signer, tell func(*guard.News)) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	path := g.File()
	if path != "" { // processes that share the file renew once
		unlock, err := lockFile(ctx, path)
		if err != nil {
			return err
		}
		defer unlock()
		news, _ := g.Reload() // who watches the files tells of errors
		if news != nil {
			tell(news)
		}
		if g.Credential() != c {
			return nil
		}
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	chain, err := at.sign(ctx, c, key)
	if err != nil {
		return err
	}
	text, err := authority.Encode(chain[0], chain[1:], key, c.Authorities())
	if err != nil {
		return err
	}
	defer clear(text)
	// The file is not touched before it is known that what was granted can be used.
	next, err := secure.ParseCredential(text)
	if err == nil {
		err = g.Fits(next)
	}
	if err != nil {
		return fmt.Errorf("what was granted cannot be used: %w", err)
	}
	var news *guard.News
	if path == "" {
		news, err = g.Renewed(next)
	} else if err = durable.Replace(path, text, 0o600); err == nil {
		news, err = g.Reload()
	} else {
		err = fmt.Errorf("it was granted, and could not be stored: %w", err)
	}
	if news != nil {
		tell(news)
	}
	return err
}
