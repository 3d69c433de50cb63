package e2e

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/minmax"
)

// mine is a backend with a fault: it cannot reduce int8.
type mine struct{ backend.Backend }

func (m mine) Name() string { return "mine" }

func (m mine) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	if t == dtype.Int8 {
		panic("stepped on")
	}
	m.Backend.Reduce(t, op, dst, a, b)
}

type mineDriver struct{ cpugeneric.Driver }

func (d mineDriver) Rank() int { return -1 }

func (d mineDriver) New() (backend.Backend, error) {
	b, err := d.Driver.New()
	return mine{b}, err
}

func init() { backend.Register("mine", mineDriver{}) }

// A panic in a kernel fails the operation with an internal error and a line in
// the log, and puts the buffer back; the others repeat without harm, and so
// does the one with the fault.
func TestPanicInAKernel(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var log lockedBuffer
	cs := world(t, ctx, localMaster(t), 3, func(id int, o *core.Options) {
		if id == 0 {
			o.Backend = "mine"
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}
	})
	ints := make([][]byte, len(cs))
	failed := each(cs, func(i int, c *core.Communicator) error {
		ints[i] = bytes.Repeat([]byte{byte(i)}, 3000)
		_, err := c.AllReduce(ctx, core.Reduce{Tag: 1, Src: ints[i], Dst: ints[i], DType: dtype.Int8, Op: core.Sum})
		return err
	})
	require.ErrorIs(t, failed[0], errs.Internal)
	require.ErrorContains(t, failed[0], "stepped on")
	for i, err := range failed {
		require.Error(t, err, i)
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, 3000), ints[i], i)
	}
	written(t, "panic in the data path", &log)
	written(t, "panic_test.go", &log) // the stack
	for i, err := range each(cs, func(i int, c *core.Communicator) error {
		v := []float32{1, 2, 3}
		_, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(v, v, core.Sum)}, 1)
		return err
	}) {
		require.NoError(t, err, i)
	}
}

// A panic in another goroutine of the engine ends that communicator alone:
// every call on it is an internal error, the others go on.
func TestPanicInASession(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var log lockedBuffer
	cs := world(t, ctx, localMaster(t), 3, func(id int, o *core.Options) {
		if id == 2 {
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}
	})
	failed := each(cs, func(i int, c *core.Communicator) error {
		v := make([]float32, 1000)
		st := &core.SharedState{Revision: 1, Tensors: []core.Tensor{core.TensorOf("v", v)}}
		opt := core.SyncOptions{}
		if i == 2 {
			v[0], st.Revision = 1, 0
			opt.Progress = func(uint64, uint64, string) { panic("on the way") }
		}
		_, err := c.SyncSharedState(ctx, st, opt)
		return err
	})
	require.ErrorIs(t, failed[2], errs.Internal)
	require.ErrorContains(t, failed[2], "on the way")
	written(t, "panic in the session", &log)
	v := make([]float32, 3)
	_, err := cs[2].AllReduce(ctx, core.ReduceOf(v, v, core.Sum))
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorIs(t, cs[2].UpdateTopology(ctx), errs.Internal)
	require.NoError(t, cs[2].Close())
	for i, err := range each(cs[:2], func(i int, c *core.Communicator) error {
		v := []float32{1, 2, 3}
		for c.Attributes().LocalWorldSize > 2 {
			if err := c.UpdateTopology(ctx); err != nil {
				return err
			}
		}
		_, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(v, v, core.Sum)}, 1)
		return err
	}) {
		require.NoError(t, err, i)
	}
}

// A panic in the master ends its Run with an internal error.
func TestPanicInTheMaster(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0", OnFact: func(core.Fact) { panic("out of order") }})
	require.NoError(t, err)
	defer m.Close()
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	// The facts have a goroutine of their own: the peer may be in before it panics.
	o := core.Options{Master: m.Addr().String(), PortBase: -1}
	endsWithMaster(0, &o)
	c, err := connect(ctx, o)
	if err == nil {
		defer c.Close()
		for err == nil {
			err = c.UpdateTopology(ctx)
		}
	}
	require.Error(t, err)
	err = <-ended
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorContains(t, err, "out of order")
}

// picky is a quantizer whose check panics once, after as many calls as it is told.
type picky struct{ quant.Quantizer }

var checksLeft atomic.Int64

func (picky) Name() string { return "picky" }

func (p picky) Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	if checksLeft.Add(-1) == 0 {
		panic("not this one")
	}
	return p.Quantizer.Check(t, q, op, minChunk, native)
}

func init() { quant.Register(picky{minmax.New()}) }

// A quantizer that panics when the data phase begins fails the operation for
// all; the communicators go on.
func TestPanicAtTheStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cs := world(t, ctx, localMaster(t), 2, func(_ int, o *core.Options) { o.EagerBytes = -1 })
	bufs := [][]float32{{1, 2, 3, 4}, {5, 6, 7, 8}}
	reduce := func(panics bool) []error {
		var hs []*core.Handle
		for i, c := range cs {
			if i == 1 && panics {
				checksLeft.Store(3) // two by this launch; the next is one of the starts
			}
			r := core.ReduceOf(bufs[i], bufs[i], core.Sum)
			r.Quantize = core.Quantize{Algorithm: "picky", Type: dtype.Uint8}
			h, err := c.AllReduceAsync(ctx, r)
			require.NoError(t, err)
			hs = append(hs, h)
		}
		return each(cs, func(i int, _ *core.Communicator) error {
			_, err := hs[i].Wait(ctx)
			return err
		})
	}
	failed := reduce(true)
	broken := 0
	for i, err := range failed {
		require.Error(t, err, i)
		if errors.Is(err, errs.Internal) {
			require.ErrorContains(t, err, "not this one")
			broken++
		}
	}
	require.Equal(t, 1, broken)
	require.Equal(t, [][]float32{{1, 2, 3, 4}, {5, 6, 7, 8}}, bufs)
	for i, err := range reduce(false) {
		require.NoError(t, err, i)
	}
	require.Equal(t, bufs[0], bufs[1])
	for _, c := range cs {
		require.NoError(t, c.Close())
	}
}
