package bench

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

// credentials are those of one world. Their authority is nowhere but in this process.
type credentials struct {
	signer *authority.Signer
	life   time.Duration
}

// newCredentials makes an authority.
func newCredentials() (*credentials, error) {
	s, err := authority.NewAuthority("bench", "", time.Now())
	if err != nil {
		return nil, err
	}
	return &credentials{signer: s, life: authority.MinLife}, nil
}

// master returns the credential of the master.
func (c *credentials) master() (*secure.Credential, error) {
	text, err := c.issue(secure.Master, "master")
	if err != nil {
		return nil, err
	}
	return secure.ParseCredential(text)
}

// peer returns the credential of a peer as it is in a file.
func (c *credentials) peer(index int) ([]byte, error) {
	return c.issue(secure.Peer, fmt.Sprintf("peer-%d", index))
}

func (c *credentials) issue(role secure.Role, name string) ([]byte, error) {
	_, text, err := c.signer.NewCredential(secure.Identity{Role: role, Name: name}, []*x509.Certificate{c.signer.Cert}, c.life, time.Now())
	return text, err
}
