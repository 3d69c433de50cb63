package message

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/message/fsm"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

var (
	together = fsm.Defaults().Together
	maxOpen  = fsm.Defaults().Open
)

var errTest = errors.New("the test gave up")

func uuid(i int) wire.UUID {
	var u wire.UUID
	binary.BigEndian.PutUint64(u[:], uint64(i)+1)
	return u
}

// nobody is the room beside this one.
type nobody struct{}

func (nobody) Route(*link.Receiver, transport.Header, *link.Early) (link.Sink, link.Verdict, error) {
	return nil, link.Drop, nil
}
func (nobody) Wake()                              {}
func (nobody) Connected(*link.Receiver)           {}
func (nobody) SenderLost(*link.Sender, error)     {}
func (nobody) ReceiverLost(*link.Receiver, error) {}
func (nobody) Regrouped(wire.UUID)                {}

// world is a group in one process.
type world struct {
	t   testing.TB
	ids []wire.UUID
	eng []*Engine
	// By from and to: the sender's end and the receiver's.
	near, far map[[2]int]*transporttest.Conn
}

func newWorld(t testing.TB, n int, o transporttest.Options) *world {
	w := &world{t: t, near: map[[2]int]*transporttest.Conn{}, far: map[[2]int]*transporttest.Conn{}}
	for i := range n {
		w.ids = append(w.ids, uuid(i))
		w.eng = append(w.eng, NewEngine(link.NewHub(link.Config{FrameBytes: 4 << 10}, nobody{})))
	}
	for i := range n {
		w.round(i, 1)
		w.eng[i].hub.Trust(w.ids...)
	}
	for i := range n {
		for k := range n {
			if i != k {
				w.connect(i, k, o)
			}
		}
	}
	t.Cleanup(func() {
		for _, e := range w.eng {
			e.Stop(errTest)
			e.hub.Close()
		}
	})
	return w
}

// connect gives i a connection to k, in the place of the one before.
func (w *world) connect(i, k int, o transporttest.Options) {
	a, b := transporttest.Pair(o)
	w.near[[2]int{i, k}], w.far[[2]int{i, k}] = a, b
	w.eng[k].hub.AddReceiver(w.ids[i], 0, b)
	w.eng[i].hub.AddSender(w.ids[k], 0, a, link.Features{Native: true, Flows: true})
}

func (w *world) round(i int, epoch uint64) {
	w.eng[i].Expect(epoch, w.ids)
	w.eng[i].Begin()
}

func (w *world) send(from, to int, tag uint64, data []byte) *Transfer {
	w.t.Helper()
	x, err := w.eng[from].Send(w.ids[to], tag, 1, data)
	require.NoError(w.t, err)
	return x
}

// recv receives; from -1: from any.
func (w *world) recv(at, from int, tag uint64, data []byte) *Transfer {
	w.t.Helper()
	var u wire.UUID
	if from >= 0 {
		u = w.ids[from]
	}
	x, err := w.eng[at].Receive(u, tag, 1, data)
	require.NoError(w.t, err)
	return x
}

func (w *world) ends(x *Transfer) (wire.UUID, error) {
	w.t.Helper()
	select {
	case <-x.Done():
		return x.Result()
	case <-time.After(patience):
		w.t.Fatal("a message does not end")
		return wire.UUID{}, nil
	}
}

func (w *world) ok(xs ...*Transfer) {
	w.t.Helper()
	for _, x := range xs {
		_, err := w.ends(x)
		require.NoError(w.t, err)
	}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed + i>>8)
	}
	return b
}

// quiet checks that nothing is left of any message.
func (w *world) quiet() {
	w.t.Helper()
	for _, e := range w.eng {
		require.Equal(w.t, State{}, e.State())
		require.Eventually(w.t, func() bool {
			for _, u := range w.ids {
				if e.hub.Sends(u) {
					return false
				}
			}
			return true
		}, patience, time.Millisecond, "a source stays attached")
		e.mu.Lock()
		for _, u := range w.ids {
			require.Equal(w.t, fsm.Load{}, e.m.Load(u))
		}
		e.mu.Unlock()
	}
}

