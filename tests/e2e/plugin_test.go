package e2e

import (
	"os"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/plugins/sdk"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)

// ringPlugin makes the test binary a solver plugin (see TestMain).
const ringPlugin = "ring-plugin"

func serveRingPlugin() {
	s, err := topo.Lookup("heuristic")
	if err != nil {
		os.Exit(1)
	}
	sdk.ServeSolver(s)
}
