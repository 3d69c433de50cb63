package link

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

var testThreads Threads

// With GOPCCL_TEST_THREADS=pinned all tests run on pinned threads.
func TestMain(m *testing.M) {
	if os.Getenv("GOPCCL_TEST_THREADS") == "pinned" {
		testThreads = Pinned
	}
	goleak.VerifyTestMain(m)
}

const patience = 60 * time.Second

var errTest = errors.New("the test gave up")

func uuid(i int) wire.UUID {
	var u wire.UUID
	binary.BigEndian.PutUint64(u[:], uint64(i)+1)
	return u
}

// room is a router that stands in for the room above: it knows the sinks of a test,
// and hears of losses.
type room struct {
	h        *Hub
	mu       invariants.Mutex
	sinks    map[streamKey]Sink
	keeps    bool // frames without a sink are kept, and dropped otherwise
	waits    bool // Route waits for a sink until the connection is closed
	waiting  atomic.Int32
	changed  *sync.Cond
	lost     chan loss
	regroups atomic.Int32
	receiver chan *Receiver
}

type loss struct {
	peer  wire.UUID
	send  bool
	cause error
}

func newRoom(t *testing.T, cfg Config) *room {
	m := &room{sinks: map[streamKey]Sink{}, lost: make(chan loss, 4*maxStrangers), receiver: make(chan *Receiver, 4*maxStrangers)}
	m.changed = sync.NewCond(&m.mu)
	m.mu.Rank(RankHub-1, "room.mu")
	if cfg.Threads == 0 {
		cfg.Threads = testThreads
	}
	m.h = NewHub(cfg, m)
	t.Cleanup(m.h.Close)
	return m
}

func (m *room) Route(r *Receiver, h transport.Header, kept *Early) (Sink, Verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if x := m.sinks[streamKey{r.Peer(), h.Tag, h.Stream}]; x != nil {
			return x, Deliver, nil
		}
		switch {
		case m.waits && !r.Closed():
			m.waiting.Add(1)
			m.changed.Wait()
			continue
		case !m.keeps:
			return nil, Drop, nil
		case kept != nil:
			m.h.Keep(kept)
		}
		return nil, Keep, nil
	}
}

func (m *room) Wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed.Broadcast()
}

func (m *room) Connected(r *Receiver) { m.receiver <- r }

func (m *room) SenderLost(s *Sender, cause error) { m.lost <- loss{s.Peer(), true, cause} }

func (m *room) Regrouped(wire.UUID) { m.regroups.Add(1) }

func (m *room) ReceiverLost(r *Receiver, cause error) { m.lost <- loss{r.Peer(), false, cause} }

// streamKey names a stream in a room.
type streamKey struct {
	from        wire.UUID
	tag, stream uint64
}

// open makes x the sink of a stream, and gives it what was kept.
func (m *room) open(from wire.UUID, tag, stream uint64, x Sink) {
	m.mu.Lock()
	m.sinks[streamKey{from, tag, stream}] = x
	all := m.h.TakeEarly(from, tag, stream)
	m.changed.Broadcast()
	m.mu.Unlock()
	for _, early := range all {
		if err := m.h.Replay(early, x); err != nil {
			early.From().Close(err)
		}
	}
}

// hears returns the next loss.
func (m *room) hears(t *testing.T) loss {
	t.Helper()
	select {
	case l := <-m.lost:
		return l
	case <-time.After(patience):
		t.Fatal("no connection was lost")
		return loss{}
	}
}

// stream is what sources and sinks of tests have in common.
type stream struct {
	stop    atomic.Bool
	failed  chan error
	settled atomic.Int32
}

func (s *stream) Stopped() bool { return s.stop.Load() }
func (s *stream) Settle(bool)   { s.settled.Add(1) }

func (s *stream) Fail(err error) {
	s.stop.Store(true)
	select {
	case s.failed <- err:
	default:
	}
}

// tape is a sink that keeps what came.
type tape struct {
	stream
	frames chan []byte
	refuse error
	inside atomic.Int32
}

func newTape() *tape {
	return &tape{stream: stream{failed: make(chan error, 1)}, frames: make(chan []byte, 1<<16)}
}

func (x *tape) BeginReceive(*Receiver) bool {
	if x.Stopped() {
		return false
	}
	x.inside.Add(1)
	return true
}

func (x *tape) ReceiveFrame(r *Receiver, h transport.Header) error {
	if x.refuse != nil {
		return x.refuse
	}
	b := make([]byte, h.Payload)
	if err := r.Fill(x, b); err != nil {
		return err
	}
	x.frames <- b
	return nil
}