// Messages of every size arrive, whichever end is first.
func TestMessagesArrive(t *testing.T) {
	defer invariants.WatchLocks()()
	for _, o := range []transporttest.Options{{}, {Buffer: 999, Piece: 333}} {
		w := newWorld(t, 2, o)
		for i, n := range []int{0, 1, 4 << 10, together, together + 1, 300_001} {
			for _, sendFirst := range []bool{true, false} {
				data, got := pattern(n, i), make([]byte, n)
				var s, r *Transfer
				if sendFirst {
					s = w.send(0, 1, 5, data)
				}
				r = w.recv(1, 0, 5, got)
				if !sendFirst {
					s = w.send(0, 1, 5, data)
				}
				w.ok(s, r)
				require.True(t, bytes.Equal(data, got))
			}
		}
		w.quiet()
	}
}

// Receives of one tag match in the order of the sends, also large ones among small
// ones, and more than may travel with their offers; tags do not mix.
func TestMessagesKeepTheirOrder(t *testing.T) {
	w := newWorld(t, 2, transporttest.Options{})
	const n = 60
	var all []*Transfer
	size := func(i int) int { return []int{10, together, together + 5}[i%3] }
	for i := range n {
		all = append(all, w.send(0, 1, uint64(i%2), pattern(size(i), i)))
	}
	got := make([][]byte, n)
	for _, tag := range []int{1, 0} {
		for i := tag; i < n; i += 2 {
			got[i] = make([]byte, size(i))
			all = append(all, w.recv(1, 0, uint64(tag), got[i]))
		}
	}
	w.ok(all...)
	for i := range n {
		require.True(t, bytes.Equal(pattern(size(i), i), got[i]), "message %d", i)
	}
	w.quiet()
}

// A receive from any member takes the offer that came first, and says whose it was.
func TestFromAny(t *testing.T) {
	w := newWorld(t, 3, transporttest.Options{})
	got := make([]byte, 3)
	r := w.recv(0, -1, 9, got)
	w.ok(w.send(2, 0, 9, []byte{1, 2, 3}))
	from, err := w.ends(r)
	require.NoError(t, err)
	require.Equal(t, w.ids[2], from)
	s := w.send(1, 0, 9, make([]byte, 100_000))
	r = w.recv(0, -1, 9, make([]byte, 100_000))
	w.ok(r, s)
	from, _ = r.Result()
	require.Equal(t, w.ids[1], from)
	w.quiet()
}

// Ends that name different sizes both hear of it, and no byte is written.
func TestMessagesOfOtherSizes(t *testing.T) {
	for _, n := range []int{8, 1 << 20} {
		w := newWorld(t, 2, transporttest.Options{})
		got := make([]byte, n-4)
		s, r := w.send(0, 1, 1, pattern(n, 1)), w.recv(1, 0, 1, got)
		for _, x := range []*Transfer{s, r} {
			_, err := w.ends(x)
			require.ErrorIs(t, err, errs.Mismatch)
			require.ErrorContains(t, err, fmt.Sprint(n))
			require.ErrorContains(t, err, fmt.Sprint(n-4))
		}
		require.Equal(t, make([]byte, n-4), got)
		w.quiet()
	}
}

// Either end may give a message up at any time: the other one hears of it, the buffer
// is its own at once, and the connection goes on.
func TestMessagesAreGivenUp(t *testing.T) {
	for _, n := range []int{100, 1 << 20} {
		for _, taken := range []bool{false, true} {
			for _, sender := range []bool{false, true} {
				w := newWorld(t, 2, transporttest.Options{Buffer: 5000})
				s := w.send(0, 1, 1, pattern(n, 1))
				var r *Transfer
				if taken {
					r = w.recv(1, 0, 1, make([]byte, n))
					require.Eventually(t, r.matched, patience, time.Millisecond)
				}
				if sender {
					s.Cancel(errTest)
				} else if taken {
					r.Cancel(errTest)
				}
				if !taken && !sender {
					s.Cancel(errTest)
				}
				_, err := w.ends(s)
				if taken && err == nil {
					w.ok(r) // it was through
					continue
				}
				require.Error(t, err)
				if taken {
					w.ends(r)
				}
				data, got := pattern(70_000, 3), make([]byte, 70_000)
				w.ok(w.send(0, 1, 2, data), w.recv(1, 0, 2, got))
				require.True(t, bytes.Equal(data, got))
				w.quiet()
			}
		}
	}
}

