package main

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// What can never work is said before anything begins.
func TestMastersAreChecked(t *testing.T) {
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"--peers", "a:1,b:1,c:1", "--self", "a:1"}, "a master among several needs a directory of its own"},
		{[]string{"--peers", "a:1,b:1,c:1", "--state", t.TempDir()}, "which of the masters is this one?"},
		{[]string{"--peers", "a:1,b:1", "--self", "a:1", "--state", t.TempDir()}, "there are 2 masters; want 3 to 9"},
		{[]string{"--peers", "a:1,b:1,c:1", "--self", "d:1", "--state", t.TempDir()}, `"d:1" is not one of the masters`},
		{[]string{"--etcd", "http://a:1", "--state", t.TempDir()}, "etcd keeps what other masters"},
		{[]string{"--etcd", "http://127.0.0.1:1", "--self", ":1"}, "peers find no master at"},
		{[]string{"--etcd", "http://x@127.0.0.1:1"}, "has no password"},
		{[]string{"--etcd", "a:1"}, "is not the URL of an etcd"},
		{[]string{"--etcd", "http://127.0.0.1:1"}, "start etcd, or name the right URL"},
	} {
		code, _, stderr := gopccl(t, append([]string{"master", "--listen", "127.0.0.1:0"}, c.args...)...)
		require.NotZero(t, code)
		require.Contains(t, stderr, c.text)
	}
}

// What an operator has changed holds when this master leads once more.
func TestChangesOutliveTheLead(t *testing.T) {
	root := newRootCmd()
	cmd, _, err := root.Find([]string{"master"})
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(nil))
	c, err := loadConfig(cmd)
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	rings, err := newRingSolver(c, log)
	require.NoError(t, err)
	defer rings.Close()
	opt := c.MasterOptions(log)
	opt.Listen = "127.0.0.1:0"
	m, err := core.NewMaster(opt)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(context.Background()) }()
	defer func() {
		require.NoError(t, m.Close())
		require.NoError(t, <-ended)
	}()
	t.Setenv("GOPCCL_MASTER_LOST_STATE", "anew")
	t.Setenv("GOPCCL_MASTER_LOST_MEMBERS", "drop")
	rings.reload(cmd, m, &opt)
	require.True(t, opt.BeginAnew)
	require.True(t, opt.DropLost)
	t.Setenv("GOPCCL_MASTER_LOST_STATE", "no such choice")
	rings.reload(cmd, m, &opt)
	require.True(t, opt.BeginAnew, "what cannot be read changes nothing")
}
