package cpugeneric

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/dtype"
)

// Quirk Q51: worlds that the element type cannot hold divide, too.
func TestConformance(t *testing.T) { backendtest.Run(t, Driver{}) }

func TestRegistered(t *testing.T) {
	for _, name := range []string{Name, "auto", ""} {
		b, passed, err := backend.Select(name)
		require.NoError(t, err)
		require.Empty(t, passed)
		require.Equal(t, Name, b.Name())
	}
	require.Contains(t, backend.Names(), Name)
	_, _, err := backend.Select("cpu_genric")
	require.ErrorContains(t, err, "cpu_genric")
}

// The number was computed on amd64; the tests for arm64 get the same one.
func TestSameOnEveryProcessor(t *testing.T) {
	sum := backendtest.Fingerprint(generic{})
	require.Equal(t, uint32(0xfc473538), sum, "%#x", sum)
}

// A type or operation without a case is heard of: the input would pass for the result.
func TestForgottenCasesPanic(t *testing.T) {
	const later = dtype.Type(dtype.NumTypes)
	data := make([]byte, 8)
	require.Panics(t, func() { reduce(later, dtype.Sum, data, data, data) })
	require.Panics(t, func() { divide(later, data, 3) })
	for typ := range later {
		require.Panics(t, func() { reduce(typ, dtype.NumOps, data, data, data) }, "%v", typ)
		require.NotPanics(t, func() { divide(typ, data, 3) }, "%v", typ)
	}
}
