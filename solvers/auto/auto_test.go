package auto

import (
	"testing"
	"time"

	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestConformance(t *testing.T) {
	solvertest.Run(t, Solver{}, solvertest.Want{Ratio: 0.5, Budget: 50 * time.Millisecond}) // S1-17, S2-16, S1-18
}