// The end of a connection after any number of bytes ends what uses it, at both ends.
func TestConnectionsThatEnd(t *testing.T) {
	for cut := 0; cut < 220_000; cut += 9_973 {
		for _, way := range [][2]int{{0, 1}, {1, 0}} {
			w := newWorld(t, 2, transporttest.Options{Buffer: 3000})
			w.eng[0].m.Patience, w.eng[1].m.Patience = 5*time.Millisecond, 5*time.Millisecond
			s := w.send(0, 1, 1, pattern(200_000, 1))
			small := w.send(0, 1, 2, pattern(100, 1))
			r := w.recv(1, 0, 1, make([]byte, 200_000))
			w.cutAfter(way, cut, s)
			w.ends(s)
			w.ends(small)
			_, err := w.ends(s)
			if err == nil {
				w.ok(r)
			} else {
				require.ErrorIs(t, err, errs.RankConnectionLost)
				if !r.matched() {
					w.eng[1].Lost(w.ids[0], errTest) // it would take what the sender sends next
				}
				w.ends(r)
			}
		}
	}
}

// What was offered over a connection that has ended is not received any more: its sender
// has failed, and would answer nothing.
func TestOffersEndWithTheirConnection(t *testing.T) {
	w := newWorld(t, 2, transporttest.Options{})
	for _, n := range []int{10, 1 << 20} {
		s := w.send(0, 1, 1, make([]byte, n))
		require.Eventually(t, func() bool { return w.eng[1].State().Offers > 0 }, patience, time.Millisecond)
		w.far[[2]int{0, 1}].Close()
		_, err := w.ends(s)
		require.ErrorIs(t, err, errs.RankConnectionLost)
		require.Eventually(t, func() bool { return w.eng[1].State().Offers == 0 }, patience, time.Millisecond)

		r := w.recv(1, 0, 1, make([]byte, n)) // of the one that is sent again
		w.connect(0, 1, transporttest.Options{})
		w.ok(w.send(0, 1, 1, make([]byte, n)), r)
	}
	w.quiet()
}

// A member that has a message and leaves says so: its last word counts, though the news
// that it has gone is faster.
func TestLastWords(t *testing.T) {
	w := newWorld(t, 2, transporttest.Options{})
	w.near[[2]int{1, 0}].Stall(true)
	s, r := w.send(0, 1, 1, make([]byte, 100)), w.recv(1, 0, 1, make([]byte, 100))
	w.ok(r)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.eng[1].Flush(ctx)
	require.NoError(t, ctx.Err())
	w.far[[2]int{0, 1}].Close()
	w.eng[0].Lost(w.ids[1], errTest)
	require.Eventually(t, func() bool { return w.eng[0].hub.LiveSenders(w.ids[1]) == 0 }, patience, time.Millisecond)
	w.near[[2]int{1, 0}].Stall(false)
	w.ok(s)
}

// A member that leaves waits until what it has to say is in the connection, and no longer
// than it was told to.
func TestFlush(t *testing.T) {
	w := newWorld(t, 2, transporttest.Options{Buffer: 4 << 10})
	w.near[[2]int{1, 0}].Stall(true)
	w.send(1, 0, 1, make([]byte, 60<<10))
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	flush := func() {
		w.eng[1].Flush(ctx)
		over <- ctx.Err()
	}
	go flush()
	cancel()
	require.ErrorIs(t, <-over, context.Canceled)
	ctx = t.Context()
	go flush()
	w.near[[2]int{1, 0}].Stall(false)
	require.NoError(t, <-over)
	require.Eventually(t, func() bool { return w.eng[0].State().Offers == 1 }, patience, time.Millisecond)
}

// matched reports whether a receive has an offer.
func (t *Transfer) matched() bool {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	return t.Number() > 0
}

// cutAfter ends the connection of a way when s has sent so many bytes, or is over.
func (w *world) cutAfter(way [2]int, bytes int, s *Transfer) {
	require.Eventually(w.t, func() bool {
		select {
		case <-s.Done():
			return true
		default:
		}
		s.e.mu.Lock()
		defer s.e.mu.Unlock()
		return s.Moved() >= min(bytes, 200_000)
	}, patience, 10*time.Microsecond)
	w.far[way].Close()
}

