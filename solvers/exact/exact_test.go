package exact

import (
	"testing"
	"time"

	"github.com/gopccl/gopccl/core/topo/solvertest"
)

// Proved optima; the ring of two sites crosses the gap twice.
func TestConformance(t *testing.T) {
	solvertest.Run(t, Solver{}, solvertest.Want{MaxPeers: 12, Proves: true, Ratio: 0.9999, Budget: 30 * time.Second}) // S1-17
}
