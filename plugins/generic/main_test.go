//go:build unix

package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs tests, or is the plugin that a test starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "plugin" {
		main()
	}
	goleak.VerifyTestMain(m)
}
