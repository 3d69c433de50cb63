// Command moonshot is a ring solver plugin that goes on when the built-in ones
// stop: it searches on all cores for as long as it is let, from many starting
// points, and joins what its best rings have in common.
//
//	plugins:
//	  - {name: moonshot, kind: solver, command: moonshot}
//	topology:
//	  solver: moonshot
package main

import (
	"flag"
	"runtime"
	"time"

	"github.com/gopccl/gopccl/plugins/sdk"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)

func main() {
	threads := flag.Int("threads", runtime.NumCPU(), "searches at the same time")
	patience := flag.Duration("patience", 10*time.Minute, "end a search that found nothing better for so long")
	flag.Parse()
	sdk.ServeSolver(moonshot{threads: max(1, *threads), patience: *patience})
}
