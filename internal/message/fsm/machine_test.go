package fsm

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/diagram"
	"github.com/gopccl/gopccl/internal/wire"
)

var errTest = errors.New("the test gave up")

var (
	me, you, third = wire.UUID{1}, wire.UUID{2}, wire.UUID{3}
	all            = []wire.UUID{me, you, third}
)

// member returns a machine in epoch 1 that hears you over connection 1 and speaks to it
// over connection 2.
func member() *Machine {
	m := New(Config{Together: 4, Ahead: 10, Open: 3, Patience: time.Second})
	m.Expect(1, all)
	m.Begin()
	m.Came(you, 1)
	m.Way(0, you, 2)
	return m
}

func send(t *testing.T, m *Machine, n int) *Transfer {
	x := &Transfer{Tag: 1, Buf: make([]byte, n)}
	require.NoError(t, m.Send(you, 1, x))
	return x
}

func receive(t *testing.T, m *Machine, from wire.UUID, n int) *Transfer {
	x := &Transfer{Tag: 1, Buf: make([]byte, n)}
	require.NoError(t, m.Receive(from, 1, x))
	return x
}

// hear has m hear a word of you.
func hear(t *testing.T, m *Machine, what What, number, size uint64) {
	f := Frame{What: what, Tag: 1, Number: number, Epoch: 1, Size: size}
	if what == OfferWhole {
		f.Data = make([]byte, size)
	}
	require.NoError(t, m.Heard(you, m.peers[you].in, f))
}

// said returns what m says to you from now on.
func said(m *Machine) (words []What) {
	for {
		f, ok := m.Next(you, m.Out(you))
		if !ok {
			return words
		}
		words = append(words, f.What)
	}
}

// The states that doc.go draws are those that there are.
func TestDrawing(t *testing.T) {
	src, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	names := map[State]string{Offered: "Offered", Waiting: "Waiting", Moving: "Moving", Over: "Over"}
	var seen []diagram.Edge
	goes := func(x *Transfer, label string, do func()) {
		from := names[x.State()]
		do()
		seen = append(seen, diagram.Edge{From: from, Label: label, To: names[x.State()]})
	}
	m := member()
	x := send(t, m, 8)
	said(m)
	goes(x, "take", func() { hear(t, m, Take, 1, 0) })
	m.NextPart(x, 8)
	goes(x, "done", func() { hear(t, m, Done, 1, 0) })
	x = send(t, m, 2)
	said(m)
	goes(x, "done", func() { hear(t, m, Done, 2, 0) })
	x = receive(t, m, you, 8)
	goes(x, "offer", func() { hear(t, m, OfferBare, 1, 8) })
	require.True(t, m.BeginPart(x))
	goes(x, "whole", func() { m.EndPart(x, 8) })
	x = receive(t, m, you, 2)
	goes(x, "whole", func() { hear(t, m, OfferWhole, 2, 2) })
	require.ElementsMatch(t, diagram.Read(string(src)), seen)
}

// What came over a connection that has ended is not received: its sender would not hear
// of that.
func TestOffersEndWithTheirConnection(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		m := member()
		hear(t, m, OfferBare, 1, 8)
		hear(t, m, OfferWhole, 2, 2)
		moving := receive(t, m, you, 8)
		if replaced {
			m.Came(you, 3)
			m.Unheard(you, 1, errTest)
		} else {
			m.Unheard(you, 1, errTest)
		}
		require.ErrorIs(t, moving.Err(), errs.RankConnectionLost)
		require.Zero(t, m.Offers())
		require.Equal(t, Waiting, receive(t, m, you, 2).State())
		require.Equal(t, Load{Unsaid: 1}, m.Load(you), "it says that it has given up")
	}
}

