package e2e

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/transport"
)

// tallied is a connection that knows how much was written to it.
type tallied struct {
	net.Conn
	n    atomic.Int64
	over atomic.Bool
}

func (c *tallied) Close() error {
	c.over.Store(true)
	return c.Conn.Close()
}

func (c *tallied) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// One large all-reduce goes over all connections of the pools; the loss of one
// of them costs one retry, after which all are there again.
func TestOneOperationUsesAllConnections(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const pool = 4
	master := localMaster(t)
	var mu sync.Mutex
	var conns []*tallied
	comms := world(t, ctx, master, 2, func(_ int, o *core.Options) {
		o.PoolSize = pool
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil || addr == master {
				return c, err
			}
			mu.Lock()
			defer mu.Unlock()
			// The net package tells the race detector what a write has read when the
			// write is over, and the answer may have come to the same memory before.
			conns = append(conns, &tallied{Conn: transport.Quiet(c)})
			return conns[len(conns)-1], nil
		}
	})
	// Whether the newcomer is reached was tried before.
	mu.Lock()
	conns = slices.DeleteFunc(conns, func(c *tallied) bool { return c.over.Load() })
	mu.Unlock()
	const count = 1 << 20
	all := func() {
		for _, err := range each(comms, func(i int, c *core.Communicator) error {
			v := make([]float32, count)
			for k := range v {
				v[k] = float32(i + 1)
			}
			if _, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(v, v, core.Sum)}, 1); err != nil {
				return err
			}
			for _, x := range v {
				if x != 3 {
					t.Errorf("%v instead of 3", x)
					break
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
	}
	// The first connection that is ready takes most: on a fast path some may stay without.
	used := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, conns, 2*pool) // S2-41
		for _, c := range conns {
			if c.n.Load() > 64<<10 {
				n++
			}
		}
		return n
	}
	for tries := 0; used() < 2*pool; tries++ {
		require.Less(t, tries, 100, "only %d connections carry data", used())
		all()
	}
	mu.Lock()
	conns[1].Close()
	mu.Unlock()
	all()
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, conns, 3*pool, "the pool was replaced")
}
