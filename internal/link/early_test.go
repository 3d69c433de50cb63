package link

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// keeper is a room that keeps frames without a sink, and a neighbour that sends.
type keeper struct {
	*room
	t    *testing.T
	prev *transporttest.Conn
}

func newKeeper(t *testing.T) *keeper {
	k := &keeper{room: newRoom(t, Config{}), t: t}
	k.keeps = true
	k.h.Trust(uuid(1))
	var in *transporttest.Conn
	k.prev, in = transporttest.Pair(transporttest.Options{Buffer: 4 << 20})
	k.h.AddReceiver(uuid(1), 0, in)
	return k
}

// when waits until what is kept is as it should be.
func (k *keeper) when(is func(EarlyUse) bool) {
	k.t.Helper()
	require.Eventually(k.t, func() bool { return is(k.h.Early()) }, patience, time.Millisecond)
}

func (k *keeper) whenKept(bytes int) {
	k.t.Helper()
	k.when(func(u EarlyUse) bool { return u.Bytes == bytes })
}

// What was kept of a stream comes to its sink in its order, before and with what is
// read later, and its memory is free then: that alone.
func TestKeptFramesAreReplayed(t *testing.T) {
	k := newKeeper(t)
	sizes := []int{1, 100, smallPart, 1, 3 * largePart, 50}
	all := 0
	for i, n := range sizes {
		put(t, k.prev, 1, 1, append(make([]byte, n-1), byte(i)))
		all += transport.HeaderSize + n
	}
	put(t, k.prev, 2, 1, make([]byte, 300))
	k.whenKept(all + transport.HeaderSize + 300)
	x := newTape()
	k.open(uuid(1), 1, 1, x)
	put(t, k.prev, 1, 1, []byte{99})
	for i, n := range sizes {
		b := x.next(t)
		require.Len(t, b, n)
		require.Equal(t, byte(i), b[n-1])
	}
	require.Equal(t, []byte{99}, x.next(t))
	require.Equal(t, EarlyUse{Bytes: transport.HeaderSize + 300, Memory: earlyCost + partCost + transport.HeaderSize + 300}, k.h.Early())
	k.h.DropEarly(func(tag, stream uint64) bool { return tag == 2 && stream == 1 })
	require.Zero(t, k.h.Early())
	require.EqualValues(t, 1, k.h.cfg.Stats.Snapshot().StaleFrames)
	require.Nil(t, k.h.TakeEarly(uuid(1), 2, 1))
}

// However small the frames are, what is kept takes memory in proportion to what
// came; and it holds all that the protocol allows a neighbour to send.
func TestTinyEarlyFrames(t *testing.T) {
	frame := len(frameOf(1, 1, []byte{1}))
	for _, tags := range []int{1, 8192} {
		k := newKeeper(t)
		const many = 40_000
		var b []byte
		for i := range many {
			b = append(b, frameOf(uint64(i%tags), 1, []byte{1})...)
		}
		_, err := k.prev.Write(b)
		require.NoError(t, err)
		k.whenKept(many * frame)
		require.Less(t, k.h.Early().Memory, 2*many*frame+tags*(earlyCost+partCost))
		require.Zero(t, k.h.cfg.Pool.Stats().InUse)
		k.h.DropEarly(func(_, stream uint64) bool { return stream == 1 })
		require.Zero(t, k.h.Early())
	}
}

// What is announced and never comes takes next to no memory, and what comes is
// read piece by piece into memory that was reserved before it was taken.
func TestAnnouncedEarlyFrames(t *testing.T) {
	k := newKeeper(t)
	big := frameOf(1, 1, make([]byte, 5<<20))
	_, err := k.prev.Write(big[:len(big)/2])
	require.NoError(t, err)
	k.when(func(u EarlyUse) bool { return u.Memory > len(big)/2+largePart }) // with the part of the last bytes
	all := k.h.Early().Memory
	require.Less(t, all, len(big)*2/3)
	require.LessOrEqual(t, k.h.cfg.Pool.Stats().InUse, int64(all))
	const many = 24
	var far []net.Conn
	for i := range many {
		there, here := transporttest.Pair(transporttest.Options{})
		t.Cleanup(func() { there.Close() })
		k.h.AddReceiver(uuid(100+i), 0, here)
		_, err := there.Write(big[:transport.HeaderSize])
		require.NoError(t, err)
		far = append(far, there)
	}
	k.when(func(u EarlyUse) bool { return u.Strange >= many*smallPart })
	require.Less(t, k.h.Early().Strange, many*2*smallPart)
	for _, c := range far {
		c.Close()
	}
	k.when(func(u EarlyUse) bool { return u.Strange == 0 })
	k.prev.Close()
	k.when(func(u EarlyUse) bool { return u == EarlyUse{} && k.h.cfg.Pool.Stats().InUse == 0 })
}

