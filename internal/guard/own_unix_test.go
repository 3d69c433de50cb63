//go:build unix

package guard

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/core/secure"
)

// Where the file of the credential cannot be read, as on a disk that does not answer, a list
// that the master tells is obeyed.
func TestAFileThatHangsHoldsUpNoList(t *testing.T) {
	r := newRun(t)
	path, gone := filepath.Join(t.TempDir(), "gpu-1.pem"), r.issue("gpu-2", time.Now())
	r.write(path, secure.Identity{Role: secure.Peer, Name: "gpu-1"}, time.Now())
	one, err := New(Options{File: path}, secure.Peer)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, unix.Mkfifo(path, 0o600))
	reads := make(chan error, 1)
	go func() {
		_, err := one.Reload()
		reads <- err
	}()
	require.Eventually(t, func() bool { // it waits for somebody who writes
		free := one.own.mu.TryLock()
		if free {
			one.own.mu.Unlock()
		}
		return !free
	}, time.Minute, time.Millisecond)

	r.revoke(2, gone)
	list, err := secure.LoadList(r.path)
	require.NoError(t, err)
	took := make(chan error, 1)
	go func() {
		_, err := one.Take(list.DER())
		took <- err
	}()
	select {
	case err := <-took:
		require.NoError(t, err)
	case err := <-reads:
		t.Fatalf("the file was read: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("a list waits for the file")
	}
	end, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	require.Error(t, <-reads, "it is not a file")
	require.NoError(t, end.Close())
}
