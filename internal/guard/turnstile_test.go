package guard

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func network(n byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 32)
}

// A network that sends many waits behind itself; another one goes in between.
func TestNetworksGoInByTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := turnstile{free: 1}
		require.NoError(t, ts.enter(t.Context(), network(1)))
		var order []byte
		enter := func(n byte) {
			go func() {
				require.NoError(t, ts.enter(t.Context(), network(n)))
				order = append(order, n)
				ts.leave()
			}()
			synctest.Wait()
		}
		for range 5 {
			enter(1)
		}
		enter(2)
		enter(3)
		enter(2)
		ts.leave()
		synctest.Wait()
		require.Equal(t, []byte{1, 2, 3, 1, 2, 1, 1, 1}, order)
		require.Equal(t, 1, ts.free)
		require.Empty(t, ts.lines)
	})
}

// Those who give up lose their place in the line, and no turn is lost with them.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := turnstile{free: 1}
		require.NoError(t, ts.enter(t.Context(), network(1)))
		ctx, cancel := context.WithCancel(t.Context())
		for n := range byte(3) {
			go func() { require.ErrorIs(t, ts.enter(ctx, network(n)), context.Canceled) }()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Empty(t, ts.lines)
		ts.leave()
		require.Equal(t, 1, ts.free)
	})
}

// Never more than there are places for, however many come and give up.
func TestTurnstileCounts(t *testing.T) {
	ts := turnstile{free: 3}
	var in, most atomic.Int64
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			for k := range 200 {
				ctx, cancel := context.WithCancel(context.Background())
				if (n+k)%3 == 0 {
					go cancel()
				}
				if ts.enter(ctx, network(byte(n%5))) == nil {
					if now := in.Add(1); now > most.Load() {
						most.Store(now)
					}
					in.Add(-1)
					ts.leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(3))
	require.Equal(t, 3, ts.free)
	require.Empty(t, ts.lines)
}
