// Command lpexact is a ring solver plugin that proves: an integer programme
// with subtour constraints, solved by glpsol (GLPK) or cbc (COIN-OR), whichever
// is on PATH.
//
//	plugins:
//	  - {name: lpexact, kind: solver, command: lpexact, time_limit: 2m}
package main

import (
	"fmt"
	"os"

	"github.com/gopccl/gopccl/plugins/sdk"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)

func main() {
	e, err := findEngine()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lpexact:", err)
		os.Exit(1)
	}
	sdk.ServeSolver(lpexact{engine: e})
}
