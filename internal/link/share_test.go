package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// Two rooms share a hub: each gets the frames with its mark, and both hear of connections.
func TestTwoRoomsShareAHub(t *testing.T) {
	const mark = uint64(3) << 59
	first := newRoom(t, Config{})
	second := newRoom(t, Config{})
	first.h.Share(mark, second)
	x, y := newTape(), newTape()
	first.open(uuid(1), 7, 5, x)
	second.open(uuid(1), 7, mark|5, y)
	send, in := transporttest.Pair(transporttest.Options{})
	first.h.AddReceiver(uuid(1), 0, in)
	write := func(stream uint64, p string) {
		_, err := send.Write(frameOf(7, stream, []byte(p)))
		require.NoError(t, err)
	}
	write(5, "one")
	write(mark|5, "two")
	write(mark&(mark-1)|5, "nobody's") // one bit of the mark
	require.Equal(t, "one", string(<-x.frames))
	require.Equal(t, "two", string(<-y.frames))
	for _, m := range []*room{first, second} {
		require.Equal(t, uuid(1), (<-m.receiver).Peer())
	}
	send.Close()
	for _, m := range []*room{first, second} {
		require.Equal(t, uuid(1), (<-m.lost).peer)
	}
	require.Empty(t, x.frames)
	require.Empty(t, y.frames)
}
