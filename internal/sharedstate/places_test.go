package sharedstate

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Readers of devices are bounded; one that takes nothing gives way to those that
// wait, one that takes something does not.
func TestDeviceReadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces()
		end := make(chan struct{})
		var wg sync.WaitGroup
		var far []net.Conn
		reader := func() net.Conn {
			there, here := net.Pipe()
			far = append(far, there)
			require.NoError(t, p.take(here, end))
			return here
		}
		began := time.Now()
		busy := reader()
		for range devicePlaces - 1 {
			idle := reader()
			wg.Go(func() { // ends when its connection is closed
				_, _ = idle.Read(make([]byte, 1))
				p.give(idle)
			})
		}
		require.Zero(t, time.Since(began))
		stop := make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-time.After(deviceIdle / 2):
					p.moved(busy)
				case <-stop:
					return
				}
			}
		})
		for range 3 * devicePlaces {
			late := reader()
			p.mu.Lock()
			require.LessOrEqual(t, len(p.held), devicePlaces)
			p.mu.Unlock()
			wg.Go(func() {
				_, _ = late.Read(make([]byte, 1))
				p.give(late)
			})
		}
		require.GreaterOrEqual(t, time.Since(began), 3*deviceIdle)
		p.mu.Lock()
		require.Contains(t, p.held, busy, "it has taken something all the time")
		p.mu.Unlock()
		close(stop)
		for _, c := range far {
			c.Close()
		}
		wg.Wait()
	})
}

// Requesters that wait for a place end with the server.
func TestWaitForADeviceEnds(t *testing.T) {
	p := newPlaces()
	end := make(chan struct{})
	for range devicePlaces {
		_, here := net.Pipe()
		require.NoError(t, p.take(here, end))
	}
	_, here := net.Pipe()
	close(end)
	require.ErrorIs(t, p.take(here, end), net.ErrClosed)
}
