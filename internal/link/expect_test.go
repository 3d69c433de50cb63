package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// A connection that the peer ends before its first byte is not missed, as long as there is
// another one. One that has brought a byte, or that breaks, may have brought less than was
// sent.
func TestWhatIsExpectedOfAPool(t *testing.T) {
	m := newRoom(t, Config{})
	m.h.Trust(uuid(1))
	var ends []*transporttest.Conn
	for k := range 3 {
		a, b := transporttest.Pair(transporttest.Options{})
		m.h.AddReceiver(uuid(1), uint32(k), b)
		ends = append(ends, a)
		<-m.receiver
	}
	pool := m.h.Receivers(uuid(1))
	from, lost := Expect(pool)
	require.Equal(t, pool, from)
	require.False(t, lost)
	ends[1].Close()
	m.hears(t)
	from, lost = Expect(pool)
	require.Equal(t, []*Receiver{pool[0], pool[2]}, from)
	require.False(t, lost)
	_, err := ends[2].Write([]byte{1})
	require.NoError(t, err)
	ends[2].Close()
	m.hears(t)
	from, lost = Expect(pool)
	require.Equal(t, []*Receiver{pool[0], pool[2]}, from)
	require.True(t, lost)
	from, lost = Expect(pool[1:2])
	require.Empty(t, from)
	require.True(t, lost, "nobody else is there")
	from, lost = Expect(nil)
	require.Empty(t, from)
	require.False(t, lost, "nobody has come yet")
}
