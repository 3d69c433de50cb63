package link

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// farPool returns connections that seem to lead far, with these windows.
func farPool(t *testing.T, windows ...int64) (*pair, []*Sender) {
	p := newPair(t, Config{}, len(windows), transporttest.Options{}, Features{Native: true, Flows: true})
	p.a.h.survey.made = time.Now().Add(-time.Minute)
	pool := p.a.h.Senders(uuid(1))
	for i, s := range pool {
		f := &flow{}
		f.window.Store(windows[i])
		f.own.Store(windows[i])
		f.last.Store(int64(clock(p.a.h)))
		s.gauge.flow = f
	}
	p.a.h.survey.on.Store(true) // there is nothing that it could ask
	return p, pool
}

// A window counts as long as data or pulses keep it. Otherwise, and before anything is known,
// it is that of a new connection.
func TestWindow(t *testing.T) {
	p, pool := farPool(t, 50_000, 0)
	require.Equal(t, 50_000, pool[0].Window())
	require.Equal(t, firstWindow, pool[1].Window())
	f := pool[0].gauge.flow
	f.last.Store(0)
	require.Equal(t, firstWindow, pool[0].Window())
	pool[0].gauge.flow.keeps = true
	require.Equal(t, 50_000, pool[0].Window(), "it stands at rest")
	pool[0].gauge.flow.keeps = false
	f.pulsed.Store(int64(clock(p.a.h)))
	require.Equal(t, 50_000, pool[0].Window())
	f.pulsed.Store(0)
	f.every.Store(int64(time.Hour))
	require.Equal(t, 50_000, pool[0].Window(), "a pulse is still to come")
	f.every.Store(0)
	f.own.Store(5_000)
	require.Equal(t, 5_000, pool[0].Window(), "it does not grow at rest")
	f.near.Store(true)
	require.Equal(t, math.MaxInt32, pool[0].Window())
}

// Data goes over as many connections as their windows need, each short of a piece that may
// not fit; a stream over one connection takes one with a window for all of it, in turn.
func TestNeededConnections(t *testing.T) {
	_, pool := farPool(t, 20_000, 5_000, 40_000, 30_000)
	room := func(windows int) int { return windows * 8 / 9 } // of packets, one of which in nine is not full
	require.Equal(t, 1, Needed(pool, room(20_000-LeastFar)))
	require.Equal(t, 2, Needed(pool, room(20_000-LeastFar)+8))
	require.Equal(t, 3, Needed(pool, room(25_000-2*LeastFar)+8))
	require.Equal(t, 4, Needed(pool, 1<<20), "there are no more")
	require.Equal(t, 2, Needed(pool[1:2], LeastFar)+Needed(pool[1:], 2*LeastFar-1), "each has enough")
	require.Zero(t, Needed(pool, LeastFar-1))
	for turn, at := range []int{2, 3, 2} {
		require.Equal(t, at, Turn(pool, uint64(turn), 25_000))
	}
	for turn, at := range []int{0, 1, 2, 3, 0} {
		require.Equal(t, at, Turn(pool, uint64(turn), 50_000), "no window is so large")
	}
}

// A connection takes what its window has room for, and leaves the rest to others that have
// room, however fast it is; when nobody has any, the fast ones take it.
func TestWindowsAreUsedUp(t *testing.T) {
	_, pool := farPool(t, 12_000, 12_000, 500)
	pool[0].gauge.rate.Store(math.Float64bits(1000)) // slow, as far as is known
	pool[0].gauge.flow.unsent.Store(backlog)
	var f Flows
	f.Use(pool)
	for range 6 { // a quarter is kept for words, and a packet that is not full is one
		require.False(t, f.Yields(pool[0], 1<<20, 1000), "it leaves at once")
		f.Took(pool[0], 1000)
	}
	require.True(t, f.Yields(pool[0], 1<<20, 1000))
	require.True(t, f.Yields(pool[2], 1<<20, 1000))
	require.False(t, f.Yields(pool[1], 1<<20, 1000))
	f.Took(pool[1], 10_000)
	for _, left := range []int64{4000, 1 << 20} { // with the next flights, and with more
		require.False(t, f.Yields(pool[1], left, 1000), "it is fast")
		require.True(t, f.Yields(pool[0], left, 1000), "it is slow")
	}
	f.Took(pool[1], 30_000)
	require.False(t, f.Yields(pool[1], 4000, 1000), "it is fast")
	require.True(t, f.Yields(pool[0], 4000, 1000), "it is slow")

	// One whose write waits is not waited for.
	f = Flows{}
	f.Use(pool)
	f.Took(pool[1], 10_000)
	require.True(t, f.Yields(pool[1], 1<<20, 1000))
	pool[0].gauge.flow.writes.Store(1)
	pool[0].gauge.flow.began.Store(-int64(time.Second))
	require.False(t, f.Yields(pool[1], 1<<20, 1000))
}