// A member that the master names as gone ends what waits for it, and receives from any.
func TestMembersThatLeave(t *testing.T) {
	w := newWorld(t, 3, transporttest.Options{})
	w.eng[0].m.Patience = 5 * time.Millisecond // its connections stay
	gone := []*Transfer{w.recv(0, 1, 1, make([]byte, 4)), w.recv(0, -1, 2, make([]byte, 4)), w.send(0, 1, 3, make([]byte, 4))}
	stays := w.recv(0, 2, 1, make([]byte, 4))
	w.eng[0].Lost(w.ids[1], errTest)
	for _, x := range gone {
		_, err := w.ends(x)
		require.ErrorIs(t, err, errs.RankConnectionLost)
	}
	w.ok(w.send(2, 0, 1, make([]byte, 4)), stays)
	// What begins later would wait for ever.
	for _, from := range []wire.UUID{w.ids[1], {}} {
		_, err := w.eng[0].Receive(from, 1, 1, make([]byte, 4))
		require.ErrorIs(t, err, errs.RankConnectionLost)
	}
	_, err := w.eng[0].Send(w.ids[1], 1, 1, nil)
	require.ErrorIs(t, err, errs.RankConnectionLost)
	w.ok(w.send(2, 0, 1, make([]byte, 4)), w.recv(0, 2, 1, make([]byte, 4)))
	w.eng[0].Expect(2, w.ids)
	w.eng[0].Begin()
	_, err = w.eng[0].Receive(w.ids[1], 1, 2, make([]byte, 4))
	require.NoError(t, err)
}

// A round ends everything. What is offered for its epoch before this member has heard of
// its end is kept, and what is left of older epochs is dropped.
func TestRoundsEndMessages(t *testing.T) {
	w := newWorld(t, 2, transporttest.Options{})
	r := w.recv(1, 0, 1, make([]byte, 4))
	w.eng[1].Expect(2, w.ids)
	_, err := w.ends(r)
	require.ErrorIs(t, err, errs.RankConnectionLost)
	_, err = w.eng[1].Receive(w.ids[0], 1, 1, nil)
	require.ErrorIs(t, err, errs.Busy)

	old := w.send(0, 1, 1, []byte{1})
	w.eng[0].Expect(2, w.ids)
	_, err = w.ends(old)
	require.ErrorIs(t, err, errs.RankConnectionLost)
	w.eng[0].Begin()
	s, err := w.eng[0].Send(w.ids[1], 1, 2, []byte{2})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.eng[1].State().Offers == 1 }, patience, time.Millisecond)
	w.eng[1].Begin()
	got := make([]byte, 1)
	r, err = w.eng[1].Receive(w.ids[0], 1, 2, got)
	require.NoError(t, err)
	w.ok(r, s)
	require.Equal(t, []byte{2}, got)
	w.quiet()
}

// More than a member may have open is refused here, and not there.
func TestTooManyMessages(t *testing.T) {
	w := newWorld(t, 2, transporttest.Options{})
	var all []*Transfer
	for range maxOpen {
		all = append(all, w.send(0, 1, 1, make([]byte, together)))
	}
	_, err := w.eng[0].Send(w.ids[1], 1, 1, nil)
	require.ErrorIs(t, err, errs.Busy)
	require.Eventually(t, func() bool { return w.eng[1].State().Offers == maxOpen }, patience, time.Millisecond)
	w.eng[1].mu.Lock()
	require.LessOrEqual(t, w.eng[1].m.Load(w.ids[0]).HeldBytes, fsm.Defaults().Ahead)
	w.eng[1].mu.Unlock()
	for range maxOpen {
		all = append(all, w.recv(1, 0, 1, make([]byte, together)))
	}
	w.ok(all...)
	w.quiet()
}

