//go:build unix

package main

import (
	"errors"
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/plugins/sdk"
)

var soak = flag.Bool("soak", false, "all combinations over the process border, not one of each kind")

// narrow knows one data type and one wire type: there are a hundred thousand
// calls in the suite for each.
type narrow struct{ absmax }

func (n narrow) Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	if t != dtype.Float32 || q != dtype.Int8 || op > dtype.Avg {
		return errors.New("not in this test")
	}
	return n.absmax.Check(t, q, op, minChunk, native)
}

// TestMain runs tests, or is the plugin that a test starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "plugin" {
		if len(os.Args) > 2 {
			sdk.ServeQuantizer(narrow{})
		}
		main()
	}
	goleak.VerifyTestMain(m)
}
