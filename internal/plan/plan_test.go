package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Data spec, section 2.2: the example with N = 3 and 10 elements.
func TestExample(t *testing.T) {
	var got [][2]int
	for c := range 3 {
		off, n := Chunk(10, 3, c)
		got = append(got, [2]int{off, off + n})
	}
	require.Equal(t, [][2]int{{0, 4}, {4, 7}, {7, 10}}, got) // S1-30
}

// The formulas of data spec, section 2.2, written down per phase.
func TestScheduleMatchesThePhases(t *testing.T) {
	for n := 2; n <= 16; n++ {
		for r := range n {
			for s := range n - 1 {
				require.Equal(t, ((r-s)%n+n)%n, SendChunk(r, n, s))
				require.Equal(t, ((r-s-1)%n+n)%n, RecvChunk(r, n, s))
				require.True(t, Reduces(n, s))
				all := n - 1 + s
				require.Equal(t, ((r+1-s)%n+n)%n, SendChunk(r, n, all))
				require.Equal(t, ((r-s)%n+n)%n, RecvChunk(r, n, all))
				require.False(t, Reduces(n, all))
			}
			require.Equal(t, 2*(n-1), Steps(n))
			require.Equal(t, (r+1)%n, RecvChunk(r, n, n-2))
			require.Equal(t, (r+1)%n, SendChunk(r, n, n-1))
		}
	}
}

// Chunks tile the buffer for any count, also below the number of peers; what
// is sent in a step is what was received in the one before; over all steps every
// rank sends each chunk but the one after its own twice. Data spec, section 2.1.
func TestTiling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		count := rapid.IntRange(0, 1<<40).Draw(t, "count")
		at, smallest := 0, count
		for c := range n {
			off, l := Chunk(count, n, c)
			require.Equal(t, at, off)
			require.True(t, l == count/n || l == count/n+1) // S1-30
			at, smallest = at+l, min(smallest, l)
		}
		require.Equal(t, count, at)
		require.Equal(t, smallest, MinChunk(count, n))
		total := 0
		for r := range n {
			for s := range Steps(n) {
				if c := RecvChunk((r+1)%n, n, s); c != SendChunk((r+1)%n, n, s+1) || c != SendChunk(r, n, s) {
					t.Fatalf("n %d, rank %d, step %d", n, r, s)
				}
			}
			sent, _ := Traffic(count, n, r)
			_, received := Traffic(count, n, (r+1)%n)
			require.Equal(t, sent, received)
			total += sent
		}
		require.Equal(t, 2*(n-1)*count, total) // S1-29
	})
}

// The bytes that each peer sends in the experiments of PCCL's technical report:
// 2^28 elements of four bytes, in worlds of 18, 12 and 6. The report writes
// gigabytes, the last one cut off after four digits.
func TestBytesOfTheReport(t *testing.T) {
	gigabytes := func(world int) float64 {
		sent, received := Traffic(1<<28, world, 0)
		require.InDelta(t, sent, received, 1, "one chunk may be an element longer")
		return 4 * float64(sent) / 1e9
	}
	require.InDelta(t, 2.02818, gigabytes(18), 1e-5) // S2-43
	require.InDelta(t, 1.9685, gigabytes(12), 1e-4)  // S2-45
	require.InDelta(t, 1.7895, gigabytes(6), 1e-4)   // S2-47
}
