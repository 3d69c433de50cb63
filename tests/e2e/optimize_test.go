package e2e

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// probed is a master that remembers what it said about probes.
func probed(t testing.TB) (addr string, said func() []string) {
	var mu sync.Mutex
	var texts []string
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0", OnFact: func(f core.Fact) {
		if f.Kind == "probes" {
			mu.Lock()
			defer mu.Unlock()
			texts = append(texts, f.Text)
		}
	}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		m.Close()
	})
	return m.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), texts...)
	}
}

// admit lets a peer into the run of comms.
func admit(t testing.TB, ctx context.Context, master string, comms []*core.Communicator, probes int) *core.Communicator {
	t.Helper()
	joined := make(chan *core.Communicator, 1)
	go func() {
		o := core.Options{Master: master, ListenHost: "127.0.0.1", PortBase: -1, Probe: core.ProbeOptions{Connections: probes}}
		c, err := connect(ctx, o)
		if err != nil {
			t.Error(err)
		}
		joined <- c
	}()
	for pending := len(comms) == 0; !pending; {
		answers := make([]bool, len(comms))
		for _, err := range each(comms, func(i int, c *core.Communicator) (err error) {
			answers[i], err = c.PeersPending(ctx)
			return err
		}) {
			require.NoError(t, err)
		}
		pending = answers[0]
	}
	for _, err := range each(comms, func(_ int, c *core.Communicator) error { return c.UpdateTopology(ctx) }) {
		require.NoError(t, err)
	}
	c := <-joined
	require.NotNil(t, c)
	return c
}

// n peers measure their links in n-1 rounds, all of a round at
// once, and a peer that joins costs its own links only.
func TestScheduledProbes(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master, said := probed(t)
	change := func(_ int, o *core.Options) { o.Probe.Connections = 1 }
	comms := world(t, ctx, master, 4, change)
	optimize := func(_ int, c *core.Communicator) error { return c.OptimizeTopology(ctx) }
	for range 2 { // the second time nothing is missing
		for _, err := range each(comms, optimize) {
			require.NoError(t, err)
		}
	}
	require.Len(t, said(), 1)
	require.True(t, strings.HasPrefix(said()[0], "12 links measured in 3 rounds"), said()[0])

	c := admit(t, ctx, master, comms, 1)
	t.Cleanup(func() { c.Close() })
	for _, err := range each(append(comms, c), optimize) {
		require.NoError(t, err)
	}
	require.Len(t, said(), 2)
	require.True(t, strings.HasPrefix(said()[1], "8 links measured in 4 rounds"), said()[1]) // S1-15
}

// BenchmarkOptimize16 times the first optimization of 16 peers on one machine.
func BenchmarkOptimize16(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
		require.NoError(b, err)
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		var comms []*core.Communicator
		for len(comms) < 16 {
			comms = append(comms, admit(b, ctx, m.Addr().String(), comms, 0))
		}
		b.StartTimer()
		for _, err := range each(comms, func(_ int, c *core.Communicator) error { return c.OptimizeTopology(ctx) }) {
			require.NoError(b, err)
		}
		b.StopTimer()
		for _, c := range comms {
			c.Close()
		}
		cancel()
		require.NoError(b, <-ended)
		b.StartTimer()
	}
}
