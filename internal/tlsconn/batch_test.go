package tlsconn_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// counting notes the sizes of writes.
type counting struct {
	*transporttest.Conn
	sizes []int
}

func (c *counting) Write(p []byte) (int, error) {
	c.sizes = append(c.sizes, len(p))
	return c.Conn.Write(p)
}

func (c *counting) TryWrite(p []byte) (int, error) {
	c.sizes = append(c.sizes, len(p))
	return c.Conn.TryWrite(p)
}

// Every write is one packet of the loopback device, and none is for what little would be
// left behind the others. Long ones make fewer calls.
func TestBatches(t *testing.T) {
	const packet, long = 65483, 262144 // what a segment holds there, and what caches do
	for size, want := range map[int]int{
		1: 1, 48 << 10: 1, 48<<10 + 1: 1, 63 << 10: 1, 63<<10 + 1: 2, 96 << 10: 2, 111 << 10: 2, 111<<10 + 1: 3,
		200024:    4, // a frame of an all-reduce of 400 KB among two peers
		512 << 10: 11, 1 << 20: 5,
	} {
		x, y := transporttest.Pair(transporttest.Options{})
		sock := &counting{Conn: x}
		a, b := shake(t, sock, y)
		sock.sizes = nil
		sent, got := fill(size), make([]byte, size)
		over := make(chan error, 1)
		go func() {
			_, err := a.Write(sent)
			over <- err
		}()
		_, err := io.ReadFull(b, got)
		require.NoError(t, err)
		require.NoError(t, <-over)
		require.Equal(t, sent, got)
		require.Len(t, sock.sizes, want, "of %d bytes", size)
		most := packet
		if size > 512<<10 {
			most = long
		}
		for _, n := range sock.sizes {
			require.LessOrEqual(t, n, most, "of %d bytes", size)
		}
	}
}
