package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
)

// tensorsOf makes a state of n tensors whose elements all have one value.
func tensorsOf(revision uint64, n, floats int, value float32) *core.SharedState {
	st := &core.SharedState{Revision: revision}
	for k := range n {
		v := make([]float32, floats)
		for i := range v {
			v[i] = value
		}
		st.Tensors = append(st.Tensors, core.TensorOf(fmt.Sprintf("t%d", k), v))
	}
	return st
}

// mixture reports whether st has elements of different values.
func mixture(st *core.SharedState) bool {
	first := st.Tensors[0].Data[:4]
	for _, t := range st.Tensors {
		n := len(t.Data)
		if !bytes.Equal(t.Data[:4], first) || !bytes.Equal(t.Data[4:], t.Data[:n-4]) {
			return true
		}
	}
	return false
}

// tear lets a newcomer fetch from a holder and does something when half of the
// state is there; it returns the newcomer's error.
func tear(t *testing.T, ctx context.Context, holder, newcomer *core.Communicator, st *core.SharedState, half func()) error {
	t.Helper()
	held := make(chan struct{})
	go func() {
		defer close(held)
		full := tensorsOf(50, len(st.Tensors), len(st.Tensors[0].Data)/4, 1)
		_, _ = holder.SyncSharedState(ctx, full, core.SyncOptions{})
	}()
	var once sync.Once
	_, err := newcomer.SyncSharedState(ctx, st, core.SyncOptions{Progress: func(done, total uint64, _ string) {
		if done > total/2 {
			once.Do(half)
		}
	}})
	t.Cleanup(func() {
		holder.Close()
		<-held
	})
	return err
}

const (
	tornTensors = 8
	tornFloats  = 1 << 20 // 4 MiB each: together more than the sockets swallow
)

// smallBuffers has a peer's connections keep little of what its program has not
// taken, so that a holder cannot have sent all of a state at half of it.
func smallBuffers(_ int, o *core.Options) {
	o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok && err == nil {
			err = tcp.SetReadBuffer(256 << 10)
		}
		return c, err
	}
}

// requireTorn checks that error and state name what was overwritten.
func requireTorn(t *testing.T, err error, st *core.SharedState) {
	t.Helper()
	require.Error(t, err)
	var inc *errs.Incomplete
	require.ErrorAs(t, err, &inc, "%v", err)
	require.NotEmpty(t, append(inc.Done, inc.Torn...))
	require.True(t, mixture(st))
	require.ElementsMatch(t, append(inc.Done, inc.Torn...), st.Torn())
	require.Zero(t, st.Revision)
}

// Whatever ends a session while it receives a state, the error and the state
// name the tensors that were overwritten.
func TestEveryEndOfAFetchNamesWhatIsTorn(t *testing.T) {
	for _, how := range []string{"holder", "close", "cancel", "master", "panic"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- m.Run(ctx) }()
			t.Cleanup(func() { m.Close(); <-ended })
			cs := world(t, ctx, m.Addr().String(), 2, func(id int, o *core.Options) {
				smallBuffers(id, o)
				endsWithMaster(id, o)
			})
			fctx, stop := context.WithCancel(ctx)
			defer stop()
			st := tensorsOf(0, tornTensors, tornFloats, 0)
			err = tear(t, fctx, cs[0], cs[1], st, func() {
				switch how {
				case "holder":
					cs[0].Close()
					return
				case "close":
					go cs[1].Close()
				case "cancel":
					stop()
				case "master":
					m.Close()
				case "panic":
					panic("a callback of the trainer's")
				}
				for cs[1].Attributes().Connected {
					runtime.Gosched()
				}
			})
			requireTorn(t, err, st)
			if how == "cancel" {
				require.ErrorIs(t, err, errs.Canceled)
			}
			_, _, err = st.SaveCheckpoint(t.TempDir(), nil, 0)
			require.ErrorIs(t, err, errs.InvalidUsage, "a mixture is not a checkpoint")
			st.Restored()
			require.Empty(t, st.Torn())
		})
	}
}

