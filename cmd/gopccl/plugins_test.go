package main

import (
	"os"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/plugins/sdk"
)

// pluginOfTests makes the test binary a solver plugin (see TestMain).
const pluginOfTests = "plugin-of-tests"

func servePluginOfTests() {
	s, err := topo.Lookup("exact")
	if err != nil {
		os.Exit(1)
	}
	sdk.ServeSolver(s)
}
