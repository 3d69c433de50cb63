package platform_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/platform"
)

func TestListsOfProcessors(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "0": {0}, "0-3": {0, 1, 2, 3}, "8,0-1": {0, 1, 8}, "3, 1 ,2": {1, 2, 3}, "2-2,1-3": {1, 2, 3},
	} {
		got, err := platform.ParseCPUs(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{",", "a", "3-1", "-1", "1-", "0-99999999", "65536", "1--2", "0x1"} {
		_, err := platform.ParseCPUs(text)
		require.ErrorIs(t, err, errs.InvalidArgument, text)
	}
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfNDistinct(rapid.IntRange(0, 200), 1, 40, func(i int) int { return i }).Draw(t, "cpus")
		cpus, err := platform.ParseCPUs(platform.FormatCPUs(want)) // not ascending, so not as short as it could be
		require.NoError(t, err)
		require.ElementsMatch(t, want, cpus)
		again, err := platform.ParseCPUs(platform.FormatCPUs(cpus))
		require.NoError(t, err)
		require.Equal(t, cpus, again)
	})
}

// onThread runs f on a thread that ends with it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread dies, and its settings with it
		f()
	}()
	<-done
}

// A thread that is bound to one processor says so, and so does the description
// that dumps show; processors that are not there are refused.
func TestAffinityIsReadBack(t *testing.T) {
	onThread(func() {
		before, err := platform.Affinity()
		if errors.Is(err, errors.ErrUnsupported) {
			require.ErrorIs(t, platform.SetAffinity([]int{0}), errors.ErrUnsupported)
			return
		}
		require.NoError(t, err)
		require.NotEmpty(t, before)
		for _, cpu := range before {
			require.NoError(t, platform.SetAffinity([]int{cpu}))
			got, err := platform.Affinity()
			require.NoError(t, err)
			require.Equal(t, []int{cpu}, got) // S4-28
			require.Equal(t, got, platform.NameThread("test").CPUs)
		}
		require.NoError(t, platform.SetAffinity(before))
		got, err := platform.Affinity()
		require.NoError(t, err)
		require.Equal(t, before, got)
		require.NoError(t, platform.SetAffinity(nil))
		require.NoError(t, platform.TryAffinity(before[:1]))
		got, err = platform.Affinity()
		require.NoError(t, err)
		require.Equal(t, before, got, "a try changes no other thread")
		for _, wrong := range [][]int{{-1}, {1 << 20}, {60000}} {
			require.ErrorIs(t, platform.SetAffinity(wrong), errs.InvalidArgument, "%v", wrong)
			require.ErrorIs(t, platform.TryAffinity(wrong), errs.InvalidArgument, "%v", wrong)
		}
	})
}

// A thread's name can be read back where the system keeps names.
func TestThreadsHaveNames(t *testing.T) {
	onThread(func() {
		got := platform.NameThread("gopccl-sender")
		if _, err := platform.Native().ThreadName(); err == nil {
			require.Equal(t, "gopccl-sender", got.Name) // S4-04
			require.NotZero(t, got.ID)
		}
		require.NotPanics(t, func() { platform.NameThread("a name that is longer than fifteen bytes") })
	})
}
