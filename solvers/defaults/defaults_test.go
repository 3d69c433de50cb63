package defaults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestAuto(t *testing.T) {
	require.Equal(t, []string{"auto", "exact", "heuristic"}, topo.Names())
	s, err := topo.Lookup("auto")
	require.NoError(t, err)
	solvertest.Run(t, s, solvertest.Want{MaxPeers: 18, Ratio: 0.9, Budget: time.Second})
}
