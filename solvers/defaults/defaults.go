// Package defaults links the built-in ring solvers.
package defaults

import (
	_ "github.com/gopccl/gopccl/solvers/antcolony" // registers "antcolony"
	_ "github.com/gopccl/gopccl/solvers/auto"
	_ "github.com/gopccl/gopccl/solvers/bottleneck"
	_ "github.com/gopccl/gopccl/solvers/exact"
	_ "github.com/gopccl/gopccl/solvers/heuristic"
	_ "github.com/gopccl/gopccl/solvers/hierarchical"
)
