package errs_test

import (
	"testing"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/stretchr/testify/require"
)

func explode() (err error) {
	defer errs.Catch("blow up", func(e *errs.Error) { err = e })
	var none []int
	_ = none[len(none)]
	return nil
}

func TestCatch(t *testing.T) {
	err := explode()
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorContains(t, err, "blow up")
	require.ErrorContains(t, err, "index out of range")
	var e *errs.Error
	require.ErrorAs(t, err, &e)
	require.Contains(t, errs.StackOf(e), "explode")
	require.NotContains(t, err.Error(), "goroutine", "the stack is for the log")
	require.Empty(t, errs.StackOf(errs.New(errs.Internal, "x", errs.Busy)))

	called := false
	func() { defer errs.Catch("nothing", func(*errs.Error) { called = true }) }()
	require.False(t, called)
}
