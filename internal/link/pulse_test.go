package link

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/platform"
)

// far makes a connection of the pair one to a distant peer, whose system says what
// sample does.
func (p *pair) far(k int, sample func(*platform.Info) bool) *Sender {
	s := p.sender(k)
	s.gauge.flow = &flow{sample: sample}
	p.a.h.mu.Lock()
	defer p.a.h.mu.Unlock()
	p.a.h.survey.far = append(p.a.h.survey.far, s)
	return s
}

// send moves so many bytes over a connection of the pair.
func (p *pair) send(t *testing.T, s *Sender, tag uint64, n int) {
	x, y := newRoll(1, tag, make([]byte, n)), newTape()
	p.b.open(uuid(0), 1, tag, y)
	s.Attach(x)
	s.Kick(true, false)
	require.Len(t, y.next(t), n)
}

// moved returns a connection that has moved much and rests, and its hub, whose survey the test is.
func moved(t *testing.T) (*Hub, *Sender) {
	t.Helper()
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	s := p.far(0, func(*platform.Info) bool { return false })
	p.a.h.survey.on.Store(true)
	p.send(t, s, 7, pace.Worth)
	require.Eventually(t, func() bool { return s.gauge.flow.writes.Load() == 0 && s.rested() }, patience, time.Millisecond)
	return p.a.h, s
}

// A connection that has moved much is kept awake while it rests: without an answer,
// without a trace in what is measured, and until there is data again.
func TestPulsesWhileResting(t *testing.T) {
	p := newPair(t, Config{}, 2, transporttest.Options{}, Features{Native: true, Flows: true})
	quiet := func(*platform.Info) bool { return false }
	s, small := p.far(0, quiet), p.far(1, quiet)
	h := p.a.h
	p.send(t, s, 7, pace.Worth)
	p.send(t, small, 8, 100)
	taken := s.gauge.use.bytes.Load()
	frames := func() uint64 { return h.cfg.Stats.Snapshot().TxFrames }
	require.Eventually(t, func() bool { return !h.survey.on.Load() }, patience, time.Millisecond)
	before, started := frames(), s.gauge.flow.last.Load()
	require.Eventually(t, func() bool { return frames() >= before+3 }, patience, time.Millisecond)
	require.Equal(t, taken, s.gauge.use.bytes.Load(), "a pulse is not data")
	require.Equal(t, started, s.gauge.flow.last.Load())
	require.False(t, h.survey.on.Load())
	require.Empty(t, s.echo, "nobody answers a pulse")
	require.Empty(t, p.b.h.claims.vouched)
	require.False(t, small.gauge.flow.worth.Load())

	// Data ends them; a ping is answered as ever.
	p.send(t, s, 9, 10)
	require.True(t, h.survey.on.Load())
	require.True(t, s.ask(t.Context()))
}

// A connection that rests while others have data, or while the survey looks whether
// more comes, gets its pulses at once: a window is taken back sooner than a survey ends.
func TestPulsesBeforeTheSurveyEnds(t *testing.T) {
	h, s := moved(t)
	frames := func() uint64 { return h.cfg.Stats.Snapshot().TxFrames }
	since, before := time.Duration(s.gauge.flow.last.Load()), frames()
	for at := sampling; at < 3*pace.Pulse; at += sampling {
		h.survey.step(since + at)
	}
	require.Equal(t, before+3, frames(), "one for each of the first three times")
}

// A connection of an operation that has nothing for it for a while, because it waits for others,
// gets its pulses, too.
func TestPulsesAmidAnOperation(t *testing.T) {
	h, s := moved(t)
	waits := newRoll(9, 1)
	waits.next = func(*Frame) bool { return false }
	s.Attach(waits)
	defer s.Leave(waits)
	frames := func() uint64 { return h.cfg.Stats.Snapshot().TxFrames }
	taken := s.gauge.use.bytes.Load()
	since, before := time.Duration(s.gauge.flow.last.Load()), frames()
	for n := range 3 {
		h.survey.step(since + time.Duration(n+1)*pace.Pulse)
		require.Eventually(t, func() bool { return frames() == before+uint64(n)+1 && s.rested() }, patience, time.Millisecond)
	}
	require.Equal(t, taken, s.gauge.use.bytes.Load(), "a pulse is not data")
}

// A connection whose system keeps its window at rest gets no pulses, neither after the survey nor
// beside others that have data.
func TestNoPulsesWhereTheWindowStands(t *testing.T) {
	p := newPair(t, Config{}, 2, transporttest.Options{}, Features{Native: true, Flows: true})
	quiet := func(*platform.Info) bool { return false }
	s, kept := p.far(0, quiet), p.far(1, quiet)
	kept.gauge.flow.keeps = true
	both := []*Sender{s, kept}
	survey := p.a.h.survey
	survey.on.Store(true) // the test is the survey
	for i, s := range both {
		p.send(t, s, uint64(7+i), pace.Worth)
		require.Eventually(t, func() bool { return s.gauge.flow.writes.Load() == 0 }, patience, time.Millisecond)
	}
	last := func(s *Sender) time.Duration { return time.Duration(s.gauge.flow.last.Load()) }
	pulses := func(s *Sender) int64 { return s.gauge.flow.pulsed.Load() }
	survey.step(max(last(s), last(kept)) + pace.Pulse)
	require.Positive(t, pulses(s))
	require.Zero(t, pulses(kept))

	survey.on.Store(false) // the next data starts one of its own
	for i, s := range both {
		p.send(t, s, uint64(9+i), 1)
	}
	require.Eventually(t, func() bool { return !survey.on.Load() }, patience, time.Millisecond)
	was := pulses(s)
	require.Eventually(t, func() bool { return pulses(s) > was }, patience, time.Millisecond)
	require.Zero(t, pulses(kept))
}

