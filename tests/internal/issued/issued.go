// Package issued gives the endpoints of a test credentials, where the environment says
// that a run is in TLS, so that the same tests show both.
package issued

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/guard"
)

const (
	// Env is require where endpoints get credentials.
	Env = "GOPCCL_TEST_SECURITY"
	// made is the authority that the children of this process share.
	made = "GOPCCL_TEST_AUTHORITY"
	// ofHead is the credential of the masters.
	ofHead = "GOPCCL_TEST_HEAD"
	// revoked is the revocation list of the masters.
	revoked = "GOPCCL_TEST_REVOKED"
)

// On reports whether runs are in TLS.
func On() bool { return os.Getenv(Env) == "require" }

// SwitchOn has the runs of this process and of its children be in TLS, until off. It comes
// before they are started.
func SwitchOn() (off func()) {
	before, was := os.LookupEnv(Env)
	must(os.Setenv(Env, "require"))
	return func() {
		if was {
			must(os.Setenv(Env, before))
		} else {
			must(os.Unsetenv(Env))
		}
	}
}

// Peer gives a peer a credential of its own, unless it has one or runs are in plaintext.
func Peer(o *core.SecurityOptions) { give(o, secure.Peer) }

// Guard gives one to a peer that is made below core.
func Guard(o *guard.Options) {
	var s core.SecurityOptions
	if give(&s, secure.Peer); s.Credential != nil {
		o.Credential = s.Credential
	}
}

// Master gives one to a master.
func Master(o *core.SecurityOptions) { give(o, secure.Master) }

var count atomic.Int64

func give(o *core.SecurityOptions, role secure.Role) {
	if !On() || o.Credential != nil || o.File != "" || o.Join != "" || o.Mode != "" {
		return
	}
	if role == secure.Master {
		o.Credential, o.Revoked = head(), os.Getenv(revoked)
		return
	}
	o.Credential = Issue(secure.Identity{Role: role, Name: fmt.Sprintf("%v-%d-%d", role, os.Getpid(), count.Add(1))})
}

// head returns the credential of all masters, of this process and of those above and below
// it: a master that is started again has the file of the one before.
var head = sync.OnceValue(func() *secure.Credential {
	text, err := base64.StdEncoding.DecodeString(os.Getenv(ofHead))
	must(err)
	if len(text) == 0 {
		text = mint(signer(), secure.Identity{Role: secure.Master, Name: "head"})
		must(os.Setenv(ofHead, base64.StdEncoding.EncodeToString(text)))
	}
	c, err := secure.ParseCredential(text)
	must(err)
	return c
})

// Issue makes a credential of the runs in TLS, which a test uses by itself.
func Issue(id secure.Identity) *secure.Credential { return issue(signer(), id) }

// Foreign makes one of a run that has nothing to do with them.
func Foreign(id secure.Identity) *secure.Credential {
	s, err := authority.NewAuthority("foreign", "", time.Now())
	must(err)
	return issue(s, id)
}

func issue(s *authority.Signer, id secure.Identity) *secure.Credential {
	c, err := secure.ParseCredential(mint(s, id))
	must(err)
	return c
}

func mint(s *authority.Signer, id secure.Identity) []byte {
	_, text, err := s.NewCredential(id, []*x509.Certificate{s.Cert}, 48*time.Hour, time.Now())
	must(err)
	return text
}

// Revoke has the masters that are started from now on know that c is revoked, until undo.
func Revoke(c *secure.Credential) (undo func()) {
	der, err := signer().List(1, []x509.RevocationListEntry{{SerialNumber: c.Leaf().SerialNumber, RevocationTime: time.Now()}}, nil, time.Now())
	must(err)
	f, err := os.CreateTemp("", "gopccl-*.crl")
	must(err)
	must(pem.Encode(f, &pem.Block{Type: "X509 CRL", Bytes: der}))
	must(f.Close())
	must(os.Setenv(revoked, f.Name()))
	return func() {
		must(os.Unsetenv(revoked))
		must(os.Remove(f.Name()))
	}
}

// signer returns the authority of this process, and of those above and below it.
var signer = sync.OnceValue(func() *authority.Signer {
	if cert, key, ok := strings.Cut(os.Getenv(made), " "); ok {
		der, err := base64.StdEncoding.DecodeString(cert)
		must(err)
		seed, err := base64.StdEncoding.DecodeString(key)
		must(err)
		s := &authority.Signer{Key: ed25519.NewKeyFromSeed(seed)}
		s.Cert, err = x509.ParseCertificate(der)
		must(err)
		s.Run = secure.RunID(s.Cert)
		return s
	}
	s, err := authority.NewAuthority("test", "", time.Now())
	must(err)
	der, seed := s.Cert.Raw, s.Key.(ed25519.PrivateKey).Seed()
	must(os.Setenv(made, base64.StdEncoding.EncodeToString(der)+" "+base64.StdEncoding.EncodeToString(seed)))
	return s
})

// Share makes the authority, and the credential of the masters, before children are started.
func Share() {
	if On() {
		head()
	}
}

// Command returns a command of a process whose runs are in TLS, whatever this one does.
// All such processes share an authority.
func Command(program string) []string {
	head()
	return []string{"env", Env + "=require", program}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Dial connects to a port as a peer whose words the caller says by hand.
// Where runs are in TLS it has a credential, and the connection is for a purpose.
func Dial(addr string, p secure.Purpose) (net.Conn, error) {
	if !On() {
		return net.Dial("tcp", addr)
	}
	var o core.SecurityOptions
	Peer(&o)
	trust, err := secure.NewTrust(secure.TrustOptions{Credential: o.Credential})
	if err != nil {
		return nil, err
	}
	return tls.Dial("tcp", addr, trust.Client(secure.Want{Purpose: p}))
}
