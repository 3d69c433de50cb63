package quant_test

import (
	"testing"

	"github.com/gopccl/gopccl/core/quant/quanttest"
)

// The example keeps the rules.
func TestExampleConforms(t *testing.T) { quanttest.Run(t, nibbles{}) }
