package e2e

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/ports"
)

// freePorts returns three ports that nobody listens on.
func freePorts(t *testing.T) []int {
	free, err := ports.Free(3)
	require.NoError(t, err)
	return free
}

// A peer leaves and comes back at the ports that it had, before its neighbours
// ran a round: in PCCL they report a failure and are kicked (quirk Q7). Here the
// new session is another peer, and all go on.
func TestRejoinAtTheSamePorts_Q7(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master, ports := localMaster(t), freePorts(t)
	comms := world(t, ctx, master, 3, func(id int, o *core.Options) {
		if id == 2 {
			o.PortBase, o.ListenHost, o.Ports = 0, "127.0.0.1", ports
		}
	})
	require.NoError(t, comms[2].Close())
	back := make(chan error, 1)
	go func() {
		c, err := connect(ctx, core.Options{Master: master, ListenHost: "127.0.0.1", Ports: ports})
		comms[2] = c
		back <- err
	}()
	var wg sync.WaitGroup
	fail := make([]error, 2)
	for i, c := range comms[:2] {
		wg.Add(1)
		go func() {
			defer wg.Done()
			pending := false
			for !pending && fail[i] == nil { // all get the same answer
				pending, fail[i] = c.PeersPending(ctx)
			}
			if fail[i] == nil {
				fail[i] = c.UpdateTopology(ctx)
			}
		}()
	}
	wg.Wait()
	require.NoError(t, fail[0])
	require.NoError(t, fail[1])
	require.NoError(t, <-back)
	for _, c := range comms {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v := []float64{1, 2, 3, 4}
			_, err := c.AllReduce(ctx, core.ReduceOf(v, v, core.Sum))
			if err != nil || v[3] != 12 {
				t.Errorf("%v %v", v, err)
			}
		}()
	}
	wg.Wait()
}