// A connection that came before the one in use is not used, whenever it is told.
func TestConnectionsInTheirOrder(t *testing.T) {
	m := member()
	m.Came(you, 5)
	m.Came(you, 3)
	require.NoError(t, m.Heard(you, 3, Frame{What: OfferWhole, Number: 1, Epoch: 1}))
	require.Zero(t, m.Offers())
	require.NoError(t, m.Heard(you, 5, Frame{What: OfferWhole, Number: 1, Epoch: 1}))
	require.Equal(t, 1, m.Offers())
	m.Unheard(you, 3, errTest)
	require.Equal(t, 1, m.Offers())
}

// A member that fails a message tells the other end, which may not see why.
func TestFailuresAreTold(t *testing.T) {
	m := member()
	s := send(t, m, 8)
	said(m)
	hear(t, m, OfferBare, 1, 8)
	r := receive(t, m, you, 8)
	require.Equal(t, []What{Take}, said(m))
	m.Came(you, 3)
	require.ErrorIs(t, s.Err(), errs.RankConnectionLost)
	require.ErrorIs(t, r.Err(), errs.RankConnectionLost)
	require.Equal(t, []What{Withdrawn, GivenUp}, said(m))
}

// What ends with the connection to a member has its last words awaited, and what is begun
// after that goes on.
func TestLastWordsAreAwaited(t *testing.T) {
	m := member()
	old, done := send(t, m, 8), send(t, m, 2)
	said(m)
	m.Unsaid(0, you, 2, errTest)
	at, due := m.Deadline()
	require.True(t, due)
	require.Equal(t, m.Patience, at)
	hear(t, m, Done, 2, 0)
	require.NoError(t, done.Err())
	m.Way(0, you, 4)
	other := send(t, m, 2)
	m.Tick(at - 1)
	require.Equal(t, Offered, old.State())
	m.Tick(at)
	require.ErrorIs(t, old.Err(), errs.RankConnectionLost)
	require.Equal(t, Offered, other.State())
	_, due = m.Deadline()
	require.False(t, due)
}

// Another connection takes what none has taken yet, and no more.
func TestWordsOfAnotherConnection(t *testing.T) {
	m := member()
	old := send(t, m, 2)
	said(m)
	unsaid := send(t, m, 2)
	m.Way(0, you, 4)
	_, ok := m.Next(you, 2)
	require.False(t, ok)
	require.Equal(t, []What{OfferWhole}, said(m))
	m.Tick(m.Patience)
	require.Error(t, old.Err())
	require.Equal(t, Offered, unsaid.State())
}

// A connection that takes nothing cannot have words pile up.
func TestUnsaidWordsAreBounded(t *testing.T) {
	m := member()
	for range 100 {
		m.Cancel(send(t, m, 4), errTest)
		require.Equal(t, Load{}, m.Load(you))
	}
	// Nor can a member that does not read its answers.
	number := uint64(0)
	accepts := func(what What) bool {
		number++
		size := uint64(2)
		f := Frame{What: what, Tag: 1, Number: number, Epoch: 1, Size: size}
		if what == OfferWhole {
			f.Data = make([]byte, size)
		}
		return m.Heard(you, 1, f) == nil
	}
	for i := range m.Open {
		x := receive(t, m, you, 2)
		require.True(t, accepts([]What{OfferWhole, OfferBare}[i%2]))
		m.Cancel(x, errTest) // at once, or it is there already
	}
	require.Equal(t, Load{Held: 3, Unsaid: 3}, m.Load(you))
	require.False(t, accepts(OfferWhole))
	hear(t, m, Withdrawn, 2, 0)
	require.Equal(t, 2, m.Load(you).Held)
	require.Equal(t, []What{Done, Done}, said(m))
	require.Equal(t, Load{}, m.Load(you))
	require.True(t, accepts(OfferWhole))

	// A new connection of an honest member begins with nothing.
	receive(t, m, you, 2)
	require.Equal(t, 1, m.Load(you).Held)
	m.Came(you, 3)
	require.Zero(t, m.Load(you).Held)
}