// A state that a dead holder left torn is nobody's: it is not elected when its
// peer is alone, nor beside a fresh one; the next transfer that succeeds, or a
// checkpoint, makes it sound.
func TestTornStateIsNotElected(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addr := localMaster(t)
	cs := world(t, ctx, addr, 2, smallBuffers)
	st := tensorsOf(0, tornTensors, tornFloats, 0)
	requireTorn(t, tear(t, ctx, cs[0], cs[1], st, func() { cs[0].Close() }), st)
	_, err := cs[1].SyncSharedState(ctx, st, core.SyncOptions{})
	require.ErrorIs(t, err, errs.NoSharedStateAvailable, "the mixture was taken for a state")
	require.ErrorContains(t, err, "mixtures of two states")
	var inc *errs.Incomplete
	require.ErrorAs(t, err, &inc)
	require.NotEmpty(t, st.Torn())
	_, err = cs[1].SyncSharedState(ctx, st, core.SyncOptions{Strategy: core.SendOnly})
	require.ErrorIs(t, err, errs.InvalidUsage)
	require.ErrorAs(t, err, &inc)

	other := admit(t, ctx, addr, cs[1:], 0)
	defer other.Close()
	fresh := tensorsOf(0, tornTensors, tornFloats, 3)
	both := []*core.Communicator{cs[1], other}
	for _, err := range each(both, func(i int, c *core.Communicator) error {
		_, err := c.SyncSharedState(ctx, []*core.SharedState{st, fresh}[i], core.SyncOptions{})
		return err
	}) {
		require.NoError(t, err)
	}
	require.Equal(t, core.StateHash(fresh), core.StateHash(st))
	require.False(t, mixture(st))
	require.Empty(t, st.Torn())

	// A checkpoint does the same; a state whose memory has a new owner says so itself.
	dir := t.TempDir()
	path, _, err := st.SaveCheckpoint(dir, map[string]string{"step": "7"}, 1)
	require.NoError(t, err)
	again := tensorsOf(9, tornTensors, tornFloats, 5)
	again.MarkTorn("t1", "t3", "t1")
	require.Equal(t, []string{"t1", "t3"}, again.Torn())
	meta, err := again.LoadCheckpoint(path)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"step": "7"}, meta)
	require.Equal(t, core.StateHash(st), core.StateHash(again))
	require.Equal(t, st.Revision, again.Revision)
	require.Empty(t, again.Torn())
}

// A call that is refused has no effect on the one that runs: neither here nor
// at the peer that fetches from it.
func TestRefusedCallsChangeNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cs := world(t, ctx, localMaster(t), 2, nil)
	states := []*core.SharedState{tensorsOf(5, tornTensors, tornFloats, 1), tensorsOf(0, tornTensors, tornFloats, 0)}
	calls := map[string]func(i int) error{
		"sync": func(i int) error {
			_, err := cs[i].SyncSharedState(ctx, states[i], core.SyncOptions{})
			return err
		},
		"sync of another state": func(i int) error {
			_, err := cs[i].SyncSharedState(ctx, tensorsOf(1, 1, 1, 3), core.SyncOptions{})
			return err
		},
		"update":   func(i int) error { return cs[i].UpdateTopology(ctx) },
		"optimize": func(i int) error { return cs[i].OptimizeTopology(ctx) },
		"reduce": func(i int) error {
			v := []float32{1}
			_, err := core.AllReduceSlice(ctx, cs[i], v, v, core.Sum)
			return err
		},
	}
	running, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	done := make(chan []error, 1)
	go func() {
		done <- each(cs, func(i int, c *core.Communicator) error {
			_, err := c.SyncSharedState(ctx, states[i], core.SyncOptions{Progress: func(uint64, uint64, string) {
				once.Do(func() { close(running); <-release })
			}})
			return err
		})
	}()
	<-running
	for name, call := range calls {
		for i := range cs {
			err := call(i)
			require.Error(t, err, name)
			require.True(t, errors.Is(err, errs.Busy) || errors.Is(err, errs.PendingAsyncOps) || errors.Is(err, errs.InvalidUsage), "%s: %v", name, err)
		}
	}
	close(release)
	for i, err := range <-done {
		require.NoError(t, err, "peer %d", i)
	}
	require.Equal(t, core.StateHash(states[0]), core.StateHash(states[1]))
}

