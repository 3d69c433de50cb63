package link

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

func wordAt(at time.Duration, bytes uint64) uint64 {
	return toldBit | uint64(at/toldTime)<<32&^toldBit | bytes/toldBytes&(1<<32-1)
}

// Time and bytes wrap around, words overtake each other on several connections, and what the
// way back took longer than at its best shows.
func TestAccount(t *testing.T) {
	const wrap = toldTime << 31
	ms := time.Millisecond
	var a account
	a.take(0, 5*ms)
	require.Zero(t, a.at, "no word yet")
	a.take(wordAt(wrap-20*ms, 1<<38-128), 1000*ms)
	at := a.at
	require.Zero(t, a.bytes)
	a.take(wordAt(20*ms, 128), 1040*ms)
	require.InDelta(t, 40*ms, a.at-at, float64(toldTime))
	require.EqualValues(t, 256, a.bytes)
	require.InDelta(t, 0, a.back, float64(ms/10))
	a.take(wordAt(60*ms, 1<<20), 1180*ms) // 100 ms later than it could
	require.InDelta(t, 100*ms, a.back, float64(ms/10))
	later := a
	a.take(wordAt(50*ms, 1<<19), 1190*ms)
	require.Equal(t, later, a, "one that was overtaken")
	a.take(wordAt(100*ms, 1<<20), 1110*ms) // and 10 ms sooner
	require.Zero(t, a.back)
	require.EqualValues(t, 1<<20+128, a.bytes)
}

// Who asks is told, on a connection that asked, what came over all of them. Who does not ask
// is told nothing.
func TestTold(t *testing.T) {
	p := newPair(t, Config{}, 2, transporttest.Options{}, Features{Native: true, Flows: true})
	s := p.far(0, func(*platform.Info) bool { return false })
	p.b.h.Trust(uuid(0))
	from := p.b.h.Receivers(uuid(0))
	segments := []uint32{10, 20}
	for i, r := range from {
		r.tells.sample = func(info *platform.Info) bool {
			*info = platform.Info{Known: platform.HasCame, Came: segments[i], CameMSS: 1000, Received: 1000 * uint64(segments[i])}
			return true
		}
	}
	p.send(t, s, 1, 10)
	require.True(t, s.ask(t.Context()), "all that was told is heard before the answer")
	word, _ := s.gauge.flow.word.get()
	require.Zero(t, word)

	s.mu.Lock()
	s.openers = append(s.openers, Opener{tellTag, pingStream})
	s.mu.Unlock()
	s.Kick(true, true)
	p.send(t, s, 2, 10)
	require.Eventually(t, func() bool {
		word, _ = s.gauge.flow.word.get()
		return word != 0
	}, patience, time.Millisecond)
	require.EqualValues(t, 30000/toldBytes, word&(1<<32-1))
	require.True(t, s.ask(t.Context()), "pings are answered as before")
	require.NotContains(t, p.a.h.tellers, uuid(1), "nobody asked")
	p.b.h.Retain(nil, func(wire.UUID) bool { return false })
	require.Empty(t, p.b.h.tellers, "nothing is kept of peers that have gone")
}

// A system that does not count what comes tells nothing.
func TestNothingIsToldThatIsNotKnown(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	r := p.b.h.Receivers(uuid(0))[0]
	r.tells.sample = func(info *platform.Info) bool {
		*info = platform.Info{Known: platform.HasRTT}
		return true
	}
	h := p.b.h
	for _, peer := range []wire.UUID{uuid(0), uuid(9)} {
		h.telling.Lock()
		_, due := h.toTell(peer, time.Now())
		h.telling.Unlock()
		require.False(t, due)
	}
	require.NotContains(t, h.tellers, uuid(9), "a stranger leaves nothing")
}

// shows has a connection of the pair's first peer show, at each tick, what a deep queue does: two
// megabytes a second leave, and one arrives.
type shows struct {
	s     *Sender
	ticks uint64
	queue time.Duration
}

