package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

func never() bool { return false }

// The last frame of a stream was left to a faster connection, or woke that alone, which
// then goes: the others look for work again, or nobody would.
func TestOthersTakeWhatWasLeftToOneThatGoes(t *testing.T) {
	p := newPair(t, Config{}, 3, transporttest.Options{}, Features{Native: true, Flows: true})
	pool := p.a.h.Senders(uuid(1))
	var flows Flows
	flows.Use(pool)
	x := newRoll(1, 1)
	left := []byte{7}
	x.next = func(f *Frame) bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(flows.Conns()) == 3 || left == nil {
			f.Left = left != nil
			return false
		}
		f.Payload, left = left, nil
		x.refs++
		transport.Header{Payload: len(f.Payload), Tag: 1, Stream: 1}.Put((*[transport.HeaderSize]byte)(f.Head))
		return true
	}
	tape := newTape()
	p.b.open(uuid(0), 1, 1, tape)
	for _, s := range pool {
		s.Attach(x)
	}
	pool[0].Kick(true, true)
	pool[1].Kick(true, true)
	require.EqualValues(t, 2, x.roused.Load(), "both leave it to the third one")
	flows.Regroup(x, pool[:2:2], never)
	require.Equal(t, []byte{7}, tape.next(t))
}

// A connection that has ended before it joins fails the stream, which nobody else tells:
// nothing was ever sent over it, but others leave it the last pieces.
func TestDeadNewcomer(t *testing.T) {
	p := newPair(t, Config{}, 3, transporttest.Options{}, Features{Native: true, Flows: true})
	pool := p.a.h.Senders(uuid(1))
	var flows Flows
	flows.Use(pool[:2:2])
	x := newRoll(1, 1)
	p.out[2].Cut()
	p.a.hears(t)
	flows.Regroup(x, pool, never)
	select {
	case err := <-x.failed:
		require.Error(t, err)
	case <-time.After(patience):
		t.Fatal("nobody was told")
	}
}

// What a connection leaves behind that ends without a word: nothing, if there are others.
func TestSpared(t *testing.T) {
	p := newPair(t, Config{}, 3, transporttest.Options{}, Features{Native: true, Flows: true})
	pool := p.b.h.Receivers(uuid(0))
	p.out[1].Cut()
	p.b.hears(t)
	require.Nil(t, p.b.h.Spared(pool[1]), "it broke")
	p.out[2].Close()
	p.b.hears(t)
	require.Nil(t, p.b.h.Spared(pool[2]), "another one broke")

	p = newPair(t, Config{}, 2, transporttest.Options{}, Features{Native: true, Flows: true})
	pool = p.b.h.Receivers(uuid(0))
	p.out[1].Close()
	p.b.hears(t)
	require.Equal(t, pool[:1], p.b.h.Spared(pool[1]))
	p.out[0].Close()
	p.b.hears(t)
	require.Nil(t, p.b.h.Spared(pool[0]), "nobody else is there")

	_, y := transporttest.Pair(transporttest.Options{})
	p = newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	old := p.b.h.Receivers(uuid(0))[0]
	p.b.h.AddReceiver(uuid(0), 0, y)
	p.b.hears(t)
	require.Nil(t, p.b.h.Spared(old), "another one has its place")
}
