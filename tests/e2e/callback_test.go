package e2e

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// gate is where callbacks of a test wait.
type gate struct {
	open  chan struct{}
	met   atomic.Bool
	close sync.Once
}

func (g *gate) wait() {
	g.met.Store(true)
	<-g.open
}

// stopped is a log handler like one that writes to a pipe which nobody reads.
type stopped struct {
	slog.Handler
	g      *gate
	levels bool // it waits when it is asked what it would take
}

func (h stopped) Enabled(context.Context, slog.Level) bool {
	if h.levels {
		h.g.wait()
	}
	return true
}

func (h stopped) Handle(context.Context, slog.Record) error {
	h.g.wait()
	return nil
}
func (h stopped) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h stopped) WithGroup(string) slog.Handler      { return h }

// Whatever a program is called back for, and however long it takes there, every
// call returns, those that are cancelled too, heartbeats go on, nobody is
// dropped, and what is closed is closed: no callback is made where something
// waits for it.
func TestCallbacksHoldUpNobody(t *testing.T) {
	t.Parallel()
	listener := func(set func(*core.Listener, *gate)) func(*core.Options, *core.MasterOptions, *gate) {
		return func(o *core.Options, _ *core.MasterOptions, g *gate) {
			o.Trace = &core.Listener{}
			set(o.Trace, g)
		}
	}
	for name, hold := range map[string]func(*core.Options, *core.MasterOptions, *gate){
		"log of a peer": func(o *core.Options, _ *core.MasterOptions, g *gate) { o.Logger = slog.New(stopped{g: g}) },
		"levels of a peer's log": func(o *core.Options, _ *core.MasterOptions, g *gate) {
			o.Logger = slog.New(stopped{g: g, levels: true})
		},
		"log of the master": func(_ *core.Options, m *core.MasterOptions, g *gate) { m.Logger = slog.New(stopped{g: g}) },
		"levels of a master's log": func(_ *core.Options, m *core.MasterOptions, g *gate) {
			m.Logger = slog.New(stopped{g: g, levels: true})
		},
		"facts of the master": func(_ *core.Options, m *core.MasterOptions, g *gate) { m.OnFact = func(core.Fact) { g.wait() } },
		"start":               listener(func(l *core.Listener, g *gate) { l.OpStarted = func(uint64, uint64) { g.wait() } }),
		"end":                 listener(func(l *core.Listener, g *gate) { l.OpEnded = func(uint64, uint64, error) { g.wait() } }),
		"connection lost":     listener(func(l *core.Listener, g *gate) { l.ConnLost = func(string, uint32, bool, error) { g.wait() } }),
		"active":              listener(func(l *core.Listener, g *gate) { l.BecameActive = g.wait }),
		"idle":                listener(func(l *core.Listener, g *gate) { l.BecameIdle = g.wait }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			const silence = 2 * time.Second
			g := &gate{open: make(chan struct{})}
			t.Cleanup(func() { g.close.Do(func() { close(g.open) }) })
			mo := core.MasterOptions{Listen: "127.0.0.1:0", HeartbeatInterval: silence / 5, HeartbeatTimeout: silence}
			var held core.Options
			hold(&held, &mo, g)
			m, err := newMaster(mo)
			require.NoError(t, err)
			go m.Run(context.Background())
			cs := world(t, ctx, m.Addr().String(), 3, func(id int, o *core.Options) {
				o.HeartbeatInterval, o.HeartbeatTimeout = silence/5, silence
				if id == 0 {
					o.Logger, o.Trace = held.Logger, held.Trace
				}
			})
			sums(t, ctx, cs)
			require.NoError(t, cs[2].Close())
			began := time.Now()
			for time.Since(began) < 2*silence {
				time.Sleep(5 * time.Millisecond) // what a trainer computes
				for i, err := range each(cs[:2], func(_ int, c *core.Communicator) error {
					v := make([]float32, 100)
					_, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(v, v, core.Sum)}, 1)
					return err
				}) {
					require.NoError(t, err, i)
				}
			}
			require.Equal(t, 2, cs[0].Attributes().LocalWorldSize)
			short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
			defer stop()
			_, err = cs[0].PeersPending(short) // the other one does not ask
			require.ErrorIs(t, err, errs.Canceled)
			require.True(t, g.met.Load(), "the callback was made")
			for _, c := range cs[:2] {
				require.NoError(t, c.Close())
			}
			require.NoError(t, m.Close())
		})
	}
}

// Close inside a callback cannot wait for everything, since that callback is a
// part of it; it returns all the same, and what it could not wait for ends with
// the callback.
func TestCloseInsideACallback(t *testing.T) {
	t.Parallel()
	listener := func(l core.Listener) func(*core.Options) { return func(o *core.Options) { o.Trace = &l } }
	for name, hold := range map[string]func(closes func()) func(*core.Options){
		"log": func(closes func()) func(*core.Options) {
			return func(o *core.Options) { o.Logger = slog.New(calling{closes}) }
		},
		"start": func(closes func()) func(*core.Options) {
			return listener(core.Listener{OpStarted: func(uint64, uint64) { closes() }})
		},
		"end": func(closes func()) func(*core.Options) {
			return listener(core.Listener{OpEnded: func(uint64, uint64, error) { closes() }})
		},
		"idle":     func(closes func()) func(*core.Options) { return listener(core.Listener{BecameIdle: closes}) },
		"progress": nil,
		"notify":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			var comm atomic.Pointer[core.Communicator]
			var once sync.Once
			closed := make(chan struct{})
			closes := func() {
				if c := comm.Load(); c != nil {
					once.Do(func() {
						c.Close()
						close(closed)
					})
				}
			}
			cs := world(t, ctx, localMaster(t), 2, func(id int, o *core.Options) {
				o.HandshakeTimeout = 3 * time.Second // Close waits twice as long
				if id == 0 && hold != nil {
					hold(closes)(o)
				}
			})
			comm.Store(cs[0])
			go each(cs, func(i int, c *core.Communicator) error {
				v := []float32{float32(i), 2, 3}
				switch {
				case name == "progress":
					opt := core.SyncOptions{}
					if i == 0 {
						opt.Progress = func(uint64, uint64, string) { closes() }
					}
					_, err := c.SyncSharedState(ctx, &core.SharedState{Revision: uint64(i), Tensors: []core.Tensor{core.TensorOf("v", v)}}, opt)
					return err
				case name == "notify" && i == 0:
					h, err := c.AllReduceAsync(ctx, core.ReduceOf(v, v, core.Sum))
					if err == nil {
						h.Notify(closes)
					}
					return err
				}
				_, err := c.AllReduce(ctx, core.ReduceOf(v, v, core.Sum))
				if name == "log" && i == 1 {
					c.Close() // the other one has something to say about that
				}
				return err
			})
			select {
			case <-closed:
			case <-ctx.Done():
				t.Fatal("Close inside the callback did not return")
			}
			require.NoError(t, cs[0].Close(), "everything has ended when the callback has returned")
		})
	}
}

// calling is a log handler that calls somebody.
type calling struct{ f func() }

func (c calling) Enabled(context.Context, slog.Level) bool  { return true }
func (c calling) Handle(context.Context, slog.Record) error { c.f(); return nil }
func (c calling) WithAttrs([]slog.Attr) slog.Handler        { return c }
func (c calling) WithGroup(string) slog.Handler             { return c }
