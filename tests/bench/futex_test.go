//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Calls are counted between enable and disable, and what perf says is read; a
// machine without it says so.
func TestFutexesAreCounted(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
while read -r line <&3; do
	if [ "$line" = disable ]; then echo "840,,` + futexEvent + `,1000,100.00,," >&2; fi
	echo ack >&4
done
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "perf"), []byte(script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	c, err := startCounter(t.Context(), []int{os.Getpid()})
	require.NoError(t, err)
	n, err := c.stop()
	require.NoError(t, err)
	require.Equal(t, 840, n)
	c.close()

	o := options{turns: 1, turn: 1e6, contestants: "floor"}
	all, err := contestants(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, countFutexes(t.Context(), o, sums(2, 4096, "none", 1), all[0]))
	require.NoError(t, countFutexes(t.Context(), o, sums(2, 4096, "none", 1), all[1]), "a contestant without ranks is left out")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "perf"), []byte("#!/bin/sh\nexit 1\n"), 0o700))
	require.ErrorContains(t, countFutexes(t.Context(), o, sums(2, 4096, "none", 1), all[0]), "perf")

	require.Zero(t, spread([]float64{3}))
	require.Zero(t, spread([]float64{2, 2, 2}))
	require.InDelta(t, 0.5, spread([]float64{1, 2, 3}), 1e-12)
}
