//go:build linux

package cabi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Communicators of libgopccl wait for another master unless they are told not to; those of
// libpccl do if the environment says so, and otherwise end with their master (abuse.c).
func TestReattach(t *testing.T) {
	out, _ := execute(t, nil, compileWith(t, "libgopccl.so", "reattach.c"), port())
	require.Equal(t, "passed\n", out)
}
