package collective

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// journal notes in which order connections are written to.
type journal struct {
	mu    sync.Mutex
	conns int
	wrote []int // connections
}

// noted is a connection that writes to a journal.
type noted struct {
	*transporttest.Conn
	j *journal
	k int
}

func (j *journal) link(testing.TB) (send, recv net.Conn) {
	a, b := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
	n := &noted{a, j, j.conns}
	j.conns++
	return n, b
}

func (c *noted) NonBlocking() transport.TryWriter { return c }

func (c *noted) TryWrite(b []byte) (int, error) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.j.wrote = append(c.j.wrote, c.k)
	return c.Conn.TryWrite(b)
}

// What waits for nothing goes to distant peers by turns if it is little, and to near ones at
// once.
func TestTurns(t *testing.T) {
	const n, pieces = 4, 32
	turns := slices.Repeat([]int{0, 1, 2}, pieces)
	for _, c := range []struct {
		distant bool
		piece   int
		wrote   []int // by member 0, over its connections
	}{
		{true, 64, turns},
		{false, 64, []int{0, 1, 2}},
		{true, byTurns / pieces, turns},
		{true, byTurns/pieces + 64, nil}, // not by turns
	} {
		j := &journal{}
		w := newWorld(t, shape{n: n, mesh: true, link: j.link, vary: func(i int, cfg *Config, _ *int) {
			cfg.piece, cfg.distant = c.piece, c.distant
		}})
		k := draw(rand.New(rand.NewPCG(1, 1)), w, plan.AllReduce, 0)
		k.varied, k.dt = false, 0
		k.counts = slices.Repeat([]int{pieces * c.piece / k.dt.Size()}, n)
		k.fill(w, rand.New(rand.NewPCG(1, 1)))
		op, err := w.eng[0].New(k.specs[0])
		require.NoError(t, err)
		op.Start(w.begin(0, 1, func(error) {}))
		j.mu.Lock()
		wrote := slices.Clone(j.wrote)
		j.mu.Unlock()
		if c.wrote != nil {
			require.Equal(t, c.wrote, wrote, "%+v", c)
		} else {
			require.NotEqual(t, turns, wrote, "%+v", c)
		}
		op.Abort(nil)
		op.Finish(true)
		w.close()
	}
}
