package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// Every call that waits for the other peers ends, with a typed error that says
// why, when its context ends, when the communicator is closed and when the
// master is gone.
// Quirk Q66.
func TestEveryCallEnds(t *testing.T) {
	v := []float32{1, 2, 3}
	calls := map[string]func(ctx context.Context, c *core.Communicator) error{
		"update":   func(ctx context.Context, c *core.Communicator) error { return c.UpdateTopology(ctx) },
		"optimize": func(ctx context.Context, c *core.Communicator) error { return c.OptimizeTopology(ctx) },
		"pending": func(ctx context.Context, c *core.Communicator) error {
			_, err := c.PeersPending(ctx)
			return err
		},
		"sync": func(ctx context.Context, c *core.Communicator) error {
			st := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("v", v)}}
			_, err := c.SyncSharedState(ctx, st, core.SyncOptions{})
			return err
		},
		"reduce": func(ctx context.Context, c *core.Communicator) error {
			_, err := core.AllReduceSlice(ctx, c, v, v, core.Sum)
			return err
		},
		"retry": func(ctx context.Context, c *core.Communicator) error {
			_, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(v, v, core.Sum)}, 4)
			return err
		},
	}
	for name, call := range calls {
		for how, want := range map[string]errs.Code{"cancel": errs.Canceled, "close": errs.Closed, "master": errs.MasterLost} {
			t.Run(name+"/"+how, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
				require.NoError(t, err)
				go m.Run(ctx)
				defer m.Close()
				comms := world(t, ctx, m.Addr().String(), 2, endsWithMaster)
				give, up := context.WithCancel(ctx)
				defer up()
				out := make(chan error, 1)
				go func() { out <- call(give, comms[0]) }()
				voting := func() bool { // until the master has the vote, the call may be refused as well as ended
					for _, c := range m.Status().Clients {
						if c.UUID == comms[0].Attributes().UUID {
							return c.State != "IDLE" || c.Pending || len(c.Collectives) > 0
						}
					}
					return false
				}
				require.Eventually(t, voting, patience, time.Millisecond)
				switch how {
				case "cancel":
					up()
				case "close":
					require.NoError(t, comms[0].Close())
				case "master":
					require.NoError(t, m.Close())
				}
				select {
				case err := <-out:
					var e *core.Error
					require.ErrorAs(t, err, &e)
					require.NotEmpty(t, e.Op)
					require.ErrorIs(t, err, want)
				case <-ctx.Done():
					t.Fatal("the call goes on")
				}
				require.Equal(t, []float32{1, 2, 3}, v)
			})
		}
	}
}

// endsWithMaster has a peer end with its master.
func endsWithMaster(_ int, o *core.Options) { o.ReattachTimeout = -1 }

// A newcomer that cannot be reached is dropped, the reason is in the master's
// log with both addresses, and the run goes on unharmed.
func TestUnreachableNewcomerIsDropped(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var log lockedBuffer
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	go m.Run(ctx)
	defer m.Close()
	comms := world(t, ctx, m.Addr().String(), 3, nil)

	shut, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := uint16(shut.Addr().(*net.TCPAddr).Port)
	require.NoError(t, shut.Close())
	nc, err := issued.Dial(m.Addr().String(), secure.Control)
	require.NoError(t, err)
	defer nc.Close()
	_, err = nc.Write(wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: port, SharedStatePort: port, BenchmarkPort: port, Ext: wire.Ext{Native: true}}))
	require.NoError(t, err)
	told := make(chan string, 1)
	go func() {
		last := ""
		for {
			p, err := wire.Read(nc, wire.M2C, wire.MaxPacket)
			if err != nil {
				told <- last
				return
			}
			switch p := p.(type) {
			case wire.M2CP2PConnectionInfo: // it says that all is well
				nc.Write(wire.Append(nil, wire.C2MP2PConnectionsEstablished{Success: true}))
			case wire.M2CPeerDropped:
				last = p.Reason
			}
		}
	}()
	dropped := false
	for !dropped {
		for _, err := range each(comms, func(_ int, c *core.Communicator) error {
			pending, err := c.PeersPending(ctx)
			if err == nil && pending {
				err = c.UpdateTopology(ctx)
			}
			if err != nil {
				return err
			}
			v := []int32{1}
			_, err = core.AllReduceSlice(ctx, c, v, v, core.Sum)
			if err == nil && v[0] != 3 {
				err = fmt.Errorf("sum is %d", v[0])
			}
			return err
		}) {
			require.NoError(t, err)
		}
		select {
		case why := <-told:
			require.Contains(t, why, "cannot reach it at 127.0.0.1:") // S2-15
			dropped = true
		default:
		}
	}
	written(t, "cannot reach", &log)
	written(t, nc.LocalAddr().String(), &log)
}

