package link

import (
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// claim takes the batch of the pair's first connection.
func (p *pair) claim() *Sender {
	s := p.sender(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = true
	return s
}

func (s *Sender) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gather()
}

// Frames that were dropped because the connection has ended are released as not sent,
// before the router hears of the loss.
func TestDroppedFramesAreNotSent(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true})
	s := p.claim()
	x := newRoll(1, 1, []byte{1}, []byte{2})
	s.Attach(x)
	s.fill()
	require.Len(t, s.batch, 2)
	s.mu.Lock()
	s.cause = errTest // close is about to tell the router
	s.mu.Unlock()
	s.conn.Close()
	s.retire(errTest, false)
	require.Empty(t, s.batch)
	sent, dropped := x.counts()
	require.Equal(t, []int{0, 2}, []int{sent, dropped})
	require.EqualValues(t, 1, x.settled.Load(), "nothing refers to it any more")
	require.Empty(t, p.a.lost)
}

// A frame whose source was stopped before the frame was prepared is not sent: the
// peer would take what is lacking for the fault of a healthy connection.
func TestUnpreparedFramesAreNotSent(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{})
	s := p.claim()
	x, y := newRoll(1, 1, []byte{1}), newRoll(2, 1, []byte{2})
	x.opener = true
	x.prepare = func(*Frame) { t.Error("prepared after its end") }
	s.Attach(x)
	s.fill()
	require.Len(t, s.batch, 1)
	x.stop.Store(true)
	s.Detach(x)
	require.False(t, s.prepare())
	s.retire(nil, false)
	require.Empty(t, s.batch)
	// The connection carries the next one, behind the opener.
	tape := newTape()
	p.b.open(uuid(0), 2, 1, tape)
	s.mu.Lock()
	s.busy = false
	s.mu.Unlock()
	s.Attach(y)
	s.Kick(true, true)
	require.Equal(t, []byte{2}, tape.next(t))
	require.EqualValues(t, 1, p.a.h.cfg.Stats.Snapshot().Openers)
	require.EqualValues(t, 1, p.b.h.cfg.Stats.Snapshot().StaleFrames, "the opener")
}

// What was begun of a stopped source's frame is completed with zeros, and nothing of
// its memory is touched any more.
func TestBegunFramesArePadded(t *testing.T) {
	m := newRoom(t, Config{})
	near, far := transporttest.Pair(transporttest.Options{Buffer: 1000})
	m.h.AddSender(uuid(1), 0, near, Features{Native: true})
	s := m.h.Senders(uuid(1))[0]
	payload := make([]byte, 100_000)
	for i := range payload {
		payload[i] = 7
	}
	x := newRoll(3, 4, payload)
	s.Attach(x)
	s.Kick(true, true)
	require.Eventually(t, func() bool { return near.Written() == 1000 }, patience, time.Millisecond)
	x.stop.Store(true)
	s.Detach(x)
	require.Eventually(t, func() bool { _, dropped := x.counts(); return dropped == 1 }, patience, time.Millisecond)
	for i := range payload {
		payload[i] = 9 // the source's own again
	}
	got := make([]byte, transport.HeaderSize+len(payload))
	_, err := io.ReadFull(far, got)
	require.NoError(t, err)
	for i, b := range got[transport.HeaderSize:] {
		want := byte(0)
		if i < 1000-transport.HeaderSize {
			want = 7
		}
		if b != want {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	require.EqualValues(t, len(got)-1000, m.h.cfg.Stats.Snapshot().PaddedBytes)
}

// A panic in a source fails it, with an error that names the peer, and costs the
// connection nothing.
func TestPanicInASource(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true})
	x, y := newRoll(1, 1, []byte{1}), newRoll(2, 1, []byte{2})
	x.prepare = func(*Frame) { panic("a quantizer") }
	p.sender(0).Attach(x)
	p.sender(0).Kick(true, true)
	err := <-x.failed
	require.ErrorIs(t, err, errs.Internal)
	require.ErrorContains(t, err, uuid(1).String())
	p.sender(0).Detach(x)
	tape := newTape()
	p.b.open(uuid(0), 2, 1, tape)
	p.sender(0).Attach(y)
	p.sender(0).Kick(true, true)
	require.Equal(t, []byte{2}, tape.next(t))
}