// A slow connection on which nothing waits takes a piece that it is done with before the others
// are with the rest. One that has not sent yet what it took before does not.
func TestSlowConnectionsAtRestTakePieces(t *testing.T) {
	_, pool := farPool(t, 500, 500, 500)
	for i, rate := range []float64{145e3, 145e3, 545e3} {
		pool[i].gauge.rate.Store(math.Float64bits(rate))
	}
	var f Flows
	f.Use(pool)
	require.False(t, f.Yields(pool[0], 200e3, 16e3), "0.11 s of 0.24")
	require.True(t, f.Yields(pool[0], 80e3, 16e3), "0.11 s of 0.10")
	pool[0].gauge.flow.wrote(pool[0].h, 32e3, time.Now())
	require.True(t, f.Yields(pool[0], 200e3, 16e3), "0.33 s of 0.24")
	require.False(t, f.Yields(pool[1], 200e3, 16e3))
}

// A slow connection with a little room in its window leaves a piece to the others, and does
// not wake itself for it: the piece is sent.
func TestWhoIsWokenTakesThePiece(t *testing.T) {
	p, pool := farPool(t, 500, 10_000)
	pool[0].gauge.rate.Store(math.Float64bits(1000))
	var f Flows
	f.Use(pool)
	f.Took(pool[1], 40_000)
	x := newRoll(1, 1)
	left := []byte{7}
	x.next = func(frame *Frame) bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		if left == nil {
			return false
		}
		if f.Yields(frame.Conn(), 1000, 1000) {
			frame.Left = true
			return false
		}
		frame.Payload, left = left, nil
		x.refs++
		transport.Header{Payload: len(frame.Payload), Tag: 1, Stream: 1}.Put((*[transport.HeaderSize]byte)(frame.Head))
		return true
	}
	x.flows = &f
	tape := newTape()
	p.b.open(uuid(0), 1, 1, tape)
	for _, s := range pool {
		s.Attach(x)
	}
	pool[0].Kick(true, true)
	require.Equal(t, []byte{7}, tape.next(t))
}

// Of a stream that is longer than the next flights all connections take pieces, also those that
// have left one to others when only these had room: who sends more than its window has room for
// wakes them.
func TestAllTakePiecesOfALongStream(t *testing.T) {
	p, pool := farPool(t, 500, 500, 40_000)
	pool[1].gauge.rate.Store(math.Float64bits(1e6)) // slow, but worth pieces of what is left
	x := newRoll(1, 1, nil)                         // it never ends by itself
	var f Flows
	f.Use(pool)
	x.flows = &f
	took := map[*Sender]int{}
	x.next = func(frame *Frame) bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(took) == len(pool) || took[pool[2]] == 1<<15 {
			return false
		}
		if f.Yields(frame.Conn(), 1<<30, 1000) {
			frame.Left = true
			return false
		}
		took[frame.Conn()]++
		frame.Payload = []byte{7}
		x.refs++
		transport.Header{Payload: 1, Tag: 1, Stream: 1}.Put((*[transport.HeaderSize]byte)(frame.Head))
		frame.More = f.Took(frame.Conn(), 1000)
		return true
	}
	p.b.open(uuid(0), 1, 1, newTape())
	for _, s := range pool {
		s.Attach(x)
	}
	pool[0].Kick(true, true)
	require.Eventually(t, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(took) == len(pool)
	}, patience, time.Millisecond)
}

// Where a window has room its connection looks for work at once. Pieces for which none has room
// are not all for one connection: of a stream that ends with the next flights each takes the part
// that its window is of all, of a longer one idle ones take some in turn.
func TestKick(t *testing.T) {
	_, pool := farPool(t, 20_000, 10_000, 10_000)
	asked := make(chan *Sender, 100)
	x := newRoll(1, 1)
	x.next = func(f *Frame) bool {
		asked <- f.Conn()
		return false
	}
	var f Flows
	f.Use(pool)
	for _, s := range pool {
		s.Attach(x)
	}
	next := func(left int64) *Sender {
		f.Kick(1000, left)
		select {
		case s := <-asked:
			return s
		case <-time.After(patience):
			t.Fatal("nobody looks for work")
		}
		return nil
	}
	taken := map[*Sender]int{}
	take := func(n int) {
		for left := n; left > 0; left-- {
			s := next(int64(left * 1000))
			taken[s]++
			f.Took(s, 1000)
		}
	}
	take(10 + 5 + 5)
	require.Equal(t, map[*Sender]int{pool[0]: 10, pool[1]: 5, pool[2]: 5}, taken, "windows but for a quarter")
	take(2 * 20)
	require.InDelta(t, 10+20, taken[pool[0]], 1)
	require.InDelta(t, taken[pool[1]], taken[pool[2]], 1)

	all := map[*Sender]bool{}
	for range 10 * len(pool) {
		all[next(1<<20)] = true
	}
	require.Len(t, all, len(pool))
}