// What no honest peer sends costs it its connection, and nothing else.
func TestHostileMessages(t *testing.T) {
	frame := func(stream uint64, payload ...byte) []byte {
		b := make([]byte, transport.HeaderSize, transport.HeaderSize+len(payload))
		transport.Header{Payload: len(payload), Tag: 1, Stream: stream}.Put((*[transport.HeaderSize]byte)(b))
		return append(b, payload...)
	}
	offer := func(what fsm.What, size, data int) []byte {
		return append(appendHead(nil, fsm.Frame{What: what, Epoch: 1, Size: uint64(size)}), make([]byte, data)...)
	}
	const another = "another connection of the pool"
	number := func(name string) uint32 {
		if name == another {
			return 1
		}
		return 0
	}
	flood := []byte{}
	for i := range 20 {
		flood = append(flood, frame(mark|uint64(100+i), offer(fsm.OfferWhole, together, together)...)...)
	}
	many := []byte{}
	for i := range maxOpen + 1 {
		many = append(many, frame(mark|uint64(100+i), offer(fsm.OfferBare, 1<<20, 0)...)...)
	}
	for name, b := range map[string][]byte{
		"unknown":            frame(mark|1, 99),
		"short offer":        frame(mark|1, byte(fsm.OfferWhole), 0),
		"offer without data": frame(mark|1, offer(fsm.OfferWhole, 5, 4)...),
		"large offer":        frame(mark|1, offer(fsm.OfferWhole, together+1, together+1)...),
		"data behind":        frame(mark|1, offer(fsm.OfferBare, 5, 4)...),
		another:              frame(mark|1, offer(fsm.OfferBare, 5, 0)...),
		"twice":              slices.Concat(frame(mark|1, offer(fsm.OfferBare, 5, 0)...), frame(mark|1, offer(fsm.OfferBare, 5, 0)...)),
		"flood":              flood,
		"many":               many,
		"long answer":        frame(mark|1, byte(fsm.Take), 1),
		"long withdrawal":    frame(mark|1, byte(fsm.Withdrawn), 1),
		"short refusal":      frame(mark|1, byte(fsm.Refused), 1),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, transporttest.Options{})
			a, b2 := transporttest.Pair(transporttest.Options{})
			w.eng[1].hub.AddReceiver(w.ids[2], number(name), b2)
			go a.Write(b)
			require.True(t, closes(a), "it stays open")
			w.ok(w.send(1, 0, 7, []byte{1}), w.recv(0, 1, 7, make([]byte, 1)))
		})
	}
}

func closes(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Read(make([]byte, 1))
	return err != nil && !transport.IsTimeout(err)
}

// What a message waits for is told at both ends.
func TestStateOfMessages(t *testing.T) {
	w := newWorld(t, 2, transporttest.Options{Buffer: 10_000})
	at := func(member int, what string) []TransferState {
		t.Helper()
		var st State
		require.Eventually(t, func() bool {
			st = w.eng[member].State()
			return len(st.Transfers) > 0 && strings.Contains(st.Transfers[0].Waits, what)
		}, patience, time.Millisecond, "%s", what)
		return st.Transfers
	}
	large := make([]byte, together+1)
	var list []*Transfer
	list = append(list, w.send(0, 1, 7, large))
	got := at(0, uuid(1).Short()+": does not receive it yet")[0]
	got.Since, got.Waits = 0, ""
	require.Equal(t, TransferState{Sends: true, Peer: uuid(1), Tag: 7, Bytes: together + 1}, got)
	require.Eventually(t, func() bool { return w.eng[1].State().Offers == 1 }, patience, time.Millisecond)
	small := w.send(0, 1, 9, large[:3])
	require.Equal(t, 3, at(0, "does not receive it yet")[1].Moved, "it has gone with its offer")

	w.near[[2]int{0, 1}].Stall(true)
	list = append(list, w.recv(1, 0, 7, make([]byte, len(large))))
	require.Equal(t, uuid(0), at(1, uuid(0).Short()+": sends it")[0].Peer)
	at(0, fmt.Sprintf("sender to %s: has sent ", uuid(1).Short()))
	w.near[[2]int{0, 1}].Stall(false)
	w.ok(list...)

	named := w.recv(1, 0, 8, nil)
	require.Equal(t, uuid(0).Short(), at(1, "peer "+uuid(0).Short()+": has sent nothing with this tag")[0].Peer.Short())
	any := w.recv(1, -1, 8, nil)
	var waits []string // the clock of some systems takes both for equally old
	for _, x := range w.eng[1].State().Transfers {
		waits = append(waits, x.Waits)
	}
	require.ElementsMatch(t, []string{"peer " + uuid(0).Short() + ": has sent nothing with this tag", "any member: has sent nothing with this tag"}, waits)
	w.ok(named, w.send(0, 1, 8, nil))
	w.ok(any, w.send(0, 1, 8, nil))
	w.ok(w.recv(1, 0, 9, make([]byte, 3)), small)
	w.quiet()
}