// What is kept of one connection is bounded: the connection that brings more ends,
// and all of it is forgotten.
func TestEarlyMemoryIsBounded(t *testing.T) {
	k := newKeeper(t)
	p := make([]byte, 1<<20)
	for tag := range uint64(10) {
		if _, err := k.prev.Write(frameOf(tag, 1, p)); err != nil {
			break
		}
	}
	l := k.hears(t)
	require.ErrorContains(t, l.cause, "more data arrived")
	require.Zero(t, k.h.Early())
	require.LessOrEqual(t, k.h.cfg.Pool.Stats().PeakUsed, int64(maxEarly+(3<<20)))
}

// Strangers who fill what may be kept of them lose their own connections, and
// cost a neighbour nothing.
func TestStrangersDoNotFillTheMemoryOfNeighbours(t *testing.T) {
	k := newKeeper(t)
	for i := range 3 {
		there, here := transporttest.Pair(transporttest.Options{Buffer: 8 << 20})
		t.Cleanup(func() { there.Close() })
		k.h.AddReceiver(uuid(100+i), 0, here)
		for range 4 {
			_, _ = there.Write(frameOf(1, 1, make([]byte, 500<<10)))
		}
		there.SetReadDeadline(time.Now().Add(patience))
		_, err := there.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, transport.IsTimeout(err), "it was not closed")
	}
	require.LessOrEqual(t, k.h.Early().Strange, maxEarlyStrange)
	put(t, k.prev, 2, 1, []byte{1})
	k.when(func(u EarlyUse) bool { return u.Memory > u.Strange })
	x := newTape()
	k.open(uuid(1), 2, 1, x)
	require.Equal(t, []byte{1}, x.next(t))
}

// What is kept of a peer counts as a neighbour's as soon as it is one, and as a
// stranger's when it no longer is.
func TestEarlyMemoryFollowsTheNeighbour(t *testing.T) {
	k := newKeeper(t)
	put(t, k.prev, 2, 1, []byte{1})
	k.whenKept(transport.HeaderSize + 1)
	u := k.h.Early()
	require.Positive(t, u.Memory)
	require.Zero(t, u.Strange)
	k.h.Forget(func(wire.UUID) bool { return false })
	require.Equal(t, EarlyUse{Bytes: u.Bytes, Memory: u.Memory, Strange: u.Memory}, k.h.Early())
	k.h.Trust(uuid(1))
	require.Equal(t, u, k.h.Early())
}

// What a closed connection brought early is forgotten.
func TestEarlyFramesOfALostConnection(t *testing.T) {
	k := newKeeper(t)
	put(t, k.prev, 2, 1, []byte{1})
	k.whenKept(transport.HeaderSize + 1)
	k.prev.Close()
	k.hears(t)
	require.Zero(t, k.h.Early())
}

// A stream may come over several connections: what each of them has brought is kept, and
// what one that ends has brought is forgotten alone.
func TestEarlyFramesOfTwoConnections(t *testing.T) {
	defer invariants.WatchLocks()()
	k := newKeeper(t)
	put(t, k.prev, 2, 1, []byte{1})
	k.whenKept(transport.HeaderSize + 1)
	again, in := transporttest.Pair(transporttest.Options{})
	k.h.AddReceiver(uuid(1), 1, in)
	third, in := transporttest.Pair(transporttest.Options{})
	k.h.AddReceiver(uuid(1), 2, in)
	put(t, again, 2, 1, []byte{2, 3})
	put(t, third, 2, 1, []byte{4})
	k.whenKept(3*transport.HeaderSize + 4)
	third.Close()
	k.whenKept(2*transport.HeaderSize + 3)
	x := newTape()
	k.open(uuid(1), 2, 1, x)
	require.Equal(t, []byte{1}, x.next(t))
	require.Equal(t, []byte{2, 3}, x.next(t))
	require.Empty(t, x.frames)
	require.Zero(t, k.h.Early())
	again.Close()
}

// What a connection that has ended has read last is not kept: nobody would forget it.
func TestNothingIsKeptOfAConnectionThatHasEnded(t *testing.T) {
	k := newKeeper(t)
	_, in := transporttest.Pair(transporttest.Options{})
	r := newReceiver(k.h, uuid(1), 0, in)
	frame := func() *Early {
		x := &Early{r: r, key: earlyKey{r, 2, 1}, frames: 1, bytes: transport.HeaderSize + 1, cost: earlyCost, parts: [][]byte{make([]byte, transport.HeaderSize+1)}}
		k.h.mu.Lock()
		defer k.h.mu.Unlock()
		require.True(t, k.h.reserve(uuid(1), x.cost))
		return x
	}
	k.h.Keep(frame())
	require.Equal(t, transport.HeaderSize+1, k.h.Early().Bytes)
	r.Close(errDropped)
	k.h.Keep(frame())
	require.Zero(t, k.h.Early())
	require.Empty(t, k.h.kept.early)
}
