// Package defaults links the built-in ring solvers.
package defaults

import (
	_ "github.com/gopccl/gopccl/solvers/auto" // registers "auto"
	_ "github.com/gopccl/gopccl/solvers/exact"
	_ "github.com/gopccl/gopccl/solvers/heuristic"
	_ "github.com/gopccl/gopccl/solvers/hierarchical"
)
