package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/platform"
	"github.com/gopccl/gopccl/tests/internal/process"
)

// Create, connect, reduce and close leaves no goroutine and no descriptor.
func TestNoLeakAcrossSessions(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreTopFunction(process.Starter))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	mctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(mctx) }()
	cycle := func(n int) {
		var wg sync.WaitGroup
		fail := make([]error, 2)
		for id := range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				fail[id] = pair(ctx, order{Master: m.Addr().String(), ID: id, World: 2}, func(report) {})
			}()
		}
		wg.Wait()
		require.NoError(t, fail[0], "cycle %d", n)
		require.NoError(t, fail[1], "cycle %d", n)
	}
	for n := range 5 {
		cycle(n)
	}
	before, err := platform.OpenHandles()
	if err != nil {
		t.Logf("open handles cannot be counted here: %v", err)
	}
	for n := range counts(200) {
		cycle(n)
	}
	// Closed sockets of the last cycle are gone when Close has returned; the
	// master notices its ends a moment later.
	require.Eventually(t, func() bool {
		after, err := platform.OpenHandles()
		return err != nil || after <= before
	}, patience, 10*time.Millisecond, fmt.Sprintf("more than %d handles stay open", before))
	stop()
	<-ended
	require.NoError(t, m.Close())
}
