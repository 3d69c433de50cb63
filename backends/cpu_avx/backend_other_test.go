//go:build !amd64 || noasm

package cpuavx

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
)

// Without assembly the drivers say so, and auto takes the oracle.
func TestNotHere(t *testing.T) {
	for _, d := range drivers {
		_, _, err := backend.Select(d.Name)
		require.ErrorContains(t, err, "without assembly")
		_, err = d.New()
		require.Error(t, err)
	}
	b, passed, err := backend.Select("auto")
	require.NoError(t, err)
	require.Len(t, passed, 1) // the one that is not preferred is not asked
	require.Equal(t, "cpu_generic", b.Name())
}
