//go:build (amd64 || arm64) && !noasm

package zeropoint

import (
	"testing"

	"github.com/gopccl/gopccl/quantizers/internal/lineartest"
)

// No kernel touches a byte before or behind its operands.
func TestGuardPages(t *testing.T) { lineartest.Fences(t, New()) }