func (x *shows) sample(info *platform.Info) bool {
	*info = platform.Info{
		Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked | platform.HasSent | platform.HasResent | platform.HasUnsent | platform.HasInFlight,
		RTT:   40*time.Millisecond + x.queue, MinRTT: 40 * time.Millisecond,
		Acked: x.ticks * 10_000, Sent: x.ticks * 20_000, Unsent: 1, InFlight: 1 << 20,
	}
	return true
}

// Where a deep queue of one's own stands all distant peers together are sent what arrives.
func TestTheLineIsBounded(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	x := &shows{}
	x.s = p.far(0, x.sample)
	h := p.a.h
	h.survey.on.Store(true) // the test is the survey
	f := x.s.gauge.flow
	run := func(ticks int) {
		for range ticks {
			x.ticks++
			now := time.Duration(x.ticks) * sampling
			f.last.Store(int64(now))
			f.word.set(wordAt(now, x.ticks*10_000), now+20*time.Millisecond)
			h.survey.step(now)
		}
	}
	run(500)
	require.Zero(t, h.allowance.get(), "no queue")
	require.True(t, f.asked, "what arrives before there is one says what the line carries")
	require.Zero(t, x.s.path().Bound)
	x.queue = 300 * time.Millisecond
	run(120)
	require.InDelta(t, 0.7e6, h.allowance.get(), 0.35e6)
	require.Positive(t, x.s.path().Bound, "it can be seen")

	// More connections are tried with more.
	x.queue = 0
	run(1)
	before := h.allowance.get()
	peer := x.s.peer
	c := h.survey.counts[peer]
	require.True(t, c.Trying(), "it tries two, and gets none")
	require.Equal(t, 2, c.N())
	h.survey.tried(c, 2, false)
	run(1)
	require.Equal(t, before, h.allowance.get())
	h.survey.tried(c, 1, false)
	run(1)
	require.Greater(t, h.allowance.get(), 1.2*before)
	h.survey.tried(c, 3, false)
	run(1)
	require.Greater(t, h.allowance.get(), 1.2*before, "there are fewer for another reason")
	h.Refused(peer, 1)
	run(2) // the number of connections is settled when the bound is told
	require.Equal(t, 1, c.N())
	require.Less(t, h.allowance.get(), 1.1*before, "they bring nothing")
}

// What the line was raised by for a trial goes back once those of all peers are over, as the first of
// them found it; also when the peer of one has gone, or refuses more than was tried.
func TestTrialsOfSeveralPeers(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	x := &shows{}
	x.s = p.far(0, x.sample)
	h := p.a.h
	v := h.survey
	v.on.Store(true) // the test is the survey
	run := func(ticks int) float64 {
		for range ticks {
			x.ticks++
			now := time.Duration(x.ticks) * sampling
			x.s.gauge.flow.last.Store(int64(now))
			x.s.gauge.flow.word.set(wordAt(now, x.ticks*10_000), now+20*time.Millisecond)
			v.step(now)
		}
		return h.allowance.get()
	}
	run(500)
	x.queue = 300 * time.Millisecond
	run(120)
	x.queue = 0
	before := run(1)
	first := v.counts[x.s.peer]
	require.True(t, first.Trying())
	v.tried(first, 1, false)
	other := &count{Count: pace.NewCount(8)}
	for tick := range 1000 { // ten seconds of its time
		now := time.Second + time.Duration(tick)*sampling
		if other.Trying() {
			break
		}
		other.Step(now, pace.Span{RTT: 40 * time.Millisecond, Base: 40 * time.Millisecond, Arrived: 10_000, Sent: 10_000, Used: 8, Waiting: true})
	}
	require.True(t, other.Trying())
	other.before = 0 // it began while nothing was bounded
	require.Greater(t, run(1), 1.2*before)
	h.mu.Lock()
	h.tx[uuid(7)] = []*Sender{nil}
	h.mu.Unlock()
	v.counts[uuid(7)] = other
	h.Refused(x.s.peer, 2) // as many as it tried, of more that operations asked for
	require.Greater(t, run(2), 1.2*before, "the other one is still being tried")
	require.False(t, first.Trying())
	h.mu.Lock()
	delete(h.tx, uuid(7))
	h.mu.Unlock()
	run(2)
	require.Less(t, h.allowance.get(), 1.1*before)
}