func (x *tape) EndReceive(r *Receiver) {
	if x.Stopped() {
		r.Resume()
	}
	x.inside.Add(-1)
}

func (x *tape) Received() bool { return false }

// next returns the next frame that came.
func (x *tape) next(t *testing.T) []byte {
	t.Helper()
	select {
	case b := <-x.frames:
		return b
	case <-time.After(patience):
		t.Fatal("no frame came")
		return nil
	}
}

// roll is a source of frames that are ready from the start.
type roll struct {
	stream
	tag, number uint64
	next        func(*Frame) bool // in the place of what frames have; called with the lock of the connection held
	roused      atomic.Int32
	flows       *Flows // that it is sent over; nil: nobody is woken
	prepare     func(*Frame)
	opener      bool // is due when nothing was sent

	mu      invariants.Mutex
	frames  [][]byte
	refs    int
	begun   bool
	dropped int // frames that were released before they were sent
	sent    int
}

func newRoll(tag, number uint64, frames ...[]byte) *roll {
	x := &roll{stream: stream{failed: make(chan error, 1)}, tag: tag, number: number, frames: frames}
	x.mu.Rank(RankConn+1, "roll.mu")
	return x
}

func (x *roll) NextFrame(f *Frame, _ int) bool {
	if x.next != nil {
		return x.next(f)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.frames) == 0 || x.Stopped() {
		return false
	}
	f.Payload = x.frames[0]
	x.frames = x.frames[1:]
	x.refs++
	transport.Header{Payload: len(f.Payload), Tag: x.tag, Stream: x.number}.Put((*[transport.HeaderSize]byte)(f.Head))
	return true
}

func (x *roll) PrepareFrame(f *Frame) {
	if x.prepare != nil {
		x.prepare(f)
	}
}

func (x *roll) SentFrame(*Frame) {}

func (x *roll) ReleaseFrame(f *Frame, whole bool) (idle, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refs--
	x.begun = x.begun || f.Begun()
	if whole {
		x.sent++
	} else {
		x.dropped++
	}
	return x.refs == 0, x.refs == 0 && len(x.frames) == 0 && x.dropped == 0
}

func (x *roll) Opener() (Opener, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	due := x.opener && !x.begun && x.refs == 0
	x.opener = x.opener && !due
	return Opener{x.tag, x.number}, due
}

func (x *roll) RouseBest() {
	if x.roused.Add(1); x.flows != nil {
		x.flows.RouseBest()
	}
}

// counts returns how many frames were sent, and dropped.
func (x *roll) counts() (sent, dropped int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sent, x.dropped
}

// pair is two rooms with pools from the first to the second.
type pair struct {
	a, b *room
	out  []*transporttest.Conn // at a
	in   []*transporttest.Conn // at b
}

func newPair(t *testing.T, cfg Config, pool int, o transporttest.Options, features Features) *pair {
	p := &pair{a: newRoom(t, cfg), b: newRoom(t, cfg)}
	p.b.h.Trust(uuid(0))
	for k := range pool {
		x, y := transporttest.Pair(o)
		p.b.h.AddReceiver(uuid(0), uint32(k), y)
		p.a.h.AddSender(uuid(1), uint32(k), x, features)
		p.out, p.in = append(p.out, x), append(p.in, y)
	}
	return p
}

func (p *pair) sender(k int) *Sender { return p.a.h.Senders(uuid(1))[k] }

// put writes a frame as a script that has the connection.
func put(t *testing.T, c io.Writer, tag, number uint64, payload []byte) {
	t.Helper()
	_, err := c.Write(frameOf(tag, number, payload))
	require.NoError(t, err)
}

func frameOf(tag, number uint64, payload []byte) []byte {
	b := make([]byte, transport.HeaderSize, transport.HeaderSize+len(payload))
	transport.Header{Payload: len(payload), Tag: tag, Stream: number}.Put((*[transport.HeaderSize]byte)(b))
	return append(b, payload...)
}

// Frames of several sources over one connection come to their sinks, each stream in
// its order, whatever the connection takes at once.
func TestFramesComeToTheirSinks(t *testing.T) {
	defer invariants.WatchLocks()()
	for name, o := range map[string]transporttest.Options{"wide": {}, "narrow": {Buffer: 100, Piece: 7}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Config{FrameBytes: 64}, 1, o, Features{Native: true})
			const streams, each = 5, 40
			var rolls []*roll
			var tapes []*tape
			for k := range uint64(streams) {
				x, y := newRoll(k, 7), newTape()
				for i := range each {
					x.frames = append(x.frames, append(make([]byte, 1+i*i), byte(i)))
				}
				p.b.open(uuid(0), k, 7, y)
				rolls, tapes = append(rolls, x), append(tapes, y)
			}
			for _, x := range rolls {
				p.sender(0).Attach(x)
				p.sender(0).Kick(true, true)
			}
			for k := range tapes {
				for i := range each {
					require.Equal(t, append(make([]byte, 1+i*i), byte(i)), tapes[k].next(t), "frame %d of stream %d", i, k)
				}
				require.Eventually(t, func() bool { sent, _ := rolls[k].counts(); return sent == each }, patience, time.Millisecond)
			}
			require.Eventually(t, func() bool { return !p.a.h.Sends(uuid(1)) }, patience, time.Millisecond, "what is over was taken off")
			require.EqualValues(t, streams*each, p.a.h.cfg.Stats.Snapshot().TxFrames)
		})
	}
}