// A window that became smaller while the connection rested, because of a pulse that was lost, is
// not taken for what it was.
func TestPulsesLookAtTheWindow(t *testing.T) {
	near := dialled(t)
	info, known := platform.TCPInfo(near)
	h := newRoom(t, Config{}).h
	h.AddSender(uuid(1), 0, near, Features{Flows: true})
	s := h.Senders(uuid(1))[0]
	f := &flow{}
	s.gauge.flow = f
	h.survey.on.Store(true) // there is nothing that it could ask
	f.worth.Store(true)
	f.window.Store(math.MaxInt64)
	f.own.Store(math.MaxInt64)
	h.survey.refresh(pace.Pulse, []*Sender{s})
	require.EqualValues(t, pace.Pulse, f.pulsed.Load())
	require.Equal(t, known && info.Known.Has(platform.HasWindow), f.window.Load() < math.MaxInt64)
	require.Equal(t, known && info.Known.Has(platform.HasRTT|platform.HasTimeout), f.every.Load() > 0)
}

// A lost pulse costs a part of a window. There are no more of them than the window needs, and none for
// one that a system would not take back.
func TestPulsesAreFew(t *testing.T) {
	f := &flow{}
	f.last.Store(1)
	require.False(t, f.rests(pace.Pulse), "it has moved little")
	f.worth.Store(true)
	require.True(t, f.rests(pace.Pulse))
	const rtt = 600 * time.Millisecond
	info := platform.Info{Known: platform.HasRTT, RTT: rtt}
	f.look(&info)
	require.True(t, f.rests(pace.Pulse), "nobody knows when a window is taken back")
	info = platform.Info{Known: platform.HasRTT | platform.HasTimeout, RTT: rtt, Timeout: rtt + 30*time.Millisecond}
	f.look(&info)
	require.True(t, f.rests(rtt-breath), "in time")
	info.Timeout = rtt + 200*time.Millisecond
	f.look(&info)
	require.False(t, f.rests(rtt-2*sampling))
	require.True(t, f.rests(rtt))
	f.pulsed.Store(int64(rtt))
	require.False(t, f.rests(2*rtt-2*sampling))
	require.True(t, f.rests(2*rtt))
	info.Known |= platform.HasWindow | platform.HasPeerWindow
	info.Window, info.PeerWindow = firstWindow+2*segment, segment
	f.look(&info)
	require.True(t, f.rests(2*rtt), "the other end will take more")
	info.Window = firstWindow
	f.look(&info)
	require.False(t, f.rests(2*rtt), "it stands by itself")

	h, s := moved(t)
	s.gauge.flow.own.Store(firstWindow)
	ended := make(chan struct{})
	go func() {
		h.survey.on.Store(false)
		h.survey.keep([]*Sender{s}, time.Hour)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("nothing needs pulses any more")
	}
	require.Zero(t, s.gauge.flow.pulsed.Load())
}

// Where a round trip takes longer than the time between two pulses, one of them is on its way all
// the time. That is no data: the survey ends.
func TestPulsesOnTheirWayAreNoData(t *testing.T) {
	const rtt = 4 * pace.Pulse
	p := newPair(t, Config{}, 1, transporttest.Options{}, Features{Native: true, Flows: true})
	h := p.a.h
	h.survey.on.Store(true) // the test is the survey
	var now, seen time.Duration
	var under []time.Duration // when the pulses left that are on their way
	info := platform.Info{Known: platform.HasRTT | platform.HasInFlight | platform.HasAcked | platform.HasSent | platform.HasResent, RTT: rtt, Sent: pace.Worth}
	var s *Sender
	s = p.far(0, func(i *platform.Info) bool {
		if at := time.Duration(s.gauge.flow.pulsed.Load()); at != seen {
			seen, under = at, append(under, at)
			info.Sent += 21
		}
		for len(under) > 0 && now-under[0] >= rtt {
			under = under[1:]
		}
		info.InFlight = 21 * len(under)
		info.Acked = info.Sent - uint64(info.InFlight)
		if now-time.Duration(s.gauge.flow.last.Load()) < rtt {
			info.Acked, info.InFlight = 0, int(info.Sent)
		}
		*i = info
		return true
	})
	p.send(t, s, 7, pace.Worth)
	require.Eventually(t, func() bool { return s.gauge.flow.writes.Load() == 0 && s.rested() }, patience, time.Millisecond)
	since := time.Duration(s.gauge.flow.last.Load())
	ended := time.Duration(0)
	for now = since + sampling; now < since+4*rtt; now += sampling {
		if h.survey.step(now) {
			ended = 0
		} else if ended == 0 {
			ended = now - since
		}
	}
	require.NotEmpty(t, under)
	require.InDelta(t, rtt, ended, float64(2*sampling), "when its data had arrived")
}
