package e2e

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// metered is a connection of so many bytes a second.
type metered struct {
	net.Conn
	rate float64
	mu   *sync.Mutex
	free *time.Time // when the line is free again
}

func (m metered) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		piece := p[n:min(n+32<<10, len(p))]
		m.mu.Lock()
		if now := time.Now(); m.free.Before(now) {
			*m.free = now
		}
		*m.free = m.free.Add(time.Duration(float64(len(piece)) / m.rate * 1e9))
		wait := time.Until(*m.free)
		m.mu.Unlock()
		time.Sleep(wait) // this is the link
		var k int
		k, err = m.Conn.Write(piece)
		n += k
	}
	return n, err
}

// What of the communication of a step is hidden behind its computation: four
// all-reduces of 1 MiB over links of 32 MB/s, and a computation, on a device as
// it were, that takes equally long. If all of it is, both together take no
// longer than one of them.
func BenchmarkOverlap(b *testing.B) {
	ctx := context.Background()
	master := localMaster(b)
	connect := func() *core.Communicator {
		var mu sync.Mutex
		var free time.Time
		c, err := connect(ctx, core.Options{Master: master, PortBase: -1, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil || addr == master {
				return c, err
			}
			return metered{c, 32e6, &mu, &free}, nil
		}})
		if err != nil {
			b.Error(err)
		}
		return c
	}
	first := connect()
	defer first.Close()
	joined := make(chan *core.Communicator, 1)
	go func() { joined <- connect() }()
	for first.Attributes().LocalWorldSize < 2 {
		require.NoError(b, first.UpdateTopology(ctx))
	}
	comms := []*core.Communicator{first, <-joined}
	defer comms[1].Close()
	buffers := make([][][]float32, len(comms))
	for i := range buffers {
		for range 4 {
			buffers[i] = append(buffers[i], make([]float32, 1<<18))
		}
	}
	// step returns how long a step took whose computation takes so long.
	step := func(compute time.Duration) time.Duration {
		began := time.Now()
		for _, err := range each(comms, func(i int, c *core.Communicator) error {
			var handles []*core.Handle
			for tag, v := range buffers[i] {
				r := core.ReduceOf(v, v, core.Sum)
				r.Tag = uint64(tag)
				h, err := c.AllReduceAsync(ctx, r)
				if err != nil {
					return err
				}
				handles = append(handles, h)
			}
			time.Sleep(compute) // this is the computation
			for _, h := range handles {
				if _, err := h.Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		}) {
			require.NoError(b, err)
		}
		return time.Since(began)
	}
	step(0)
	var alone, both []time.Duration
	for b.Loop() {
		t := step(0)
		alone, both = append(alone, t), append(both, step(t))
	}
	slices.Sort(alone)
	slices.Sort(both)
	b.ReportMetric(float64(both[len(both)/2])/float64(alone[len(alone)/2]), "by-the-longer")
}