// written waits until one of the logs has the text: lines are written a moment
// after the fact.
func written(t *testing.T, text string, logs ...*lockedBuffer) {
	t.Helper()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(logs, func(l *lockedBuffer) bool { return strings.Contains(l.String(), text) })
	}, patience, time.Millisecond, text)
}

// lockedBuffer collects a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Peers that pass different arguments to one collective, in any order:
// both get an error that names both and what each passed, and go on.
func TestMismatchIsNamedOnBothPeers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	few, others, many, ints := make([]float32, 100), make([]float32, 100), make([]float32, 100_000), make([]int32, 100)
	a := core.ReduceOf(few, few, core.Sum)
	for what, b := range map[string]core.Reduce{
		"100000 x float32 sum": core.ReduceOf(many, many, core.Sum),
		"100 x int32 sum":      core.ReduceOf(ints, ints, core.Sum),
		"100 x float32 max":    core.ReduceOf(others, others, core.Max),
	} {
		for _, order := range [][2]core.Reduce{{a, b}, {b, a}} {
			for _, err := range each(comms, func(i int, c *core.Communicator) error {
				_, err := c.AllReduce(ctx, order[i])
				return err
			}) {
				require.ErrorIs(t, err, errs.Mismatch)
				require.Contains(t, err.Error(), what)
				require.Contains(t, err.Error(), "100 x float32 sum")
			}
		}
	}
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		_, err := c.AllReduce(ctx, core.ReduceOf(make([]int8, 9), make([]int8, 9), core.Min))
		return err
	}) {
		require.NoError(t, err)
	}
}

// Buffers at odd addresses, of no and of few elements; states with an empty
// key, an empty tensor, and tensors whose length changes between revisions.
func TestOddBuffers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	for _, err := range each(comms, func(i int, c *core.Communicator) error {
		for count := range 9 {
			raw := make([]byte, 16*count+16)
			src, dst := raw[3:3+8*count], raw[3+8*count:3+16*count]
			for k := range count {
				src[8*k] = byte(k + i) // little-endian
			}
			for _, d := range [][]byte{dst, src} {
				r := core.Reduce{Src: src, Dst: d, DType: dtype.Int64, Op: core.Sum}
				if _, err := c.AllReduce(ctx, r); err != nil {
					return err
				}
				for k := range count {
					if d[8*k] != byte(2*k+1) {
						return fmt.Errorf("element %d of %d is %d", k, count, d[8*k])
					}
				}
			}
		}
		if _, err := c.AllReduce(ctx, core.Reduce{DType: dtype.Float64, Op: core.Avg}); err != nil {
			return fmt.Errorf("nil buffers: %w", err)
		}
		for rev := range uint64(4) {
			grown := make([]int16, 10*rev)
			if rev == 2 && i == 0 {
				grown[3] = 7
			}
			st := &core.SharedState{Revision: rev, Tensors: []core.Tensor{core.TensorOf("", []uint8{1}), core.TensorOf("grows", grown)}}
			if _, err := c.SyncSharedState(ctx, st, core.SyncOptions{}); err != nil {
				return fmt.Errorf("revision %d: %w", rev, err)
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
}

// A master and peers that know each other by IPv6 only.
// Quirk Q38.
func TestIPv6(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	probe, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Logf("this machine has no IPv6: %v", err)
		return
	}
	require.NoError(t, probe.Close())
	m, err := newMaster(core.MasterOptions{Listen: "[::1]:0"})
	require.NoError(t, err)
	go m.Run(ctx)
	defer m.Close()
	comms := world(t, ctx, m.Addr().String(), 3, func(_ int, o *core.Options) {
		o.ListenHost, o.PoolSize, o.Probe.Duration = "::1", 2, 10*time.Millisecond
	})
	for _, err := range each(comms, func(i int, c *core.Communicator) error {
		v := []int32{int32(i)}
		st := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("v", v)}}
		_, err := c.SyncSharedState(ctx, st, core.SyncOptions{})
		if err == nil {
			err = c.OptimizeTopology(ctx)
		}
		w := []int32{1}
		if err == nil {
			_, err = core.AllReduceSlice(ctx, c, w, w, core.Sum)
		}
		if err == nil && w[0] != 3 {
			err = errors.New("wrong sum")
		}
		return err
	}) {
		require.NoError(t, err)
	}
}
