package antcolony

import (
	"testing"
	"time"

	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestConformance(t *testing.T) {
	solvertest.Run(t, Solver{}, solvertest.Want{MaxPeers: 64, Ratio: 0.5, Budget: 100 * time.Millisecond}) // S1-17
}