// A hub has streams with many peers at once, and the loss of one connection concerns
// its peer alone.
func TestManyPeersAtOnce(t *testing.T) {
	m := newRoom(t, Config{})
	const peers = 20
	var far []*transporttest.Conn
	var rolls []*roll
	for i := 1; i <= peers; i++ {
		x, y := transporttest.Pair(transporttest.Options{Buffer: 64})
		m.h.AddSender(uuid(i), 0, x, Features{Native: true})
		far = append(far, y)
		rolls = append(rolls, newRoll(1, 1, make([]byte, 1000)))
		s := m.h.Senders(uuid(i))[0]
		s.Attach(rolls[i-1])
		s.Kick(true, true)
	}
	far[3].Close()
	l := m.hears(t)
	require.Equal(t, loss{uuid(4), true, l.cause}, l)
	for i, c := range far {
		if i == 3 {
			continue
		}
		_, err := io.ReadFull(c, make([]byte, transport.HeaderSize+1000))
		require.NoError(t, err)
		require.Eventually(t, func() bool { sent, _ := rolls[i].counts(); return sent == 1 }, patience, time.Millisecond)
	}
	require.Eventually(t, func() bool { _, dropped := rolls[3].counts(); return dropped == 1 }, patience, time.Millisecond)
	require.Empty(t, m.lost)
}

// Pools as PCCL builds them: numbers from 0; a hole is refused (quirk Q25), 0
// again replaces all, a number in the middle ends those above it.
func TestPools(t *testing.T) {
	m := newRoom(t, Config{})
	h := m.h
	ended := func(c *transporttest.Conn) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(patience))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
	recv := func(number uint32) *transporttest.Conn {
		a, b := transporttest.Pair(transporttest.Options{})
		h.AddReceiver(uuid(1), number, b)
		return a
	}
	var refused []uint32
	send := func(number uint32) *transporttest.Conn {
		a, b := transporttest.Pair(transporttest.Options{})
		if err := h.AddSender(uuid(1), number, b, Features{Native: true}); err != nil {
			refused = append(refused, number)
		}
		return a
	}
	for _, add := range []func(uint32) *transporttest.Conn{recv, send} {
		ended(add(1))
		ended(add(1 << 31))
		c0, c1, c2 := add(0), add(1), add(2)
		again := add(1)
		ended(c1)
		ended(c2)
		n0 := add(0)
		ended(c0)
		ended(again)
		h.Retain(func(wire.UUID) bool { return false }, func(wire.UUID) bool { return false })
		ended(n0)
		require.Zero(t, h.LiveSenders(uuid(1)))
	}
	h.Close()
	ended(recv(0))
	ended(send(0))
	require.Equal(t, []uint32{1, 1 << 31, 0}, refused, "who dialled is told")
	for range 10 {
		require.Contains(t, []error{errReplaced, errDropped}, m.hears(t).cause)
	}
	require.Empty(t, m.lost, "each is lost once")
}

// Who owns the hub is told of connections that peers have ended, and of no others.
func TestEndsAreTold(t *testing.T) {
	ended := make(chan wire.UUID, 16)
	m := newRoom(t, Config{Ended: func(u wire.UUID) { ended <- u }})
	end, far := transporttest.Pair(transporttest.Options{})
	m.h.AddReceiver(uuid(1), 0, end)
	far.Close()
	require.Equal(t, uuid(1), <-ended)
	m.hears(t)
	end, far = transporttest.Pair(transporttest.Options{})
	m.h.AddSender(uuid(2), 0, end, Features{Native: true})
	far.Close()
	require.Equal(t, uuid(2), <-ended)
	m.hears(t)

	for range 2 { // the second replaces the first
		end, _ = transporttest.Pair(transporttest.Options{})
		m.h.AddReceiver(uuid(3), 0, end)
	}
	m.h.Retain(func(wire.UUID) bool { return false }, func(wire.UUID) bool { return false })
	for range 2 {
		require.Contains(t, []error{errReplaced, errDropped}, m.hears(t).cause)
	}
	require.Empty(t, ended)
}

