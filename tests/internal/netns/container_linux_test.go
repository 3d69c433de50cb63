//go:build wan

package netns_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/netns"
)

// What passes on the machine passes in the network of a container, which has a
// loopback of its own, addresses of a private network and nothing else.
func TestInAContainersNetwork(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "e2e.test")
	build := exec.Command("go", "test", "-c", "-o", binary, "../../e2e")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	n, err := netns.New(1)
	require.NoError(t, err)
	defer n.Close()
	inside := exec.Command(binary, "-test.short", "-test.timeout=5m", "-test.run",
		"Lifetimes|AnyGoroutine|PortForwarding|SeveralNetworks|OneOperationUses|ScheduledProbes|HardKills|Unreachable|Abort|CutLink|Hides|EventsNeed")
	inside.Dir = filepath.Join("..", "..", "e2e")
	said, err := inside.StdoutPipe()
	require.NoError(t, err)
	inside.Stderr = inside.Stdout
	require.NoError(t, n.Hosts[0].Start(inside))
	text := make([]byte, 0, 64<<10)
	buf := make([]byte, 4096)
	for {
		k, err := said.Read(buf)
		text = append(text, buf[:k]...)
		if err != nil {
			break
		}
	}
	require.NoError(t, inside.Wait(), "%s", text)
	require.Contains(t, string(text), "PASS") // S2-32
}
