package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A child lives on when the thread ends that has asked for it, as threads of the data path do.
func TestAChildOutlivesAThread(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	thread, begun, over := make(chan int, 2), make(chan error, 1), make(chan struct{})
	defer close(over)
	var ask func()
	ask = func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if syscall.Gettid() == os.Getpid() {
			go ask() // on another one: the first thread does not end
			<-over
			return
		}
		begun <- Begin(cmd)
		thread <- syscall.Gettid()
	}
	go ask()
	require.NoError(t, <-begun)
	gone := <-thread
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", gone))
		return os.IsNotExist(err)
	}, time.Minute, time.Millisecond)
	_, err = in.Write([]byte("here\n"))
	require.NoError(t, err)
	said, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "here\n", said)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
}
