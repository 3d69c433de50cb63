package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
)

// A run's authority, its credentials and its list, from the first command to the last.
func TestKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	file := func(name string) string { return filepath.Join(dir, "..", name) }
	ok := func(args ...string) string {
		t.Helper()
		code, out, errOut := gopccl(t, append([]string{"keys"}, args...)...)
		require.Equal(t, exitOK, code, errOut)
		return out
	}
	require.Contains(t, ok("init", "--dir", dir, "--run", "trial"), "authority in "+dir)
	ok("issue", "head", "--dir", dir, "--role", "master", "--out", file("head.pem"))
	ok("issue", "gpu-7", "--dir", dir, "--group", "0,3", "--expires", "2d", "--single", "--out", file("gpu-7.pem"))
	c, err := secure.LoadCredential(file("gpu-7.pem"), secure.LoadOptions{})
	require.NoError(t, err)
	id, err := c.Identity()
	require.NoError(t, err)
	require.Equal(t, []uint32{0, 3}, id.Groups)
	require.True(t, id.Single)

	text, err := os.ReadFile(file("gpu-7.pem"))
	require.NoError(t, err)
	shown := ok("show", file("gpu-7.pem"))
	require.Regexp(t, `name +gpu-7\ngroups +0,3\nrights +single\n`, shown)
	require.NotContains(t, shown, strings.Split(strings.Split(string(text), "PRIVATE KEY-----\n")[1], "\n")[0])
	var s shownKey
	require.NoError(t, json.Unmarshal([]byte(ok("show", file("head.pem"), "--json")), &s))
	require.Equal(t, "master", s.Role)
	require.Nil(t, s.Groups)

	var list []listed
	states := func(args ...string) (all []string) {
		list = nil
		require.NoError(t, json.Unmarshal([]byte(ok(append([]string{"list", "--dir", dir, "--json"}, args...)...)), &list))
		for _, e := range list {
			all = append(all, e.State+" "+e.Name)
		}
		return all
	}
	require.Equal(t, []string{"valid head", "valid gpu-7"}, states())
	require.Equal(t, []string{"valid gpu-7"}, states("--expiring", "3d"))
	require.Regexp(t, `STATE +ROLE +NAME.*\nvalid +master +head +all `, ok("list", "--dir", dir))

	rotated(t, dir, file("gpu-7.pem"), c)

	require.Contains(t, ok("revoke", "gpu-7", "--dir", dir), "revoked peer gpu-7")
	require.Equal(t, []string{"valid head", "revoked gpu-7", "revoked gpu-7"}, states())
	ok("issue", "gpu-7", "--dir", dir, "--out", file("gpu-7.pem"), "--force")
	require.Equal(t, []string{"valid head", "revoked gpu-7", "revoked gpu-7", "valid gpu-7"}, states(), "a name can be issued again")
	ok("revoke", list[0].Fingerprint, "--dir", dir)
	ok("revoke", list[3].Serial, "--dir", dir)
	require.Equal(t, []string{"revoked head", "revoked gpu-7", "revoked gpu-7", "revoked gpu-7"}, states())

	empty := file("empty")
	full := file("full")
	require.NoError(t, os.Mkdir(empty, 0o700))
	require.NoError(t, os.Mkdir(full, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	for want, args := range map[string][]string{
		"has an authority already": {"init", "--dir", dir},
		"is not empty":             {"init", "--dir", full},
		"--force replaces it":      {"issue", "head", "--dir", dir, "--out", file("head.pem")},
		`name "GPU 7"`:             {"issue", "GPU 7", "--dir", dir, "--out", file("x.pem")},
		`unknown role "king"`:      {"issue", "x", "--dir", dir, "--role", "king", "--out", file("x.pem")},
		"want 0 to 4294967295":     {"issue", "x", "--dir", dir, "--group", "-1", "--out", file("x.pem")},
		"want days such as 30d":    {"issue", "x", "--dir", dir, "--expires", "soon", "--out", file("x.pem")},
		"want 24h0m0s to 9600h0m0s": {
			"issue", "x", "--dir", dir, "--expires", "1h", "--out", file("x.pem"),
		},
		"only a peer has the right to lead": {"issue", "x", "--dir", dir, "--role", "master", "--lead", "--out", file("x.pem")},
		"--dir is needed":                   {"list"},
		"accepts 1 arg":                     {"revoke", "--dir", dir},
		"gopccl keys init":                  {"list", "--dir", empty},
		"nothing.pem":                       {"show", file("nothing.pem")},
	} {
		code, out, errOut := gopccl(t, append([]string{"keys"}, args...)...)
		require.Equal(t, exitUsage, code, "%v: %s", args, errOut)
		require.Contains(t, errOut, want)
		require.Empty(t, out)
	}
	require.NoFileExists(t, file("x.pem"))
	for want, args := range map[string][]string{
		"no certificate that is not revoked": {"revoke", "gpu-9", "--dir", dir},
		"block 1: text outside":              {"show", filepath.Join(dir, "issued.log")},
	} {
		code, _, errOut := gopccl(t, append([]string{"keys"}, args...)...)
		require.Equal(t, exitFailed, code, "%v: %s", args, errOut)
		require.Contains(t, errOut, want)
	}

	// The key may be offline: then nothing can be signed, and all can be read.
	require.NoError(t, os.Rename(filepath.Join(dir, "authority.key"), file("away.key")))
	states()
	code, _, errOut := gopccl(t, "keys", "issue", "x", "--dir", dir, "--out", file("x.pem"))
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "bring it back to sign")
}

// rotated replaces a credential by one with another key, and revokes that.
func rotated(t *testing.T, dir, path string, before *secure.Credential) {
	code, out, errOut := gopccl(t, "keys", "rotate", path, "--dir", dir, "--expires", "9d")
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "peer gpu-7 until")
	c, err := secure.LoadCredential(path, secure.LoadOptions{})
	require.NoError(t, err)
	id, err := c.Identity()
	require.NoError(t, err)
	require.Equal(t, []uint32{0, 3}, id.Groups)
	require.True(t, id.Single)
	require.NotEqual(t, before.Signer().Public(), c.Signer().Public())
	code, _, errOut = gopccl(t, "keys", "revoke", id.Serial, "--dir", dir)
	require.Equal(t, exitOK, code, errOut)
	code, _, errOut = gopccl(t, "keys", "rotate", path, "--dir", dir)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "is revoked")
}

// Commands at one time make certificates of their own, and lose none of the log.
func TestKeysAtOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	code, _, errOut := gopccl(t, "keys", "init", "--dir", dir)
	require.Equal(t, exitOK, code, errOut)
	out := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			name := "gpu-" + string(rune('0'+i))
			if code, _, errOut := gopccl(t, "keys", "issue", name, "--dir", dir, "--out", filepath.Join(out, name)); code != exitOK {
				t.Error(errOut)
			}
		})
	}
	all.Wait()
	_, text, _ := gopccl(t, "keys", "list", "--dir", dir, "--json")
	var list []listed
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	serials := map[string]bool{}
	for _, e := range list {
		serials[e.Serial] = true
	}
	require.Len(t, serials, 8)
}
