package e2e

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// keeper runs a master with a directory; end ends it.
func keeper(t *testing.T, dir string) (m *core.Master, end func()) {
	m, err := newMaster(core.MasterOptions{Listen: freeAddresses(t, 1)[0], State: dir})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(context.Background()) }()
	end = func() {
		m.Close()
		require.NoError(t, <-ended)
	}
	t.Cleanup(func() { m.Close() })
	leads(t, m.Addr().String())
	return m, end
}

// leads waits until the master at an address has the lead: one that does not have it within a
// moment, because the disk is slow, turns newcomers away.
func leads(t *testing.T, addr string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := issued.Dial(addr, secure.Control)
		if err != nil {
			return false
		}
		defer c.Close()
		if _, err := c.Write(wire.Append(nil, wire.C2MAskStatus{})); err != nil {
			return false
		}
		p, err := wire.Read(c, wire.M2C, wire.MaxPacket)
		if err != nil {
			return false
		}
		status, ok := p.(wire.M2CStatus)
		return ok && strings.Contains(string(status.JSON), `"role":"leads"`)
	}, patience, 10*time.Millisecond)
}

// A trained state outlives the master and all peers: those who come back have to bring
// it, or a later one, under every master that is started with the directory, unless an
// operator gives it up.
func TestStateOutlivesTheMaster(t *testing.T) {
	for name, together := range map[string]bool{"the peers leave first": false, "the master ends first": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			dir := t.TempDir()
			m, end := keeper(t, dir)
			cs := world(t, ctx, m.Addr().String(), 2, func(id int, o *core.Options) {
				smallBuffers(id, o)
				endsWithMaster(id, o) // the next master waits for nobody
			})
			states := []*core.SharedState{tensorsOf(0, 2, 100, 1), tensorsOf(0, 2, 100, 1)}
			for range 2 {
				for _, err := range each(cs, func(i int, c *core.Communicator) error {
					_, err := c.SyncSharedState(ctx, states[i], core.SyncOptions{})
					states[i].Revision++
					return err
				}) {
					require.NoError(t, err)
				}
			}
			if together {
				end()
			}
			for _, c := range cs {
				require.NoError(t, c.Close())
			}
			if !together {
				require.Eventually(t, func() bool { return len(m.Status().Clients) == 0 }, patience, time.Millisecond)
				end()
			}
			for n, s := range []struct {
				state *core.SharedState
				reset bool
				taken bool
			}{
				{state: tensorsOf(0, 2, 100, 0)},                           // fresh
				{state: tensorsOf(0, 2, 100, 1)},                           // an older checkpoint
				{state: tensorsOf(1, 2, 100, 0)},                           // another content
				{state: tensorsOf(1, 2, 100, 1), taken: true},              // the latest checkpoint
				{state: tensorsOf(0, 2, 100, 1)},                           // no more
				{state: tensorsOf(0, 2, 100, 0), reset: true, taken: true}, // an operator's choice
			} {
				m, end := keeper(t, dir)
				o := core.Options{Master: m.Addr().String(), PortBase: -1}
				endsWithMaster(0, &o)
				c, err := connect(ctx, o)
				require.NoError(t, err)
				if s.reset {
					require.NoError(t, m.ResetSharedState(0))
				}
				_, err = c.SyncSharedState(ctx, s.state, core.SyncOptions{})
				if s.taken {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, errs.NoSharedStateAvailable, "%d", n)
					require.ErrorContains(t, err, "master.lost_state to anew")
				}
				require.NoError(t, c.Close())
				end()
			}
		})
	}
}

// A master that ends in good order, for an upgrade, costs nobody a call: its peers go on
// with the next one of its directory, at the same address.
func TestMasterIsReplacedInGoodOrder(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dir := t.TempDir()
	m, end := keeper(t, dir)
	addr := m.Addr().String()
	cs := world(t, ctx, addr, 3, func(_ int, o *core.Options) { o.ReattachTimeout = time.Minute })
	uuids := func() (us []core.UUID) { return m.Status().Groups[0].Ring }
	ring := uuids()
	require.Len(t, ring, 3)
	stop := make(chan struct{})
	var calls atomic.Int64
	ended := make(chan []error, 1)
	go func() {
		ended <- each(cs, func(_ int, c *core.Communicator) error {
			data := make([]float32, 1000)
			for {
				select {
				case <-stop:
					// All see the same number of calls, whenever they see that it is over.
					data[0] = 1
				default:
					data[0] = 0
				}
				if _, err := core.AllReduceSlice(ctx, c, data, data, core.Sum); err != nil {
					return err
				}
				calls.Add(1)
				if data[0] > 0 {
					return nil
				}
			}
		})
	}()
	for range counts(100) {
		before := calls.Load()
		require.Eventually(t, func() bool { return calls.Load() > before+6 }, patience, time.Millisecond)
		end()
		var err error
		m, err = newMaster(core.MasterOptions{Listen: addr, State: dir})
		require.NoError(t, err)
		over := make(chan error, 1)
		go func() { over <- m.Run(context.Background()) }()
		end = func() {
			m.Close()
			require.NoError(t, <-over)
		}
	}
	before := calls.Load()
	require.Eventually(t, func() bool { return calls.Load() > before+6 }, patience, time.Millisecond)
	require.Equal(t, ring, uuids())
	close(stop)
	for _, err := range <-ended {
		require.NoError(t, err)
	}
	for _, c := range cs {
		require.NoError(t, c.Close())
	}
	end()
}
