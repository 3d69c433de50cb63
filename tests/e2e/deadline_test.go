package e2e

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// Connections that are older than their handshakes may take live on: the probe
// of a round is answered, and nothing is dialled again.
func TestConnectionsOutliveTheirHandshakes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const bound = 4 * time.Second
	var dialled atomic.Int64
	comms := world(t, ctx, localMaster(t), 2, func(_ int, o *core.Options) {
		o.HandshakeTimeout = bound
		o.PoolSize = 3
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialled.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	sums(t, ctx, comms)
	before := dialled.Load()
	for range 2 {
		for range time.Tick(bound + bound/4) { // deadlines go by the clock
			break
		}
		for _, err := range each(comms, func(_ int, c *core.Communicator) error { return c.UpdateTopology(ctx) }) {
			require.NoError(t, err)
		}
		sums(t, ctx, comms)
	}
	require.Equal(t, before, dialled.Load(), "connections were dialled again")
}
