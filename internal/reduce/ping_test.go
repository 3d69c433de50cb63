package reduce

import (
	"context"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// A ping finds out at once, and not when the system happens to tell, which
// connections the other end has closed, and finds those that end silently.
func TestProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRing(t, shape{n: 2, pool: 3, native: true, knows: true, flows: true})
	r.run(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 200, true)
	for range 3 {
		require.Equal(t, 3, r.eng[0].PingSenders(ctx, uuid(1)))
	}
	r.run(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 200, true)
	require.Zero(t, r.eng[0].Stats().StaleFrames+r.eng[0].Stats().Openers)

	r.eng[1].mu.Lock()
	victim := r.eng[1].rx[uuid(0)][1]
	r.eng[1].mu.Unlock()
	victim.close(errTest)
	require.Equal(t, 2, r.eng[0].PingSenders(ctx, uuid(1)))
	require.Zero(t, r.eng[0].PingSenders(ctx, uuid(7)))

	r.out[0][2].(*transporttest.Conn).Stall(true)
	soon, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	require.Equal(t, 1, r.eng[0].PingSenders(soon, uuid(1)))

	// An end that announced nothing is not asked.
	old := newRing(t, shape{n: 2, native: true, knows: true})
	old.out[0][0].(*transporttest.Conn).Stall(true)
	require.Equal(t, 1, old.eng[0].PingSenders(soon, uuid(1)))
}

// A frame that waits for an operation which never starts here does not keep a
// round from finding out that its connection lives.
func TestProbeBehindAStaleFrame(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRing(t, shape{n: 2, native: true, knows: true, flows: true})
	op, err := r.eng[0].NewOp(Spec{Tag: 1, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)})
	require.NoError(t, err)
	ended := make(chan error, 1)
	op.Start(Start{Seq: 9, Ring: r.ids, Self: r.ids[0], Native: true, Done: func(err error) { ended <- err }})
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, ended), errTest)
	r.eng[1].Between(true)
	require.Equal(t, 1, r.eng[0].PingSenders(ctx, uuid(1)))
	r.eng[1].Between(false)
	r.eng[0].Between(true)
	r.eng[0].Between(false)
	r.seq = 10
	r.run(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 200, true)
}

// A reader whose frame waits for an operation learns that it will not start here,
// or that a round has come and gone before the reader could look.
func TestWaitingFrameIsDropped(t *testing.T) {
	for name, tell := range map[string]func(e *Engine, seq uint64){
		"skipped": (*Engine).Skip,
		"round":   func(e *Engine, _ uint64) { e.Between(true); e.Between(false) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			r := newRing(t, shape{n: 2, native: true, knows: true, flows: true, cfg: Config{FutureWait: time.Hour}})
			for seq := uint64(9); seq < 40; seq++ {
				op, err := r.eng[0].NewOp(Spec{Tag: 1, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)})
				require.NoError(t, err)
				ended := make(chan error, 1)
				op.Start(Start{Seq: seq, Ring: r.ids, Self: r.ids[0], Native: true, Done: func(err error) { ended <- err }})
				require.Eventually(t, func() bool { return r.eng[1].State().Early == 1 }, patience, 20*time.Microsecond)
				tell(r.eng[1], seq)
				require.Equal(t, 1, r.eng[0].PingSenders(ctx, uuid(1)))
				require.NoError(t, ctx.Err())
				require.Zero(t, r.eng[1].State().Early)
				op.Abort(errTest)
				require.ErrorIs(t, verdict(t, ended), errTest)
			}
		})
	}
}

// Whatever a neighbour writes back is no answer, and harmless.
func TestProbeFalseAnswers(t *testing.T) {
	a, b := transporttest.Pair(transporttest.Options{})
	e := NewEngine(Config{Backend: generic(t)})
	defer e.Close()
	e.AddSender(uuid(1), 0, a, Link{Native: true, Flows: true})
	_, err := b.Write(make([]byte, 8*100+3))
	require.NoError(t, err)
	soon, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	require.Zero(t, e.PingSenders(soon, uuid(1)))
	var ids []wire.UUID
	e.Retain(func(u wire.UUID) bool { ids = append(ids, u); return true }, nil)
	require.Equal(t, []wire.UUID{uuid(1)}, ids)
}

// A connection that takes an operation's bytes is alive, though its answer is
// behind them; one that takes nothing but the question is not.
func TestProbeBehindAnOperation(t *testing.T) {
	a, b := transporttest.Pair(transporttest.Options{Rate: 4 << 20, Buffer: 64 << 10})
	e := NewEngine(Config{Backend: generic(t)})
	defer e.Close()
	e.AddSender(uuid(1), 0, a, Link{Native: true, Flows: true})
	go io.Copy(io.Discard, b) // it never answers
	src := make([]byte, 64<<20)
	op, err := e.NewOp(Spec{Tag: 1, Count: len(src), DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: make([]byte, len(src))})
	require.NoError(t, err)
	require.False(t, e.Sends(uuid(1)))
	ended := make(chan error, 1)
	ids := []wire.UUID{uuid(0), uuid(1)}
	op.Start(Start{Seq: 1, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { ended <- err }})
	require.True(t, e.Sends(uuid(1)))
	for range 3 {
		soon, stop := context.WithTimeout(context.Background(), time.Second)
		require.Equal(t, 1, e.PingSenders(soon, uuid(1)))
		stop()
	}
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, ended), errTest)
	require.False(t, e.Sends(uuid(1)))
}
