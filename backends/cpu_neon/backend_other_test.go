//go:build !arm64 || noasm

package cpuneon

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
)

// Without assembly the driver says so, and auto takes the oracle.
func TestNotHere(t *testing.T) {
	_, _, err := backend.Select(Name)
	require.ErrorContains(t, err, "without assembly")
	_, err = driver.New()
	require.Error(t, err)
	b, passed, err := backend.Select("auto")
	require.NoError(t, err)
	require.Len(t, passed, 1)
	require.Equal(t, "cpu_generic", b.Name())
}
