package host

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/internal/plugin/shm"
)

const mappedBytes = 256 << 20

// actAsMapper maps the memory that it inherits, says so and waits for its end.
// The kernel fills the pages in: the race detector counts none of them.
func actAsMapper() {
	_, err := unix.Mmap(shm.FirstFile, 0, mappedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	fmt.Println("mapped", err)
	bufio.NewScanner(os.Stdin).Scan()
}

// What a plugin maps of the host's memory is not counted as its own.
func TestHostsMemoryIsNotThePlugins(t *testing.T) {
	m, err := shm.New(mappedBytes)
	require.NoError(t, err)
	defer m.Close()
	theirs, err := shm.Dup(m.File)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "plugin", "map")
	cmd.ExtraFiles = []*os.File{theirs}
	p, err := newProcess(cmd, 0, m.File)
	require.NoError(t, err)
	require.NoError(t, p.Start(t.Context()))
	defer p.stop(stopGrace)
	line, err := bufio.NewReader(p.stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "mapped <nil>\n", line)

	all := p.group.memory(cmd, nil)
	own := p.group.memory(cmd, m.File)
	require.GreaterOrEqual(t, all, int64(mappedBytes))
	require.Positive(t, own)
	// It grows by some pages between the two looks; what is shared is far larger.
	require.LessOrEqual(t, own, all-mappedBytes+mappedBytes/8)
}