// A source that panics when it is asked for a frame, which is with the connection's lock
// held, is failed, and neither the connection nor its other sources wait for anything.
func TestPanicInNextFrame(t *testing.T) {
	for _, inline := range []bool{true, false} {
		p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true})
		s := p.sender(0)
		x, y := newRoll(1, 1), newRoll(2, 1, []byte{2})
		x.next = func(*Frame) bool { panic("a plan") }
		tape := newTape()
		p.b.open(uuid(0), 2, 1, tape)
		s.Attach(x)
		s.Attach(y)
		s.Kick(inline, true)
		err := <-x.failed
		require.ErrorIs(t, err, errs.Internal)
		require.ErrorContains(t, err, uuid(1).String())
		require.Equal(t, []byte{2}, tape.next(t))
		s.Detach(x)
		require.False(t, s.Broken())
	}
}

// All sources that leave something to a faster connection are roused there.
func TestAllWhoYieldAreRoused(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true})
	s := p.sender(0)
	var rolls []*roll
	for i := range 7 {
		x := newRoll(uint64(i), 1)
		x.next = func(f *Frame) bool { f.Left = true; return false }
		rolls = append(rolls, x)
		s.Attach(x)
	}
	s.Kick(true, true)
	for _, x := range rolls {
		require.EqualValues(t, 1, x.roused.Load())
	}
}

// A write that an abort ended before it moved anything says nothing of the speed.
func TestAbortedWritesMeasureNothing(t *testing.T) {
	s := &Sender{}
	now := time.Unix(1000, 0)
	write := func(took time.Duration, n int) {
		start := now
		now = now.Add(took)
		s.gauge.observe(start, now, n)
	}
	write(time.Second, 1000)
	write(time.Second, 1000)
	require.Equal(t, 1000., s.Speed())
	write(time.Second, 0)
	require.Equal(t, 1000., s.Speed())
	write(time.Second, 1000)
	require.Equal(t, 500., s.Speed(), "the time without a byte counts")
}

// A connection that is much slower leaves the end of a stream to the others.
func TestSlowConnectionYields(t *testing.T) {
	fast, other, slow := &Sender{}, &Sender{}, &Sender{}
	var f Flows
	f.Use([]*Sender{fast, other, slow})
	const piece = 64 << 10
	all := int64(1 << 40)
	require.False(t, f.Yields(slow, all, piece), "no speed is known")
	now := time.Now()
	slow.gauge.observe(now.Add(-2*time.Second), now.Add(-time.Second), 1000)
	require.True(t, math.IsInf(slow.Speed(), 1), "what the system held is no measure")
	slow.gauge.observe(now, now, 50_000)
	slow.gauge.observe(now.Add(-time.Second), now, 50_000)
	require.Equal(t, 100_000., slow.Speed())
	for s, rate := range map[*Sender]float64{slow: 1e5, fast: 1e6, other: 1e6} {
		s.gauge.rate.Store(math.Float64bits(rate))
	}
	require.False(t, f.Yields(slow, 8<<20, piece), "eight MiB at 2 MB/s are time enough")
	require.True(t, f.Yields(slow, 1<<16, piece))
	require.False(t, f.Yields(fast, 1<<16, piece))
	other.gauge.rate.Store(0)
	require.False(t, f.Yields(other, 1<<16, piece))
	require.True(t, f.Yields(slow, 1<<16, piece), "one of the others never waits")
	for range forget {
		slow.gauge.observe(now, now, 1<<20)
		if slow.gauge.rate.Load() == 0 {
			break
		}
	}
	require.False(t, f.Yields(slow, 1<<16, piece), "forgotten")
}
