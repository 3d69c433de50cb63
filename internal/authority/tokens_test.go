package authority_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
)

var noon = time.Date(2031, 4, 5, 12, 0, 0, 0, time.UTC)

// office is the directory of an authority, with a clock.
type office struct {
	t    *testing.T
	path string
	now  time.Time
	*authority.Dir
}

func newOffice(t *testing.T) *office {
	o := &office{t: t, path: filepath.Join(t.TempDir(), "keys"), now: noon}
	_, err := authority.Init(o.path, "test", o.clock)
	require.NoError(t, err)
	o.open()
	return o
}

func (o *office) clock() time.Time { return o.now }

func (o *office) open() {
	var err error
	o.Dir, err = authority.Open(o.path, o.clock)
	require.NoError(o.t, err)
}

func (o *office) token(change func(*authority.TokenOptions)) secure.Token {
	opt := authority.TokenOptions{Uses: 1, Life: time.Hour, Member: 30 * 24 * time.Hour, Role: secure.Peer, Name: "*"}
	if change != nil {
		change(&opt)
	}
	token, _, err := o.NewToken(opt)
	require.NoError(o.t, err)
	return token
}

// Nobody waits for ever for a process that has the lock of the directory and stands still.
func TestDirectoryThatIsHeld(t *testing.T) {
	o := newOffice(t)
	token := o.token(nil)
	held, err := durable.TryLock(filepath.Join(o.path, "lock"))
	require.NoError(t, err)
	o.Patience(time.Millisecond)
	_, _, issued := o.Issue(secure.Identity{Name: "gpu-1", Role: secure.Peer}, 30*24*time.Hour, "test")
	_, _, enrolled := o.Enrol(newcomer(t, token, "gpu-1"))
	_, withdrawn := o.Withdraw(hex.EncodeToString(token.ID[:]))
	for _, err := range []error{issued, enrolled, withdrawn} {
		require.ErrorIs(t, err, errs.Timeout)
		require.ErrorContains(t, err, o.path)
	}
	require.NoError(t, held.Unlock())
	_, _, err = o.Enrol(newcomer(t, token, "gpu-1"))
	require.NoError(t, err)
}

// newcomer proves a token if it knows its secret.
func newcomer(t *testing.T, token secure.Token, name string) authority.Newcomer {
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(pub)
	require.NoError(t, err)
	secret, err := token.VerifyKey()
	require.NoError(t, err)
	return authority.Newcomer{Token: token.ID, Key: pub, DER: der, Name: name, Prove: func(key []byte) bool { return string(key) == string(secret) }}
}

// A token gives what it says, so often as it says, and no longer than it says.
func TestTokenGivesWhatItSays(t *testing.T) {
	o := newOffice(t)
	token := o.token(func(opt *authority.TokenOptions) { opt.Uses, opt.Groups = 3, []uint32{4} })
	first := newcomer(t, token, "GPU 7")
	chain, e, err := o.Enrol(first)
	require.NoError(t, err)
	require.Len(t, chain, 1)
	require.Equal(t, "gpu-7", e.Name)
	require.Equal(t, []uint32{4}, e.Groups)
	require.Equal(t, fmt.Sprintf("token %x", token.ID), e.By)
	again, _, err := o.Enrol(first)
	require.NoError(t, err)
	require.True(t, chain[0].Equal(again[0]), "a lost answer is given again")
	_, e, err = o.Enrol(newcomer(t, token, "gpu-7"))
	require.NoError(t, err)
	require.Equal(t, "gpu-7-2", e.Name, "a name that is in use is not given")
	_, err = o.Revoke("gpu-7")
	require.NoError(t, err)
	o.now = o.now.Add(time.Minute)
	third, e, err := o.Enrol(newcomer(t, token, "gpu-7"))
	require.NoError(t, err)
	require.Equal(t, "gpu-7", e.Name, "a name that was revoked can be given again")
	list, err := o.List()
	require.NoError(t, err)
	require.True(t, third[0].NotBefore.After(list.Names()[0].Upto))
	_, _, err = o.Enrol(newcomer(t, token, "gpu-8"))
	require.ErrorIs(t, err, authority.ErrNotValid)
	require.ErrorContains(t, err, "used up")
	_, _, err = o.Enrol(first)
	require.NoError(t, err, "the answer can be lost of a token that is used up")
	o.now = noon.Add(time.Hour)
	_, _, err = o.Enrol(first)
	require.ErrorContains(t, err, "it has expired at 2031-04-05T13:00:00Z, and the clock of this machine says")

	log, err := o.Log()
	require.NoError(t, err)
	require.Len(t, log, 3, "one line for each that was let in")
	tokens, err := o.Tokens()
	require.NoError(t, err)
	require.Equal(t, "expired", tokens[0].State(o.now))
	require.Len(t, tokens[0].Given, 3)
	text, err := json.Marshal(tokens)
	require.NoError(t, err)
	require.NotContains(t, string(text), string(token.Secret.Reveal()))
	require.NotContains(t, fmt.Sprintf("%v %+v %x", tokens[0], tokens, tokens[0]), fmt.Sprintf("%x", tokens[0].Key))
}

