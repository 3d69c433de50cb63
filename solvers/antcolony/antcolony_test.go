package antcolony

import (
	"testing"
	"time"

	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestConformance(t *testing.T) { // S1-17, S1-18, S2-16, S3-14
	solvertest.Run(t, Solver{}, solvertest.Want{MaxPeers: 64, Ratio: 0.5, Budget: 100 * time.Millisecond})
}
