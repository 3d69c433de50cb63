package durable

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/scratch"
)

const lockThis = "DURABLE_LOCK"

// lockAndWait locks a file, says so, and has it until its input ends.
func lockAndWait(path string) int {
	if _, err := TryLock(path); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("locked it")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// elsewhere runs this program again, to lock a file.
func elsewhere(t *testing.T, path string) (end func()) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), lockThis+"="+path)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	end = sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "locked it")
	return end
}

// One at a time has a lock: of the goroutines of a process, and of processes. A caller that asks
// in vain takes nothing away.
func TestOneAtATime(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "lock")
	l, err := TryLock(path)
	require.NoError(t, err)
	for range 2 {
		_, err = TryLock(path)
		require.ErrorIs(t, err, ErrTaken)
	}
	program, err := os.Executable()
	require.NoError(t, err)
	other := exec.Command(program)
	other.Env = append(os.Environ(), lockThis+"="+path)
	out, err := other.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), ErrTaken.Error())
	require.NoError(t, l.Unlock())
	require.NoError(t, l.Unlock())

	end := elsewhere(t, path)
	_, err = TryLock(path)
	require.ErrorIs(t, err, ErrTaken)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(3*retry, cancel)
	_, err = AwaitLock(ctx, path)
	require.ErrorIs(t, err, context.Canceled)
	time.AfterFunc(3*retry, end)
	l, err = AwaitLock(context.Background(), path)
	require.NoError(t, err)
	require.NoError(t, l.Unlock())
	_, err = TryLock(filepath.Join(path, "below"))
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrTaken)
}

// Goroutines that wait for a lock have it one after the other, each soon after the last.
func TestManyWait(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "lock")
	const each, all = 20, 8
	count, inside := 0, false
	var wg sync.WaitGroup
	for range all {
		wg.Go(func() {
			for range each {
				l, err := AwaitLock(context.Background(), path)
				if err != nil || inside { // a race, if two are in here
					t.Errorf("%v, %t", err, inside)
					return
				}
				inside = true
				count++
				inside = false
				_ = l.Unlock()
			}
		})
	}
	wg.Wait()
	require.Equal(t, each*all, count)
}
