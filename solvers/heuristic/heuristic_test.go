package heuristic

import (
	"testing"
	"time"

	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestConformance(t *testing.T) {
	solvertest.Run(t, Solver{}, solvertest.Want{Ratio: 0.7, Budget: time.Second})
}