// Every call is made while every other one runs, which waits for the other peer:
// it is refused at once and the one that runs ends as if nothing had been.
func TestEveryCallWhileEveryOtherRuns(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() { m.Close(); <-ended })
	cs := world(t, ctx, m.Addr().String(), 2, func(_ int, o *core.Options) {
		o.Probe.Duration = 10 * time.Millisecond
	})
	states := []*core.SharedState{tensorsOf(0, 2, 100, 1), tensorsOf(0, 2, 100, 0)}
	calls := map[string]func(i int) error{
		"sync": func(i int) error {
			_, err := cs[i].SyncSharedState(ctx, states[i], core.SyncOptions{})
			return err
		},
		"update":   func(i int) error { return cs[i].UpdateTopology(ctx) },
		"optimize": func(i int) error { return cs[i].OptimizeTopology(ctx) },
		"reduce": func(i int) error {
			v := []float32{float32(i), 2}
			_, err := core.AllReduceSlice(ctx, cs[i], v, v, core.Sum)
			if err == nil && (v[0] != 1 || v[1] != 4) {
				err = fmt.Errorf("wrong sums %v", v)
			}
			return err
		},
	}
	for name, run := range calls {
		done := make(chan error, 1)
		go func() { done <- run(0) }()
		for waits := false; !waits; runtime.Gosched() { // until its vote is in
			require.NoError(t, ctx.Err(), name)
			for _, c := range m.Status().Clients {
				waits = waits || c.State != "IDLE"
			}
		}
		for other, call := range calls {
			err := call(0)
			require.Error(t, err, "%s while %s runs", other, name)
			code := errs.CodeOf(err)
			require.Contains(t, []errs.Code{errs.Busy, errs.PendingAsyncOps, errs.InvalidArgument, errs.InvalidUsage}, code, "%s while %s runs: %v", other, name, err)
		}
		require.NoError(t, run(1), name)
		require.NoError(t, <-done, name)
		states[0].Revision++
		states[1].Revision++
	}
}

// All peers of a run leave. A peer that comes back without the checkpoint is
// told what is missing; one that has the state goes on with it.
func TestARunIsNotBegunAnewByAccident(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addr := localMaster(t)
	cs := world(t, ctx, addr, 2, smallBuffers)
	states := []*core.SharedState{tensorsOf(0, 2, 100, 1), tensorsOf(0, 2, 100, 1)}
	for range 3 {
		for _, err := range each(cs, func(i int, c *core.Communicator) error {
			_, err := c.SyncSharedState(ctx, states[i], core.SyncOptions{})
			states[i].Revision++
			return err
		}) {
			require.NoError(t, err)
		}
	}
	for _, c := range cs {
		require.NoError(t, c.Close())
	}
	back, err := connect(ctx, core.Options{Master: addr, PortBase: -1})
	require.NoError(t, err)
	defer back.Close()
	for _, wrong := range []*core.SharedState{tensorsOf(0, 2, 100, 0), tensorsOf(1, 2, 100, 1), tensorsOf(2, 2, 100, 0)} {
		_, err = back.SyncSharedState(ctx, wrong, core.SyncOptions{})
		require.ErrorIs(t, err, errs.NoSharedStateAvailable)
		require.ErrorContains(t, err, "reached revision 2 when its last peer left")
		require.ErrorContains(t, err, "master.lost_state to anew")
	}
	_, err = back.SyncSharedState(ctx, tensorsOf(2, 2, 100, 1), core.SyncOptions{})
	require.NoError(t, err) // S2-55
}

// counting is a device whose tensors cannot but be hashed.
type counting struct {
	device.Platform
	hashed func()
}

// It stays registered: the sessions of other tests configure and ask it, too.
func (c *counting) Configure(device.Settings) error { return nil }

func (c *counting) Identify(uint64) (int, bool) { return 0, false }

func (c *counting) HashAll(_ context.Context, bufs []device.Buffer) ([]uint32, int, error) {
	c.hashed()
	return make([]uint32, len(bufs)), 0, nil
}

// A context that ends while tensors are hashed ends the call at once; nobody was
// told anything yet, so the run goes on.
func TestHashingEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cs := world(t, ctx, localMaster(t), 1, nil)
	short, stop := context.WithCancel(ctx)
	n := 0
	device.Register("counting", &counting{hashed: func() { n++; stop() }})
	st := &core.SharedState{}
	for _, key := range []string{"a", "b"} {
		st.Tensors = append(st.Tensors, core.Tensor{
			Key: key, DType: core.TypeOf[float32](), Device: core.DeviceBuffer{Platform: "counting", Ptr: 16, Bytes: 4},
		})
	}
	_, err := cs[0].SyncSharedState(short, st, core.SyncOptions{})
	require.ErrorIs(t, err, errs.Canceled)
	require.Equal(t, 1, n, "the second one was not hashed any more")
	_, err = cs[0].SyncSharedState(ctx, tensorsOf(0, 1, 10, 1), core.SyncOptions{})
	require.NoError(t, err, "the run was not left")
}
