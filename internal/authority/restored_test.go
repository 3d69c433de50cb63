package authority_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

// copied returns what lies in a directory, to be put back.
func copied(t *testing.T, dir string) (restore func()) {
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = text
	}
	return func() {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			require.NoError(t, os.Remove(filepath.Join(dir, e.Name())))
		}
		for name, text := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		}
	}
}

// A directory that is restored from a copy gives no serial number twice, and its list has
// forgotten what came later until it takes that up again.
func TestRestored(t *testing.T) {
	o := newOffice(t)
	serials := map[string]bool{}
	issue := func(name string) (*secure.Credential, string) {
		text, e, err := o.Issue(secure.Identity{Name: name, Role: secure.Peer}, 30*24*time.Hour, "test")
		require.NoError(t, err)
		require.False(t, serials[e.Serial])
		serials[e.Serial] = true
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		return c, e.Serial
	}
	list := func() *secure.List {
		l, err := o.List()
		require.NoError(t, err)
		return l
	}
	issue("gpu-0")
	_, other := issue("gpu-9")
	token, spare := o.token(nil), o.token(func(opt *authority.TokenOptions) { opt.Life = authority.MaxTokenLife })
	restore := copied(t, o.path)
	for i := range 100 {
		issue(fmt.Sprintf("gpu-%d", i+10))
	}
	lost, serial := issue("gpu-1")
	_, e, err := o.Enrol(newcomer(t, token, "gpu-3"))
	require.NoError(t, err)
	require.Equal(t, "gpu-3", e.Name)
	_, err = o.Revoke("gpu-0")
	require.NoError(t, err)
	_, err = o.Revoke("gpu-1")
	require.NoError(t, err)
	newest := list()
	require.EqualValues(t, 3, newest.Number())
	saved := filepath.Join(t.TempDir(), "saved.crl")
	require.NoError(t, os.WriteFile(saved, newest.DER(), 0o600))

	restore()
	o.open()
	for i := range 100 {
		issue(fmt.Sprintf("gpu-%d", i+10))
	}
	require.EqualValues(t, 1, list().Number())
	_, e, err = o.Enrol(newcomer(t, token, "gpu-3"))
	require.NoError(t, err, "the use is there again until the list is taken up")
	require.Equal(t, "gpu-3", e.Name)
	_, err = o.Revoke("gpu-1")
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorContains(t, err, "no certificate")
	_, err = o.Revoke(other)
	require.NoError(t, err)
	require.EqualValues(t, 2, list().Number())

	// The one that was revoked has its certificate renewed meanwhile.
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	id, err := lost.Identity()
	require.NoError(t, err)
	o.now = o.now.Add(20 * 24 * time.Hour)
	again, e, err := o.Renew(lost.Leaf(), id, pub)
	require.NoError(t, err)

	l, err := secure.LoadList(saved)
	require.NoError(t, err)
	added, ended, err := o.TakeUp(l)
	require.NoError(t, err)
	require.Contains(t, newest.Lacks(list()), other, "nothing of its own is lost")
	require.Contains(t, newest.Lacks(list()), e.Serial, "nor what was renewed")
	require.Empty(t, list().Lacks(newest))
	require.Contains(t, added, serial)
	require.Contains(t, added, "peer gpu-1")
	require.EqualValues(t, 4, list().Number(), "behind both")
	require.Equal(t, []string{hex.EncodeToString(spare.ID[:])}, ended, "the other one has expired")
	_, _, err = o.Enrol(newcomer(t, spare, "gpu-4"))
	require.ErrorIs(t, err, authority.ErrNotValid)
	require.ErrorContains(t, err, "restored from a copy")
	tokens, err := o.Tokens()
	require.NoError(t, err)
	require.Equal(t, "withdrawn", tokens[1].State(noon))
	fresh := o.token(nil)
	added, ended, err = o.TakeUp(l)
	require.NoError(t, err)
	require.Empty(t, added)
	require.Empty(t, ended)
	_, _, err = o.Enrol(newcomer(t, fresh, "gpu-4"))
	require.NoError(t, err, "one that was made since is good")
	require.EqualValues(t, 4, list().Number(), "nothing was to be done")
	_, _, err = o.Renew(lost.Leaf(), id, pub)
	require.ErrorContains(t, err, "it is revoked")
	_, _, err = o.Renew(again[0], id, pub)
	require.Error(t, err)
}

// What the log has lost is revoked by name or number, and a list of another run is nothing
// to take up.
func TestRevokeUnlogged(t *testing.T) {
	o := newOffice(t)
	const unnamed = "4f2a9c01d7e83b564f2a9c01d7e83b56"
	require.NoError(t, o.RevokeName(secure.Peer, "gpu-2"))
	require.NoError(t, o.RevokeSerial(unnamed))
	o.now = o.now.Add(time.Hour)
	require.NoError(t, o.RevokeName(secure.Peer, "gpu-2"))
	require.ErrorIs(t, o.RevokeName(secure.Peer, "GPU 1"), errs.InvalidArgument)
	require.ErrorIs(t, o.RevokeSerial(unnamed[:16]), errs.InvalidArgument, "cut short")
	require.ErrorIs(t, o.RevokeSerial("gpu-2"), errs.InvalidArgument)
	l, err := o.List()
	require.NoError(t, err)
	require.Equal(t, unnamed, fmt.Sprintf("%032x", l.Serials()[0]))
	require.EqualValues(t, 4, l.Number())
	require.Len(t, l.Names(), 1)
	require.Equal(t, noon.Add(55*time.Minute), l.Names()[0].Upto, "the later time counts")

	foreign := newOffice(t)
	_, _, err = foreign.TakeUp(l)
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorContains(t, err, "not signed by a trusted authority")
}