// measured is a tape that says how much scratch memory its frames found.
type measured struct {
	*tape
	scratch chan int
}

func (x measured) ReceiveFrame(r *Receiver, h transport.Header) error {
	x.scratch <- len(r.Scratch())
	return x.tape.ReceiveFrame(r, h)
}

// A connection has scratch memory for the largest frame that has come over it, not for the
// largest that could, in steps that do not cost each larger frame one of its own; and for no more than
// Config.FrameBytes, whatever is announced.
func TestScratchMemoryFollowsFrames(t *testing.T) {
	const most = 1 << 20
	p := newPair(t, Config{FrameBytes: most}, 1, transporttest.Options{Buffer: 4 << 20}, Features{})
	x := measured{newTape(), make(chan int, 16)}
	p.b.open(uuid(0), 1, 1, x)
	came := func(bytes int) int {
		put(t, p.out[0], 1, 1, make([]byte, bytes))
		require.Len(t, x.next(t), bytes)
		return <-x.scratch
	}
	used := func() int { return int(p.b.h.cfg.Pool.Stats().InUse) }
	require.Zero(t, used(), "nothing has come")
	require.GreaterOrEqual(t, came(1), MinFrameBytes+ScratchExtra)
	small := came(100)
	require.GreaterOrEqual(t, small, 100+ScratchExtra)
	require.LessOrEqual(t, used(), 8<<10)
	larger := came(small)
	require.GreaterOrEqual(t, larger, 2*small, "the next one is nearly as large")
	require.Equal(t, larger, came(10), "it stays")
	require.Equal(t, larger, came(larger-ScratchExtra))
	require.GreaterOrEqual(t, came(most), most+ScratchExtra)
	full := used()
	require.LessOrEqual(t, full, buf.Size(most+ScratchExtra))
	came(2 * most)
	require.Equal(t, full, used())
}

// A router that waits for a sink is woken when the connection is closed, and when
// its alarm is due.
func TestRoutersAreWoken(t *testing.T) {
	m := newRoom(t, Config{})
	m.waits = true
	far, near := transporttest.Pair(transporttest.Options{})
	m.h.AddReceiver(uuid(1), 0, near)
	r := <-m.receiver
	put(t, far, 1, 1, []byte{1})
	require.Eventually(t, func() bool { return m.waiting.Load() == 1 }, patience, time.Millisecond)
	r.Close(errTest)
	require.Equal(t, loss{uuid(1), false, errTest}, m.hears(t))

	woken := make(chan bool, 1)
	h := NewHub(Config{}, waker{m, woken})
	t.Cleanup(h.Close)
	alarmed := newReceiver(h, uuid(1), 0, near)
	for range 2 {
		alarmed.SetAlarm(time.Nanosecond)
		select {
		case <-woken:
		case <-time.After(patience):
			t.Fatal("the alarm did not ring")
		}
		alarmed.StopAlarm()
	}
}

type waker struct {
	*room
	woken chan bool
}

func (w waker) Wake() { w.woken <- true }

// A sink that is stopped in the middle of a frame lets go of it, and the rest of the
// frame is skipped; what a sink finds wrong with a frame ends the connection.
func TestSinksThatStop(t *testing.T) {
	m := newRoom(t, Config{})
	far, near := transporttest.Pair(transporttest.Options{})
	m.h.AddReceiver(uuid(1), 0, near)
	r := <-m.receiver
	x, y, bad := newTape(), newTape(), newTape()
	m.open(uuid(1), 1, 1, x)
	m.open(uuid(1), 2, 1, y)
	m.open(uuid(1), 3, 1, bad)
	frame := frameOf(1, 1, make([]byte, 1000))
	_, err := far.Write(frame[:500])
	require.NoError(t, err)
	require.Eventually(t, func() bool { return x.inside.Load() == 1 }, patience, time.Millisecond)
	x.Fail(errTest)
	r.Interrupt()
	require.Eventually(t, func() bool { return x.inside.Load() == 0 }, patience, time.Millisecond)
	_, err = far.Write(frame[500:])
	require.NoError(t, err)
	put(t, far, 2, 1, []byte{5})
	require.Equal(t, []byte{5}, y.next(t))
	require.EqualValues(t, 1, m.h.cfg.Stats.Snapshot().StaleFrames)
	bad.refuse = errTest
	put(t, far, 3, 1, []byte{1})
	require.Equal(t, loss{uuid(1), false, errTest}, m.hears(t))
	require.Empty(t, bad.failed, "only errors that name an operation are a sink's")
}