// clock is the time of a hub's survey.
func clock(h *Hub) time.Duration { return time.Since(h.survey.made) }

// What waits on a connection is what was not sent at the last tick, and was written since. Where
// something is lost it may be a timeout until more leaves.
func TestWhatWaits(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	info := platform.Info{Known: platform.HasRTT | platform.HasUnsent | platform.HasLost | platform.HasRetries, RTT: 80 * time.Millisecond, Unsent: 1000}
	s := p.far(0, func(i *platform.Info) bool { *i = info; return true })
	h := p.a.h
	h.survey.on.Store(true) // the test is the survey
	step := func() int {
		at := clock(h)
		s.gauge.flow.last.Store(int64(at))
		h.survey.step(at)
		return s.waits()
	}
	require.Equal(t, 1000, step())
	s.gauge.flow.wrote(h, 500, time.Now())
	require.Equal(t, 1500, s.waits())
	require.Equal(t, 1000, step())
	info.Lost = 1448
	require.Equal(t, backlog, step())
	info.Lost, info.Retries = 0, 1
	require.Equal(t, backlog, step())
	s.gauge.flow.near.Store(true)
	require.Equal(t, backlog, s.waits(), "nothing is known of a near one")
}

// What may be lost behind the last data is followed by words that mean nothing.
func TestWordsBehindData(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	info := platform.Info{
		Known: platform.HasRTT | platform.HasMinRTT | platform.HasAcked | platform.HasSent | platform.HasResent | platform.HasUnsent | platform.HasInFlight,
		RTT:   80 * time.Millisecond, MinRTT: 80 * time.Millisecond, Sent: 1000, InFlight: 1000,
	}
	s := p.far(0, func(i *platform.Info) bool { *i = info; return true })
	h := p.a.h
	h.survey.on.Store(true) // the test is the survey
	last := clock(h)
	s.gauge.flow.last.Store(int64(last))
	frames := func() uint64 { return h.cfg.Stats.Snapshot().TxFrames }
	before := frames()
	for k := range uint64(5) {
		h.survey.step(last)
		require.Eventually(t, func() bool { return frames() == before+min(k+1, 3) && s.rested() }, patience, time.Millisecond)
	}
	require.Equal(t, int64(last), s.gauge.flow.last.Load(), "they are no data")
	s.gauge.flow.writes.Add(1)
	s.gauge.flow.last.Add(1)
	h.survey.step(last)
	require.Equal(t, before+3, frames(), "more is being written")
}

// stuck is a connection that takes so many bytes of a write and no more.
type stuck struct {
	net.Conn
	takes  int
	closed bool
}

func (c *stuck) Write([]byte) (int, error)        { return c.takes, os.ErrDeadlineExceeded }
func (c *stuck) SetWriteDeadline(time.Time) error { return nil }
func (c *stuck) Close() error                     { c.closed = true; return nil }
func (c *stuck) Resumable() bool                  { return true }

// A word that cannot be written now, or not seen to be, costs nothing. Half a word ends the
// connection.
func TestWordThatIsNotTaken(t *testing.T) {
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	h := p.b.h
	h.Trust(uuid(0))
	h.Receivers(uuid(0))[0].tells.sample = func(info *platform.Info) bool {
		*info = platform.Info{Known: platform.HasCame, Came: 1, CameMSS: 1000}
		return true
	}
	for takes, ends := range map[int]bool{0: false, 3: true, echoBytes: false} {
		conn := &stuck{takes: takes}
		r := &Receiver{h: h, peer: uuid(0), conn: conn}
		r.tells.on = true
		require.Eventually(t, func() bool {
			r.tell()
			return r.tells.due.After(time.Now().Add(tellEvery / 2))
		}, patience, time.Millisecond, "it was tried")
		require.Equal(t, ends, conn.closed)
		require.True(t, r.tells.on)
	}
}
