package sdk

import (
	"io"
	"math"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/plugin/shm"
	"github.com/gopccl/gopccl/plugins/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProblem(t *testing.T) {
	p, err := problem(&proto.Problem{Peers: 2, Mbps: []float64{0, 5, 7, 0}, Objective: "sum", Start: []uint32{1, 0}, Seed: 9})
	require.NoError(t, err)
	require.Equal(t, topo.Problem{Matrix: topo.Matrix{N: 2, Mbps: []float64{0, 5, 7, 0}}, Objective: topo.Sum, Start: []int{1, 0}, Seed: 9}, p)
	for name, m := range map[string]*proto.Problem{
		"short":     {Peers: 3, Mbps: make([]float64, 8)},
		"long":      {Peers: 1, Mbps: make([]float64, 2)},
		"too large": {Peers: math.MaxUint32},
		"overflow":  {Peers: 1 << 31},
		"objective": {Peers: 1, Mbps: []float64{0}, Objective: "beauty"},
	} {
		_, err := problem(m)
		require.ErrorIs(t, err, topo.ErrMatrix, name)
	}
}

// A lane answers what it is asked, says what it cannot do, and ends with its
// socket.
func TestLane(t *testing.T) {
	host, plugin := net.Pipe()
	mem := make([]byte, 64)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lane(plugin, mem, func(_ *shm.Frame, dst, a, b []byte) {
			for i := range dst {
				dst[i] = a[i] + b[i]
			}
			if dst[0] == 0 {
				panic("nothing to add")
			}
		})
	}()
	ask := func(f shm.Frame) shm.Frame {
		b := make([]byte, shm.FrameBytes)
		f.Put(b)
		_, err := host.Write(b)
		require.NoError(t, err)
		_, err = io.ReadFull(host, b)
		require.NoError(t, err)
		require.NoError(t, f.Get(b))
		return f
	}
	f := shm.Frame{Call: shm.Reduce, Type: dtype.Uint8, Op: dtype.Sum, Count: 8, A: 8, B: 16}
	got := ask(f)
	require.True(t, got.Failed)
	require.Contains(t, string(got.Text[:]), "nothing to add")
	mem[8], mem[16] = 3, 4
	got = ask(f)
	require.False(t, got.Failed)
	require.EqualValues(t, 7, mem[0])
	f.Count = 1 << 40
	require.True(t, ask(f).Failed)
	require.NoError(t, host.Close())
	<-ended
}
