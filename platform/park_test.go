package platform_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/platform"
	"github.com/gopccl/gopccl/platform/platformtest"
)

// The same suite for the system's own parker, futex on Linux, __ulock_wait on
// macOS and WaitOnAddress on Windows, and for the portable one.
func TestParkers(t *testing.T) {
	rounds := 4_000
	if testing.Short() {
		rounds = 1_000
	}
	for name, newParker := range map[string]func() *platform.Parker{
		"native": platform.NewParker, "portable": platform.NewPortableParker,
	} {
		t.Run(name, func(t *testing.T) { platformtest.Parkers(t, newParker, rounds) }) // S0-08, S0-10, S0-11
	}
	require.False(t, platform.NewPortableParker().Native())
	require.Equal(t, platform.Native().Name() != "portable", platform.NewParker().Native())
}

// A park and a wake-up allocate nothing.
func TestParkingAllocatesNothing(t *testing.T) {
	for _, p := range []*platform.Parker{platform.NewParker(), platform.NewPortableParker()} {
		require.Zero(t, allocs.PerRun(100, func() {
			p.Begin()
			p.Wake()
			runtime.Gosched()
		}))
	}
}