// What is not proved, withdrawn, or another authority's is refused, and costs no use.
func TestTokenIsRefused(t *testing.T) {
	o, other := newOffice(t), newOffice(t)
	token := o.token(nil)
	for _, wrong := range []secure.Token{{ID: token.ID, Pin: token.Pin, Secret: secure.NewSecret(make([]byte, 16))}, other.token(nil)} {
		_, _, err := o.Enrol(newcomer(t, wrong, "x"))
		require.ErrorIs(t, err, authority.ErrNotValid)
	}
	tokens, err := o.Tokens()
	require.NoError(t, err)
	require.Equal(t, 1, tokens[0].Left)
	text, err := os.ReadFile(filepath.Join(o.path, "tokens.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(other.path, "tokens.json"), text, 0o600))
	_, _, err = other.Enrol(newcomer(t, token, "x"))
	require.ErrorContains(t, err, "another authority")
	found, err := o.Withdraw(tokens[0].ID)
	require.NoError(t, err)
	require.True(t, found)
	_, _, err = o.Enrol(newcomer(t, token, "x"))
	require.ErrorIs(t, err, authority.ErrNotValid)

	for want, change := range map[string]func(*authority.TokenOptions){
		"0 uses":                   func(o *authority.TokenOptions) { o.Uses = 0 },
		"want 1m0s to 720h0m0s":    func(o *authority.TokenOptions) { o.Life = time.Second },
		"want 24h0m0s to":          func(o *authority.TokenOptions) { o.Member = time.Hour },
		"peers and observers only": func(o *authority.TokenOptions) { o.Role = secure.Master },
		`name "GPU"`:               func(o *authority.TokenOptions) { o.Name = "GPU" },
		"want HOST:PORT":           func(o *authority.TokenOptions) { o.Masters = []string{"x"} },
	} {
		opt := authority.TokenOptions{Uses: 1, Life: time.Hour, Member: 30 * 24 * time.Hour, Role: secure.Peer, Name: "gpu-*"}
		change(&opt)
		_, _, err := o.NewToken(opt)
		require.ErrorIs(t, err, errs.InvalidConfig, want)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, os.WriteFile(filepath.Join(o.path, "tokens.json"), []byte("["), 0o600))
	_, _, err = o.Enrol(newcomer(t, token, "x"))
	require.ErrorIs(t, err, errs.CorruptFile)
}

// Of a hundred at once with one use left one is let in.
func TestTokenAtOnce(t *testing.T) {
	o := newOffice(t)
	token := o.token(nil)
	var in atomic.Int32
	var all sync.WaitGroup
	for range 100 {
		n := newcomer(t, token, "gpu")
		all.Go(func() {
			if _, _, err := o.Enrol(n); err == nil {
				in.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, in.Load())
	log, err := o.Log()
	require.NoError(t, err)
	require.Len(t, log, 1)
}

// A directory with the credential of an issuer lets newcomers in without the key of the
// authority, and names of its own only.
func TestIssuerEnrols(t *testing.T) {
	o := newOffice(t)
	text, _, err := o.Issue(secure.Identity{Name: "desk", Role: secure.Issuer, Groups: []uint32{1}}, 30*24*time.Hour, "test")
	require.NoError(t, err)
	root, err := o.Authority()
	require.NoError(t, err)
	o.path = t.TempDir()
	require.NoError(t, os.Chmod(o.path, 0o700))
	require.NoError(t, durable.Replace(filepath.Join(o.path, "issuer.pem"), text, 0o600))
	o.open()
	require.NoError(t, o.CanEnrol())
	_, _, err = o.NewToken(authority.TokenOptions{Uses: 1, Life: time.Hour, Member: 24 * time.Hour, Role: secure.Peer, Name: "*"})
	require.ErrorContains(t, err, "names of its own")
	_, _, err = o.NewToken(authority.TokenOptions{Uses: 1, Life: time.Hour, Member: 24 * time.Hour, Role: secure.Peer, Name: "join-*"})
	require.ErrorContains(t, err, "may sign for the groups [1] only")
	token := o.token(func(opt *authority.TokenOptions) { opt.Name, opt.Groups, opt.Uses = "join-*", []uint32{1}, 2 })
	require.Equal(t, secure.Pin(root), token.Pin, "the authority is pinned, not the issuer")
	chain, e, err := o.Enrol(newcomer(t, token, "gpu-7"))
	require.NoError(t, err)
	require.Equal(t, "join-gpu-7", e.Name)
	require.Len(t, chain, 2)
	require.NoError(t, chain[0].CheckSignatureFrom(chain[1]))
	require.NoError(t, chain[1].CheckSignatureFrom(root))
	o.now = o.now.Add(40 * 24 * time.Hour)
	require.ErrorContains(t, o.CanEnrol(), "has expired")
}
