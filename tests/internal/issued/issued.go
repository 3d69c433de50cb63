// Package issued gives the endpoints of a test credentials, where the environment says
// that a run is in TLS, so that the same tests show both.
package issued

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
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
)

const (
	// Env is require where endpoints get credentials.
	Env = "GOPCCL_TEST_SECURITY"
	// made is the authority that the children of this process share.
	made = "GOPCCL_TEST_AUTHORITY"
)

// On reports whether runs are in TLS.
func On() bool { return os.Getenv(Env) == "require" }

// SwitchOn has the runs of this process and of its children be in TLS. It comes first.
func SwitchOn() { must(os.Setenv(Env, "require")) }

// Peer gives a peer a credential of its own, unless it has one or runs are in plaintext.
func Peer(o *core.SecurityOptions) { give(o, secure.Peer) }

// Master gives one to a master.
func Master(o *core.SecurityOptions) { give(o, secure.Master) }

var count atomic.Int64

func give(o *core.SecurityOptions, role secure.Role) {
	if !On() || o.Credential != nil || o.File != "" || o.Join != "" || o.Mode != "" {
		return
	}
	s := signer()
	name := fmt.Sprintf("%v-%d-%d", role, os.Getpid(), count.Add(1))
	_, text, err := s.NewCredential(secure.Identity{Role: role, Name: name}, []*x509.Certificate{s.Cert}, 48*time.Hour, time.Now())
	must(err)
	o.Credential, err = secure.ParseCredential(text)
	must(err)
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

// Share makes the authority before children are started.
func Share() {
	if On() {
		signer()
	}
}

// Command returns a command of a process whose runs are in TLS, whatever this one does.
// All such processes share an authority.
func Command(program string) []string {
	signer()
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
