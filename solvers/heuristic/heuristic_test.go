package heuristic

import (
	"testing"
	"time"

	"github.com/gopccl/gopccl/core/topo/solvertest"
)

// Within its budget, close to the best known rings, never over a missing link.
func TestConformance(t *testing.T) {
	solvertest.Run(t, Solver{}, solvertest.Want{Ratio: 0.5, Budget: 50 * time.Millisecond}) // S1-17
}
