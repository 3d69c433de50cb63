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

// carry writes so many bytes at once on a, and compares what b reads.
func carry(t *testing.T, a io.Writer, b io.Reader, size int) {
	t.Helper()
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
		carry(t, a, b, size)
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

// patient notes for how many bytes its reads would wait. The test and the reader take turns.
type patient struct {
	*transporttest.Conn
	waits []int
}

func (c *patient) WaitFor(bytes int) { c.waits = append(c.waits, bytes) }

// A reader that waits for many bytes waits for as many that are sealed inside of a record, for no
// more than its rest, and between records for the first byte.
func TestPatience(t *testing.T) {
	const size, least = 16 << 10, 6000
	x, y := transporttest.Pair(transporttest.Options{})
	sock := &patient{Conn: y}
	a, b := shake(t, x, sock)
	require.NotContains(t, sock.waits, 0)
	for round := range 3 {
		for _, n := range []int{least, 1} {
			b.WaitFor(n)
			sock.waits = nil
			carry(t, a, b, size)
			require.Equal(t, 1, sock.waits[0], "between records")
			for _, w := range sock.waits {
				require.True(t, w >= 1 && w <= n, "%d of %d", w, n)
			}
			if round == 0 && n == least { // its first read takes little, as that of any connection at rest
				require.Equal(t, n, sock.waits[1], "most of the record is missing")
			}
		}
	}
}
