//go:build linux

package cabi

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A panic in a goroutine of the engine, here in a kernel that is compiled into
// a library of its own, is a result of the call and a line in the log.
// Quirk Q27.
func TestPanicIsAResult(t *testing.T) {
	dir := t.TempDir()
	added, err := filepath.Abs("testdata/fault.go.txt")
	require.NoError(t, err)
	at, err := filepath.Abs(filepath.Join(bindings, "fault.go"))
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{at: added}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	build := exec.Command("bash", bindings+"/build.sh", filepath.Join(dir, "libpccl.so"))
	build.Env = append(os.Environ(), "GOFLAGS=-overlay="+filepath.Join(dir, "overlay.json"))
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)

	env := []string{"LD_LIBRARY_PATH=" + dir, "GOPCCL_DATA_BACKEND=fault"}
	out, log := execute(t, env, compile(t, "fault.c"), port())
	require.Equal(t, "passed\n", out)
	require.Contains(t, log, "panic in the data path")
	require.Contains(t, log, "stepped on")
	require.Contains(t, log, "fault.go", "the stack")
}
