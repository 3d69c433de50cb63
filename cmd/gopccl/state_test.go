package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// What is wrong with the directory of a master is said, with what to do: by this program,
// which then ends, and leaves it as it is.
func TestStateThatIsNotOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "master.state")
	require.NoError(t, os.WriteFile(path, []byte("not ours"), 0o600))
	code, _, errOut := gopccl(t, "master", "--listen", "127.0.0.1:0", "--state", dir)
	require.NotZero(t, code)
	require.Contains(t, errOut, path)
	require.Contains(t, errOut, "restore it from a copy, or move it away")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "not ours", string(b))

	code, _, errOut = gopccl(t, "master", "--listen", "127.0.0.1:0", "--state", path)
	require.NotZero(t, code)
	require.Contains(t, errOut, "name a directory that the master may write to")
}

// The status says which master leads, its groups, and what its directory says, also when
// nobody leads.
func TestMasterStatus(t *testing.T) {
	dir := t.TempDir()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", State: dir})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(context.Background()) }()
	at := m.Addr().String()
	comm, err := core.Connect(context.Background(), core.Options{Master: at, ListenHost: "127.0.0.1", PortBase: -1, Group: 3})
	require.NoError(t, err)
	code, out, errOut := gopccl(t, "master", "status", "--master", "127.0.0.1:1,"+at, "--state", dir)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "127.0.0.1:1: does not lead, or is not there\n")
	require.Contains(t, out, at+": leads\n  group 3: 1 members\n")
	require.Contains(t, out, dir+": term 0\n")
	require.NoError(t, comm.Close())
	require.NoError(t, m.Close())
	require.NoError(t, <-ended)

	code, out, errOut = gopccl(t, "master", "status", "--master", at, "--state", dir)
	require.NotZero(t, code)
	require.Contains(t, out, dir+": term 0\n")
	require.Contains(t, errOut, "start a master")
	code, _, errOut = gopccl(t, "master", "status", "--master", at, "--state", t.TempDir())
	require.NotZero(t, code)
	require.Contains(t, errOut, "name the directory of a master")
}
