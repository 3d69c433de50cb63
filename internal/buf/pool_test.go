package buf

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/allocs"
	"pgregory.net/rapid"
)

// Buffers have the length asked for, are aligned, never overlap and come back
// from the cache: after the first round every Get is a hit.
func TestPool(t *testing.T) {
	p := NewPool(0)
	sizes := []int{1, 4095, 4096, 4097, 100_000, 1 << 20, 1<<20 + 1}
	for round := range 3 {
		var out [][]byte
		for i, n := range sizes {
			b := p.Get(n)
			require.Len(t, b, n)
			require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%Align)
			for j := range b {
				b[j] = byte(i)
			}
			out = append(out, b)
		}
		for i, b := range out {
			require.Equal(t, byte(i), b[0])
			require.Equal(t, byte(i), b[len(b)-1])
			p.Put(b)
		}
		s := p.Stats()
		require.EqualValues(t, round*len(sizes), s.Hits) // S0-15
		require.Zero(t, s.InUse)
		require.Positive(t, s.Cached)
	}
	require.Nil(t, p.Get(0))
	require.Nil(t, p.Get(-1))
	p.Put(nil)
}

// A class holds what is asked for, wastes at most a quarter, and is found again
// from its own size.
func TestClasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1<<45).Draw(t, "n")
		c, size := class(n)
		require.GreaterOrEqual(t, size, n)
		require.True(t, n <= 4096 && size == 4096 || size <= n+n/4, "%d bytes for %d", size, n)
		require.Zero(t, size%Align)
		again, same := class(size)
		require.Equal(t, []int{c, size}, []int{again, same})
		require.Less(t, c, numClasses)
		if n > 4096 {
			lower, below := class(n - n/3)
			require.True(t, below <= size && lower <= c)
		}
	})
}

// What is kept is bounded whatever is asked for; foreign buffers are not taken.
func TestPoolIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPool(64 << 10)
		var held [][]byte
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 40_000), 1, 60).Draw(t, "sizes") {
			held = append(held, p.Get(n))
			if n%3 == 0 {
				p.Put(held[len(held)-1])
				held = held[:len(held)-1]
			}
			if p.Stats().Cached > 64<<10 {
				t.Fatalf("%d bytes cached", p.Stats().Cached)
			}
		}
		for _, b := range held {
			p.Put(b)
		}
		require.LessOrEqual(t, p.Stats().Cached, int64(64<<10))
		require.Zero(t, p.Stats().InUse)
	})
}

func TestPoolConcurrent(t *testing.T) {
	p := NewPool(1 << 20)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 200 {
				b := p.Get(1 + i*37%9000)
				b[0] = byte(g)
				if b[0] != byte(g) {
					t.Error("shared buffer")
				}
				p.Put(b)
			}
		}()
	}
	wg.Wait()
	require.Zero(t, p.Stats().InUse)
}

func TestNoAllocationWhenWarm(t *testing.T) {
	p := NewPool(0)
	p.Put(p.Get(100_000))
	require.Zero(t, allocs.PerRun(100, func() { p.Put(p.Get(100_000)) }))
}
