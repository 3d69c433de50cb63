//go:build linux

package cabi

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

// A run in TLS of a C program: a peer with a credential, and one with a join token, given
// by functions or by the environment. The token and what it is proved with are not told.
func TestSecure(t *testing.T) {
	program := compileWith(t, "libgopccl.so", "secure.c")
	for name, environment := range map[string]bool{"functions": false, "environment": true} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			_, err := authority.Init(dir, "trial", time.Now)
			require.NoError(t, err)
			d, err := authority.Open(dir, time.Now)
			require.NoError(t, err)
			file := func(name string, role secure.Role) string {
				text, _, err := d.Issue(secure.Identity{Name: name, Role: role}, 48*time.Hour, "test")
				require.NoError(t, err)
				path := filepath.Join(t.TempDir(), name)
				require.NoError(t, os.WriteFile(path, text, 0o600))
				return path
			}
			token, _, err := d.NewToken(authority.TokenOptions{Uses: 1, Life: time.Hour, Member: 24 * time.Hour, Role: secure.Peer, Name: "join-*"})
			require.NoError(t, err)
			join, err := token.Text()
			require.NoError(t, err)
			head, enroll, first, second := file("head", secure.Master), dir, file("gpu-0", secure.Peer), filepath.Join(t.TempDir(), "second")
			args, env := []string{port(), head, enroll, first, second, join}, []string{"PCCL_LOG_LEVEL=DEBUG"}
			if environment {
				args[3], args[5] = "-", "-"
				env = append(env, "GOPCCL_CREDENTIAL="+first, "GOPCCL_JOIN="+join)
			}
			out, log := execute(t, env, program, args...)
			require.Equal(t, "passed\n", out)
			require.Contains(t, log, "was let in by join token")
			require.Contains(t, log, "gpu-0/")
			require.NotContains(t, log, join[len("gopccl1."):])
			c, err := secure.LoadCredential(second, secure.LoadOptions{})
			require.NoError(t, err)
			id, err := c.Identity()
			require.NoError(t, err)
			require.Contains(t, id.Name, "join-")
		})
	}
}
