package main

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/lead"
	"github.com/gopccl/gopccl/internal/master"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/ports"
	"github.com/gopccl/gopccl/internal/quorum/node"
	"github.com/gopccl/gopccl/internal/wire"
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
	require.Contains(t, out, "127.0.0.1:1: does not answer\n")
	require.Contains(t, out, at+": leads, term 0, 1 clients\n  group 3: 1 members, 0 wait to be let in, next revision 0\n")
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

// Of several masters the status says who leads, and what a directory of them has; while
// the leader recovers it says who is missing.
func TestStatusOfSeveralMasters(t *testing.T) {
	addrs := freeAddrs(t, 6)
	talk, serve := addrs[:3], addrs[3:]
	dirs := make([]string, 3)
	kept := lead.Kept{Key: make([]byte, lead.KeySize), Registry: fsm.Registry{Groups: []fsm.GroupRecord{
		{ID: 5, Round: 3, NextRevision: 7, Members: []wire.UUID{{9}, {10}}},
	}}}
	for i, at := range serve {
		dirs[i] = t.TempDir()
		n, err := node.New(node.Options{Masters: talk, Self: talk[i], Dir: dirs[i], Serves: netip.MustParseAddrPort(at).Port()})
		require.NoError(t, err)
		defer n.Close()
		m, err := core.NewMaster(core.MasterOptions{Listen: at, Authority: begins{n, kept.Encode()}, HeartbeatTimeout: time.Hour})
		require.NoError(t, err)
		defer m.Close()
		go func() { _ = m.Run(context.Background()) }()
	}
	ask := func(args ...string) (out, errOut string) {
		_, out, errOut = gopccl(t, append([]string{"master", "status", "--master", strings.Join(serve, ",")}, args...)...)
		return out, errOut
	}
	end := time.Now().Add(2 * time.Minute)
	out := ""
	for !strings.Contains(out, ": recovers, term") || strings.Count(out, ": follows 127.0.0.1:") != 2 {
		require.True(t, time.Now().Before(end), out)
		out, _ = ask()
	}
	require.Contains(t, out, "0 of 2 members are back\n    missing: 09000000\n")
	require.Contains(t, out, "  recovers for ")
	require.Contains(t, out, ", this one, leads\n")
	require.Contains(t, out, ", up to date\n")
	out, errOut := ask("--json")
	require.Empty(t, errOut)
	var all struct {
		Masters []struct{ Status master.Bulletin }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Len(t, all.Masters, 3)

	_, err := os.Stat(filepath.Join(dirs[0], node.StateName))
	require.NoError(t, err)
	out, _ = ask("--state", dirs[0])
	require.Contains(t, out, dirs[0]+": one of the masters 127.0.0.1:")
	require.Contains(t, out, ": term ")
}

// begins is an authority whose first leader finds something.
type begins struct {
	*node.Node
	kept []byte
}

func (b begins) Lead(ctx context.Context) (uint32, []byte, <-chan error, error) {
	term, kept, lost, err := b.Node.Lead(ctx)
	if len(kept) == 0 {
		kept = b.kept
	}
	return term, kept, lost, err
}

// freeAddrs returns addresses that nobody listens on.
func freeAddrs(t *testing.T, n int) (addrs []string) {
	for range n {
		at, err := ports.Address()
		require.NoError(t, err)
		addrs = append(addrs, at)
	}
	return addrs
}
