package link

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// A ping finds out at once, and not when the system happens to tell, which
// connections the peer has closed, and finds those that end silently.
func TestProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p := newPair(t, Config{}, 3, transporttest.Options{}, Features{Native: true, Flows: true})
	for range 3 {
		require.Equal(t, 3, p.a.h.PingSenders(ctx, uuid(1)))
	}
	require.Zero(t, p.b.h.cfg.Stats.Snapshot().StaleFrames+p.a.h.cfg.Stats.Snapshot().Openers)

	p.b.h.Receivers(uuid(0))[1].Close(errTest)
	require.Equal(t, 2, p.a.h.PingSenders(ctx, uuid(1)))
	require.Zero(t, p.a.h.PingSenders(ctx, uuid(7)))

	p.out[2].Stall(true)
	soon, stop := context.WithTimeout(ctx, time.Second) // the others answer meanwhile, also on a busy machine
	defer stop()
	require.Equal(t, 1, p.a.h.PingSenders(soon, uuid(1)))

	// A question that is given up, since a round begins, says nothing of those that are asked.
	given, giveUp := context.WithCancel(ctx)
	p.out[0].Stall(true)
	time.AfterFunc(10*time.Millisecond, giveUp)
	require.Equal(t, 1, p.a.h.PingSenders(given, uuid(1)))
	p.out[0].Stall(false)
	require.Equal(t, 1, p.a.h.PingSenders(ctx, uuid(1)))

	// A peer that announced nothing is not asked.
	old := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true})
	old.out[0].Stall(true)
	require.Equal(t, 1, old.a.h.PingSenders(soon, uuid(1)))
}

// Whatever a neighbour writes back is no answer, and harmless.
func TestProbeFalseAnswers(t *testing.T) {
	a, b := transporttest.Pair(transporttest.Options{})
	h := newRoom(t, Config{}).h
	h.AddSender(uuid(1), 0, a, Features{Native: true, Flows: true})
	_, err := b.Write(make([]byte, 8*100+3))
	require.NoError(t, err)
	soon, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	require.Zero(t, h.PingSenders(soon, uuid(1)))
	var ids []wire.UUID
	h.Retain(func(u wire.UUID) bool { ids = append(ids, u); return true }, nil)
	require.Equal(t, []wire.UUID{uuid(1)}, ids)
}

// A connection that takes a stream's bytes is alive, though its answer is behind
// them; one that takes nothing but the question is not.
func TestProbeBehindAStream(t *testing.T) {
	a, b := transporttest.Pair(transporttest.Options{Rate: 4 << 20, Buffer: 64 << 10})
	h := newRoom(t, Config{}).h
	h.AddSender(uuid(1), 0, a, Features{Native: true, Flows: true})
	go io.Copy(io.Discard, b) // it never answers
	require.False(t, h.Sends(uuid(1)))
	x := newRoll(1, 1)
	for range 64 {
		x.frames = append(x.frames, make([]byte, 1<<20))
	}
	s := h.Senders(uuid(1))[0]
	s.Attach(x)
	s.Kick(true, true)
	require.True(t, h.Sends(uuid(1)))
	for range 3 {
		soon, stop := context.WithTimeout(context.Background(), time.Second)
		require.Equal(t, 1, h.PingSenders(soon, uuid(1)))
		stop()
	}
	x.stop.Store(true)
	s.Detach(x)
	require.False(t, h.Sends(uuid(1)))
}
