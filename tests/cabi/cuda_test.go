//go:build linux

package cabi

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Memory of CUDA devices in all-reduces and shared state, and what bad pointers
// get. The devices are the interpreter's, in a library of its own.
func TestDeviceMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-buildmode=c-shared", "-tags", "interpreted",
		"-ldflags", "-s -w -extldflags -Wl,-soname,libpccl.so", "-o", filepath.Join(dir, "libpccl.so"), ".")
	build.Dir = bindings
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)

	env := []string{"LD_LIBRARY_PATH=" + dir}
	out, log := execute(t, env, compile(t, "cuda.c"), port())
	require.Equal(t, "passed\n", out)
	require.NotContains(t, log, "panic")
	require.Contains(t, log, `device_type is pcclDeviceCpu, but these are 12000 bytes at`)
}
