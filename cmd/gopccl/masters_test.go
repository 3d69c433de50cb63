package main

import (
	"testing"

	"github.com/stretchr/testify/require"
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
		{[]string{"--etcd", "a:1"}, "is not the URL of an etcd"},
		{[]string{"--etcd", "http://127.0.0.1:1"}, "start etcd, or name the right URL"},
	} {
		code, _, stderr := gopccl(t, append([]string{"master", "--listen", "127.0.0.1:0"}, c.args...)...)
		require.NotZero(t, code)
		require.Contains(t, stderr, c.text)
	}
}