// Words without a connection fail what they are about.
func TestNoWay(t *testing.T) {
	m := member()
	heard := send(t, m, 8)
	said(m)
	s, other := send(t, m, 8), receive(t, m, third, 1)
	m.NoWay(0, you, errTest)
	require.ErrorIs(t, s.Err(), errs.RankConnectionLost)
	require.Equal(t, Offered, heard.State(), "its answer may be on its way")
	m.Tick(m.Patience)
	require.ErrorIs(t, heard.Err(), errs.RankConnectionLost)
	require.Equal(t, Waiting, other.State())
	require.Equal(t, Load{}, m.Load(you))
}

// No buffer is given back while something touches it.
func TestBuffersAreGivenBackLast(t *testing.T) {
	m := member()
	s := send(t, m, 8)
	said(m)
	hear(t, m, Take, 1, 0)
	m.NextPart(s, 3)
	hear(t, m, OfferBare, 1, 8)
	r := receive(t, m, you, 8)
	m.BeginPart(r)
	m.Effects()
	freed := func(x *Transfer) bool { return slices.Contains(m.Effects(), Effect{Do: Free, Of: x}) }
	m.Cancel(s, errTest)
	require.False(t, freed(s))
	m.Cancel(r, errTest)
	require.False(t, freed(r))
	m.Released(s, false)
	m.Settle(s)
	require.True(t, freed(s))
	m.EndPart(r, 3)
	require.True(t, freed(r))
	m.Settle(s)
	require.Empty(t, m.Effects(), "once")
}

// What no honest member says is an error.
func TestDishonestWords(t *testing.T) {
	m := member()
	send(t, m, 8)
	send(t, m, 2)
	for _, f := range []Frame{{What: Take, Number: 1}, {What: Done, Number: 1}, {What: Done, Number: 2}} {
		require.Error(t, m.Heard(you, 1, f), "it was not offered yet")
	}
	said(m)
	require.Error(t, m.Heard(you, 1, Frame{What: Done, Number: 1}), "nothing was sent")
	require.Error(t, m.Heard(you, 1, Frame{What: Take, Number: 2}), "it came with its offer")
	hear(t, m, Take, 1, 0)
	require.Error(t, m.Heard(you, 1, Frame{What: Take, Number: 1}), "twice")
	hear(t, m, Done, 99, 0) // which may have been given up
	require.NoError(t, m.Heard(third, 1, Frame{What: OfferBare, Epoch: 1}), "not its connection")
	require.Zero(t, m.Offers())
}

// Offers of the round that runs are kept until it is over, and no others.
func TestOffersOfRounds(t *testing.T) {
	m := member()
	hear(t, m, OfferBare, 1, 8)
	m.Expect(2, all)
	require.Zero(t, m.Offers())
	for epoch := range uint64(4) {
		require.NoError(t, m.Heard(you, 1, Frame{What: OfferWhole, Tag: 1, Number: 2 + epoch, Epoch: epoch, Size: 1, Data: []byte{byte(epoch)}}))
	}
	require.Equal(t, 1, m.Offers())
	require.ErrorIs(t, m.Receive(you, 2, &Transfer{}), errs.Busy)
	m.Begin()
	x := &Transfer{Tag: 1, Buf: make([]byte, 1)}
	require.NoError(t, m.Receive(you, 2, x))
	require.Equal(t, Over, x.State())
	require.Equal(t, []byte{2}, x.Buf)
	require.Equal(t, 1, m.Load(you).Held)
	said(m)
	require.Equal(t, Load{}, m.Load(you))
}

// What is kept of members and connections goes with them.
func TestNothingIsKeptOfThoseWhoLeft(t *testing.T) {
	m := member()
	send(t, m, 2)
	m.Came(wire.UUID{9}, 7)
	m.Unheard(wire.UUID{9}, 7, errTest)
	m.Unheard(you, 1, errTest)
	m.Expect(2, []wire.UUID{me})
	require.Empty(t, m.peers)
	require.Empty(t, m.order)
}
